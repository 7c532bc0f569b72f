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
    /// Selected Pods, terminating ones included, finished ones not.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::api::podtransitionrule::PodTransitionRule;

    fn rules() -> RuleSet {
        let object: PodTransitionRule = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": { "name": "web", "namespace": "n", "uid": "rule" },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
            },
        }))
        .unwrap();
        RuleSet::compile(&object)
    }

    /// A Pod in one of many states, by small numbers.
    fn pod(n: u8, owner: Option<u8>, state: u8) -> Arc<Pod> {
        let flag = |bit: u8| state & (1 << bit) != 0;
        let mut labels = json!({ "app": if flag(0) { "web" } else { "other" } });
        if flag(1) {
            labels["kusionstack.io/control"] = json!("true");
        }
        if flag(2) {
            labels["podopslifecycle.kusionstack.io/service-available"] = json!("1");
        }
        if flag(3) {
            labels["pre-check.podopslifecycle.kusionstack.io/x"] = json!(n.to_string());
        }
        let owners = owner.map(|o| json!([{ "uid": format!("owner-{o}"), "controller": true }]));
        let pod = json!({
            "metadata": {
                "namespace": "n", "name": format!("pod-{n}"), "uid": format!("pod-{n}"), "labels": labels,
                "ownerReferences": owners,
                "deletionTimestamp": flag(4).then_some("2026-01-01T00:00:00Z"),
            },
            "status": {
                "phase": if flag(5) { "Failed" } else { "Running" },
                "conditions": [{ "type": "Ready", "status": if flag(6) { "True" } else { "False" } }],
            },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn workload(replicas: u8, managed: bool) -> Workload {
        let labels = [("app".to_owned(), "web".to_owned())];
        Workload {
            replicas: replicas.into(),
            template_labels: managed.then(|| labels.into_iter().collect()),
        }
    }

    fn figures(tally: &Tally) -> (u32, u32, Vec<Uid>, usize) {
        (
            tally.expected(),
            tally.available(),
            tally.waiting().cloned().collect(),
            tally.unavailable().count(),
        )
    }

    const SERVING: u8 = 0b100_0111;

    #[test]
    fn a_workload_counts_with_its_replicas_and_a_bare_pod_for_itself() {
        let workloads = HashMap::from([(Uid::from("owner-0"), workload(10, true))]);
        let pods = [pod(0, Some(0), SERVING), pod(1, None, SERVING)];
        let tally = Tally::count(&rules(), pods.iter(), &workloads);
        assert_eq!((tally.expected(), tally.available()), (11, 2));
    }

    #[test]
    fn a_workload_without_a_pod_left_still_counts_by_its_template() {
        let workloads = HashMap::from([
            (Uid::from("owner-0"), workload(3, true)),
            (Uid::from("owner-1"), workload(5, false)),
        ]);
        assert_eq!(Tally::count(&rules(), [].iter(), &workloads).expected(), 3);
    }

    #[test]
    fn terminating_completed_and_unmanaged_pods_do_not_eat_the_budget() {
        let workloads = HashMap::from([(Uid::from("owner-0"), workload(1, true))]);
        let pods = [
            pod(0, Some(0), SERVING),
            pod(1, Some(0), SERVING | 1 << 4), // terminating
            pod(2, Some(0), SERVING | 1 << 5), // failed
            pod(3, None, SERVING | 1 << 5),
            pod(4, None, SERVING & !0b10), // not managed
            pod(5, None, SERVING | 1 << 4),
        ];
        let tally = Tally::count(&rules(), pods.iter(), &workloads);
        assert_eq!(
            (
                tally.expected(),
                tally.available(),
                tally.unavailable().count()
            ),
            (1, 1, 0)
        );
    }

    proptest! {
        /// Whatever comes in whatever order, the running counts are those of a count from scratch.
        #[test]
        fn running_counts_agree_with_a_count_from_scratch(
            steps in prop::collection::vec((0u8..4, 0u8..3, any::<u8>(), any::<bool>()), 0..60)
        ) {
            let rules = rules();
            let (mut pods, mut workloads) = (HashMap::<u8, Arc<Pod>>::new(), HashMap::<Uid, Workload>::new());
            let mut tally = Tally::default();
            for (n, owner, state, there) in steps {
                if n == 3 {
                    let uid = Uid::from(format!("owner-{owner}"));
                    let workload = there.then(|| workload(state % 5, state & 8 != 0));
                    tally.set_workload(&rules, &uid, workload.as_ref());
                    match workload {
                        Some(workload) => workloads.insert(uid, workload),
                        None => workloads.remove(&uid),
                    };
                } else {
                    let new = there.then(|| pod(n, (owner < 2).then_some(owner), state));
                    if let Some(old) = pods.remove(&n) {
                        tally.remove(&rules, &old, &workloads);
                    }
                    if let Some(new) = new {
                        tally.add(&rules, &new, &workloads);
                        pods.insert(n, new);
                    }
                }
                let fresh = Tally::count(&rules, pods.values(), &workloads);
                prop_assert_eq!(figures(&tally), figures(&fresh));
            }
        }
    }
}
