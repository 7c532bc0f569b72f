//! The counts behind one rule object, kept incrementally: a decision reads them and costs the same at 10 Pods and at
//! 10,000.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::keys::Family;
use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::ledger::store::Uid;

/// A controller that owns Pods, as far as a budget needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// `spec.replicas`.
    pub replicas: u32,
    /// Labels that its Pods are created with; `None` unless they make managed Pods.
    pub template_labels: Option<BTreeMap<String, String>>,
}

/// Counts of the Pods that one rule object selects.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    available: u32,
    /// Pods that count for themselves: without a controller.
    unowned: u32,
    owners: HashMap<Uid, Owned>,
    expected: u32,
    waiting: BTreeSet<(u64, Uid)>,
    post_waiting: BTreeSet<Uid>,
    unavailable: BTreeSet<(Option<Timestamp>, Uid)>,
}

#[derive(Clone, Debug, Default)]
struct Owned {
    /// Selected Pods that are neither terminating nor finished.
    alive: u32,
    /// Selected Pods at all.
    present: u32,
    /// Whether Pods made from its template are selected.
    template: bool,
    /// Its `spec.replicas`, if it is of a kind that is watched.
    replicas: Option<u32>,
}

impl Owned {
    fn expected(&self) -> u32 {
        match self.replicas {
            Some(replicas) if self.present > 0 || self.template => replicas,
            Some(_) => 0,
            None => self.alive,
        }
    }

    fn is_idle(&self) -> bool {
        self.present == 0 && !self.template
    }
}

impl Tally {
    /// Counts from scratch.
    pub fn count<'a>(
        rules: &RuleSet,
        pods: impl Iterator<Item = &'a Arc<Pod>>,
        workloads: &HashMap<Uid, Workload>,
    ) -> Tally {
        let mut tally = Tally::default();
        for (uid, workload) in workloads {
            tally.set_workload(rules, uid, Some(workload));
        }
        for pod in pods {
            tally.add(rules, pod, workloads);
        }
        tally
    }

    /// How many Pods there should be: replicas of the controllers whose Pods are selected, and selected Pods that no
    /// watched controller owns.
    pub fn expected(&self) -> u32 {
        self.unowned + self.expected
    }

    /// Selected Pods that are available.
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Selected Pods waiting in PreCheck, the longest first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.waiting.iter().map(|(_, uid)| uid)
    }

    /// Selected Pods waiting in PostCheck.
    pub fn post_waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.post_waiting.iter()
    }

    /// Selected Pods that are unavailable and still there, the longest first.
    pub fn unavailable(&self) -> impl Iterator<Item = &(Option<Timestamp>, Uid)> {
        self.unavailable.iter()
    }

    /// Counts a Pod in.
    pub fn add(&mut self, rules: &RuleSet, pod: &Pod, workloads: &HashMap<Uid, Workload>) {
        self.change(rules, pod, workloads, true);
    }

    /// Counts a Pod out again; it must be the very state that was counted in.
    pub fn remove(&mut self, rules: &RuleSet, pod: &Pod, workloads: &HashMap<Uid, Workload>) {
        self.change(rules, pod, workloads, false);
    }

    /// A workload came, changed or went.
    pub fn set_workload(&mut self, rules: &RuleSet, uid: &Uid, workload: Option<&Workload>) {
        let labels = workload
            .filter(|w| w.replicas > 0)
            .and_then(|w| w.template_labels.as_ref());
        let template =
            labels.is_some_and(|labels| rules.selector.as_ref().is_ok_and(|s| s.matches(labels)));
        if !template && !self.owners.contains_key(uid) {
            return;
        }
        self.owner(uid, |owned| {
            owned.template = template;
            owned.replicas = workload.map(|w| w.replicas);
        });
    }

    fn change(
        &mut self,
        rules: &RuleSet,
        pod: &Pod,
        workloads: &HashMap<Uid, Workload>,
        add: bool,
    ) {
        if !rules.selects(pod) || pod.is_finished() {
            return;
        }
        let step = |n: &mut u32| *n = if add { *n + 1 } else { n.saturating_sub(1) };
        let alive = !pod.is_terminating();
        match pod.controller() {
            Some(owner) => {
                let uid = Uid::from(owner.uid.as_str());
                let replicas = workloads.get(&uid).map(|w| w.replicas);
                self.owner(&uid, |owned| {
                    owned.replicas = replicas;
                    step(&mut owned.present);
                    if alive {
                        step(&mut owned.alive);
                    }
                });
            }
            None if alive => step(&mut self.unowned),
            None => {}
        }
        let uid = || Uid::from(pod.metadata.uid.as_str());
        if pod.is_available() {
            step(&mut self.available);
        } else if alive {
            set(&mut self.unavailable, (unavailable_since(pod), uid()), add);
        }
        if let Some(since) = waiting_since(pod, Family::PreCheck).filter(|_| alive) {
            set(&mut self.waiting, (since, uid()), add);
        }
        if alive && waiting_since(pod, Family::PostCheck).is_some() {
            set(&mut self.post_waiting, uid(), add);
        }
    }

    fn owner(&mut self, uid: &Uid, change: impl FnOnce(&mut Owned)) {
        let owned = self.owners.entry(uid.clone()).or_default();
        let before = owned.expected();
        change(owned);
        let after = owned.expected();
        if owned.is_idle() {
            self.owners.remove(uid);
        }
        self.expected = self.expected - before + after;
    }
}

fn set<T: Ord>(of: &mut BTreeSet<T>, item: T, add: bool) {
    if add {
        of.insert(item);
    } else {
        of.remove(&item);
    }
}

/// Since when the Pod carries a label of this family (PreCheck, PostCheck), in nanoseconds; `None` if it doesn't.
pub fn waiting_since(pod: &Pod, family: Family) -> Option<u64> {
    pod.metadata
        .labels
        .iter()
        .filter(|(key, _)| Family::parse(key).is_some_and(|(f, _)| f == family))
        .map(|(_, nanos)| nanos.parse().unwrap_or(0))
        .min()
}

/// Since when the Pod is unavailable, as far as its condition tells; creation if it was never Ready.
fn unavailable_since(pod: &Pod) -> Option<Timestamp> {
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready");
    ready
        .and_then(|c| c.last_transition_time.as_ref())
        .or(pod.metadata.creation_timestamp.as_ref())
        .and_then(|text| text.parse().ok())
}
