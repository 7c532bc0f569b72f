//! What this replica knows of the cluster: one index fed by one watch per kind, shared by admission and controllers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::{broadcast, watch};

use super::tally::{Tally, Workload};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::ledger::protocol::View;
use crate::ledger::store::{Claims, RuleKey, Snapshot, Uid};

/// Changes that a slow listener may be behind; beyond that it is told to look at everything again.
const CHANGES: usize = 16_384;

/// Something changed; listeners look at the index for what it is now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A Pod: namespace and UID.
    Pod(String, Uid),
    /// A rule object: namespace and name.
    Rule(String, String),
    /// A namespace.
    Namespace(String),
    /// The number of Pods that a workload of the namespace should have.
    Workload(String),
}

/// The index.
#[derive(Debug)]
pub struct Index {
    state: RwLock<State>,
    position: watch::Sender<u64>,
    synced: watch::Sender<Synced>,
    changes: broadcast::Sender<Change>,
}

/// Which kinds have been listed at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Pods.
    pub pods: bool,
    /// Rules.
    pub rules: bool,
    /// Namespaces.
    pub namespaces: bool,
    /// How many kinds of workloads.
    pub workloads: u8,
}

/// Kinds of workloads that are watched: ReplicaSet, StatefulSet, ReplicationController, CollaSet.
pub const WORKLOAD_KINDS: u8 = 4;

impl Synced {
    /// Whether all are.
    pub fn all(self) -> bool {
        self.pods
            && self.rules
            && self.namespaces
            && self.workloads.count_ones() >= u32::from(WORKLOAD_KINDS)
    }
}

/// The state behind the lock.
#[derive(Debug, Default)]
pub struct State {
    /// Largest resourceVersion that the Pod watch has delivered.
    pub position: u64,
    /// Largest resourceVersion of a Pod event (or list), bookmarks not counted: every other cache meets it too.
    pub last_event: u64,
    namespaces: HashMap<String, Namespace>,
}

/// One namespace.
#[derive(Debug, Default)]
pub struct Namespace {
    /// Whether its deletion has begun.
    pub terminating: bool,
    /// Its labels; `None` until the namespace has been seen.
    pub labels: Option<BTreeMap<String, String>>,
    /// Managed Pods by UID.
    pub pods: HashMap<Uid, Arc<Pod>>,
    /// Rule objects by name.
    pub rules: BTreeMap<String, Entry>,
    workloads: HashMap<Uid, Workload>,
}

/// A rule object with its counts.
#[derive(Debug)]
pub struct Entry {
    /// The object.
    pub object: Arc<PodTransitionRule>,
    /// Compiled, with its claims.
    pub snapshot: Snapshot,
    /// Counts of the Pods that it selects.
    pub tally: Tally,
}

impl Entry {
    /// Names the object.
    pub fn key(&self) -> RuleKey {
        let rules = &self.snapshot.rules;
        RuleKey {
            uid: rules.uid.clone(),
            namespace: rules.namespace.clone(),
            name: rules.name.clone(),
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Index {
            state: RwLock::default(),
            position: watch::Sender::new(0),
            synced: watch::Sender::new(Synced::default()),
            changes: broadcast::Sender::new(CHANGES),
        }
    }
}

impl Index {
    /// Reads the state. Hold the guard briefly, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Which kinds have been listed.
    pub fn synced(&self) -> Synced {
        *self.synced.borrow()
    }

    /// Returns when everything has been listed once.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        let _ = synced.wait_for(|s| s.all()).await; // the sender lives as long as self
    }

    /// Returns when the Pod cache has reached `position`.
    pub async fn wait_position(&self, position: u64) {
        let mut reached = self.position.subscribe();
        let _ = reached.wait_for(|p| *p >= position).await; // the sender lives as long as self
    }

    /// The rule objects that cover a Pod, by its own labels.
    pub fn rules_of(&self, pod: &Pod) -> Vec<RuleKey> {
        let state = self.read();
        let Some(namespace) = state.namespace(&pod.metadata.namespace) else {
            return Vec::new();
        };
        namespace
            .rules
            .values()
            .filter(|e| e.snapshot.rules.selects(pod))
            .map(Entry::key)
            .collect()
    }

    fn advance(&self, state: &mut State, version: u64, event: bool) {
        if event {
            state.last_event = state.last_event.max(version);
        }
        if version > state.position {
            state.position = version;
            self.position.send_replace(version);
        }
    }

    fn tell(&self, change: Change) {
        let _ = self.changes.send(change); // nobody may be listening
    }

    fn mark(&self, mark: impl FnOnce(&mut Synced)) {
        self.synced.send_modify(mark);
    }

    // ---- Pods ----

    /// The Pods at `version`; others are gone.
    pub fn replace_pods(&self, pods: Vec<Pod>, version: u64) {
        let mut state = self.state.write();
        let listed: std::collections::HashSet<&str> =
            pods.iter().map(|p| p.metadata.uid.as_str()).collect();
        let gone: Vec<Arc<Pod>> = state
            .namespaces
            .values()
            .flat_map(|n| n.pods.values())
            .filter(|p| !listed.contains(p.metadata.uid.as_str()))
            .cloned()
            .collect();
        for pod in gone {
            self.put_pod(&mut state, &pod.metadata.namespace, &pod.metadata.uid, None);
        }
        for pod in pods {
            let (namespace, uid) = (pod.metadata.namespace.clone(), pod.metadata.uid.clone());
            self.put_pod(&mut state, &namespace, &uid, Some(pod));
        }
        self.advance(&mut state, version, true);
        drop(state);
        self.mark(|s| s.pods = true);
    }

    /// A managed Pod was added or changed.
    pub fn apply_pod(&self, pod: Pod) {
        let (namespace, uid) = (pod.metadata.namespace.clone(), pod.metadata.uid.clone());
        let version = pod.metadata.resource_version;
        let mut state = self.state.write();
        self.put_pod(&mut state, &namespace, &uid, Some(pod));
        self.advance(&mut state, version, true);
    }

    /// A Pod was deleted, or is no longer managed.
    pub fn delete_pod(&self, pod: &Pod) {
        let mut state = self.state.write();
        self.put_pod(&mut state, &pod.metadata.namespace, &pod.metadata.uid, None);
        self.advance(&mut state, pod.metadata.resource_version, true);
    }

    /// Every Pod event up to `version` has been delivered.
    pub fn bookmark_pods(&self, version: u64) {
        self.advance(&mut self.state.write(), version, false);
    }

    fn put_pod(&self, state: &mut State, namespace: &str, uid: &str, pod: Option<Pod>) {
        let uid = Uid::from(uid);
        let Namespace {
            pods,
            rules,
            workloads,
            ..
        } = state.namespaces.entry(namespace.to_owned()).or_default();
        let new = pod.map(Arc::new);
        let old = match &new {
            Some(new) => pods.insert(uid.clone(), Arc::clone(new)),
            None => pods.remove(&uid),
        };
        for Entry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            if let Some(old) = &old {
                tally.remove(&snapshot.rules, old, workloads);
            }
            if let Some(new) = &new {
                tally.add(&snapshot.rules, new, workloads);
            }
        }
        self.tell(Change::Pod(namespace.to_owned(), uid));
    }

    // ---- rules ----

    /// The rule objects; others are gone.
    pub fn replace_rules(&self, objects: Vec<PodTransitionRule>) {
        let mut state = self.state.write();
        let listed: std::collections::HashSet<String> = objects
            .iter()
            .filter_map(|o| o.metadata.uid.clone())
            .collect();
        for (name, namespace) in &mut state.namespaces {
            namespace.rules.retain(|rule, entry| {
                let keep = listed.contains(&*entry.snapshot.rules.uid);
                if !keep {
                    self.tell(Change::Rule(name.clone(), rule.clone()));
                }
                keep
            });
        }
        for object in objects {
            self.put_rule(&mut state, object);
        }
        drop(state);
        self.mark(|s| s.rules = true);
    }

    /// A rule object was added or changed.
    pub fn apply_rule(&self, object: PodTransitionRule) {
        self.put_rule(&mut self.state.write(), object);
    }

    /// A rule object was deleted.
    pub fn delete_rule(&self, object: &PodTransitionRule) {
        let mut state = self.state.write();
        let (namespace, name) = names(object);
        if let Some(entry) = state.namespaces.get_mut(&namespace) {
            entry.rules.remove(&name);
        }
        self.tell(Change::Rule(namespace, name));
    }

    fn put_rule(&self, state: &mut State, object: PodTransitionRule) {
        let (namespace, name) = names(&object);
        let home = state.namespaces.entry(namespace.clone()).or_default();
        if object.metadata.deletion_timestamp.is_some() {
            home.rules.remove(&name); // no longer enforced; the controller takes Kuperator's finalizer off
        } else {
            let known = home.rules.remove(&name);
            let (snapshot, same) = match &known {
                Some(e) => {
                    let snapshot = Snapshot::of(&object, Some(&e.snapshot));
                    let same = Arc::ptr_eq(&snapshot.rules, &e.snapshot.rules);
                    (snapshot, same)
                }
                None => (Snapshot::of(&object, None), false),
            };
            let tally = match known {
                Some(e) if same => e.tally,
                _ => Tally::count(&snapshot.rules, home.pods.values(), &home.workloads),
            };
            home.rules.insert(
                name.clone(),
                Entry {
                    object: Arc::new(object),
                    snapshot,
                    tally,
                },
            );
        }
        self.tell(Change::Rule(namespace, name));
    }

    // ---- namespaces and workloads ----

    /// The namespaces; others are gone.
    pub fn replace_namespaces(&self, all: Vec<(String, BTreeMap<String, String>, bool)>) {
        let mut state = self.state.write();
        for namespace in state.namespaces.values_mut() {
            namespace.labels = None;
            namespace.terminating = false;
        }
        for (name, labels, terminating) in all {
            let home = state.namespaces.entry(name.clone()).or_default();
            home.labels = Some(labels);
            home.terminating = terminating;
            self.tell(Change::Namespace(name));
        }
        drop(state);
        self.mark(|s| s.namespaces = true);
    }

    /// A namespace was added or changed.
    pub fn apply_namespace(
        &self,
        name: String,
        labels: BTreeMap<String, String>,
        terminating: bool,
    ) {
        let mut state = self.state.write();
        let home = state.namespaces.entry(name.clone()).or_default();
        home.labels = Some(labels);
        home.terminating = terminating;
        self.tell(Change::Namespace(name));
    }

    /// A namespace was deleted.
    pub fn delete_namespace(&self, name: &str) {
        self.state.write().namespaces.remove(name);
    }

    /// The workloads of one kind (a bit of [`Synced::workloads`]).
    pub fn replace_workloads(
        &self,
        kind: u8,
        all: Vec<(String, Uid, Workload)>,
        gone: Vec<(String, Uid)>,
    ) {
        for (namespace, uid) in gone {
            self.set_workload(&namespace, uid, None);
        }
        for (namespace, uid, workload) in all {
            self.set_workload(&namespace, uid, Some(workload));
        }
        self.mark(|s| s.workloads |= 1 << kind);
    }

    /// A workload came, changed or (`None`) went.
    pub fn set_workload(&self, namespace: &str, uid: Uid, workload: Option<Workload>) {
        let mut state = self.state.write();
        let Namespace {
            rules, workloads, ..
        } = state.namespaces.entry(namespace.to_owned()).or_default();
        if workloads.get(&uid) == workload.as_ref() {
            return;
        }
        for Entry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            tally.set_workload(&snapshot.rules, &uid, workload.as_ref());
        }
        match workload {
            Some(workload) => workloads.insert(uid, workload),
            None => workloads.remove(&uid),
        };
        self.tell(Change::Workload(namespace.to_owned()));
    }
}

impl State {
    /// A namespace, if anything is known of it.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name)
    }

    /// All namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &Namespace)> {
        self.namespaces.iter()
    }

    /// A Pod.
    pub fn pod(&self, namespace: &str, uid: &str) -> Option<&Arc<Pod>> {
        self.namespace(namespace)?.pods.get(uid)
    }

    /// A rule object.
    pub fn rule(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.namespace(namespace)?.rules.get(name)
    }

    /// Looks at the Pods that `rules` selects. Uses the running counts when the index has compiled the same spec, and
    /// counts anew when the caller has read a newer one.
    pub fn view<R>(&self, rules: &RuleSet, look: impl FnOnce(&dyn View<Uid>) -> R) -> R {
        let empty = Namespace::default();
        let home = self.namespace(&rules.namespace).unwrap_or(&empty);
        let counted;
        let tally = match home
            .rules
            .get(&rules.name)
            .map(|e| (&e.snapshot.rules, &e.tally))
        {
            Some((known, tally))
                if known.uid == rules.uid && known.generation == rules.generation =>
            {
                tally
            }
            _ => {
                counted = Tally::count(rules, home.pods.values(), &home.workloads);
                &counted
            }
        };
        look(&PodView {
            position: self.position,
            rules,
            tally,
            pods: &home.pods,
        })
    }
}

impl Namespace {
    /// Whether a controller of a watched kind is there.
    pub fn has_workload(&self, uid: &str) -> bool {
        self.workloads.contains_key(uid)
    }
}

struct PodView<'a> {
    position: u64,
    rules: &'a RuleSet,
    tally: &'a Tally,
    pods: &'a HashMap<Uid, Arc<Pod>>,
}

impl View<Uid> for PodView<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    fn expected(&self) -> u32 {
        self.tally.expected()
    }

    fn available(&self) -> u32 {
        self.tally.available()
    }

    fn is_available(&self, pod: &Uid) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|p| p.is_available() && self.rules.selects(p))
    }
}

fn names(object: &PodTransitionRule) -> (String, String) {
    (
        object.metadata.namespace.clone().unwrap_or_default(),
        object.metadata.name.clone().unwrap_or_default(),
    )
}

/// An object's claims, for the gauges of its status.
pub fn unclaimed(claims: &Claims, view: &dyn View<Uid>) -> u32 {
    claims.unclaimed(view)
}
