//! Wakes controllers whose deletions were denied.
//!
//! ReplicaSet, StatefulSet, DaemonSet and Job controllers retry a denied DELETE with exponential backoff of up to 1,000 s
//! (client-go's default rate limiter), and nothing tells them when a budget has room again. But each of them looks at its
//! object at once when one of its Pods changes. Therefore the leader changes an annotation of one Pod when the budget has
//! room and the owner still has Pods to delete.
//!
//! A wake is in vain, and adds to the controller's back-off, while the API server refuses writes of a ledger. From the
//! second wake on, the leader therefore asks by a dry run whether the ledgers can be written.
//!
//! While the budget has no room, a Deployment may wait for its old ReplicaSet, see [`rollouts::Overhang`]. Then the leader
//! sets the number of the ReplicaSet back.

pub(super) mod look;
mod pace;
mod released;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::look::Seen;
use self::pace::{Pace, Turn};
use self::released::Released;
use super::super::{Context, RuleName, room, write_again};
use super::rollouts::{self, Overhang, ReplicaSets};
use crate::api::keys;
use crate::cluster::index::{Entry, Namespace, State};
use crate::cluster::sizes::Workload;
use crate::cluster::{pods, replicasets};
use crate::domain::pod::Pod;
use crate::domain::rules::RuleSet;
use crate::domain::rules::effect;
use crate::domain::rules::mark::Mark;
use crate::ledger::store::{RuleKey, Uid};

/// Times that an owner is woken in vain. A StatefulSet with a partition, for example, keeps old Pods on purpose.
const WAKES: u32 = 8;
/// Times that the number of a ReplicaSet is set back in vain. The Deployment controller may set it anew each time.
const SET_BACKS: u32 = 4;

/// Reason of the Event on a Deployment that cannot go on.
const ROLLOUT_HELD: &str = "RolloutHeld";
/// Reason of the Event on a Deployment whose old ReplicaSet got its number back.
const SET_BACK: &str = "ReplicaSetScaledBack";

/// An owner: namespace and UID.
type Key = (String, Uid);

/// Remembers when each owner was woken. Kept by the leader only; a new leader starts anew.
#[derive(Default)]
pub struct Retries {
    owners: Mutex<HashMap<Key, Pace>>,
    set_backs: Mutex<HashMap<Key, Pace>>,
    released: Released,
    /// Rule objects of which an owner can't be read: admission denies all disruptions.
    denying: Mutex<HashSet<RuleName>>,
    /// Rule objects whose status, which holds the ledger, could not be written the last time. True if it was the ledger: then
    /// wakes were held back.
    unwritable: Mutex<HashMap<RuleName, bool>>,
}

/// What a look at one rule object finds to do.
#[derive(Default)]
struct Due {
    wake: Vec<Wake>,
    set_back: Vec<SetBack>,
    /// When to look again.
    again: Option<Duration>,
}

impl Due {
    fn look_after(&mut self, pause: Duration) {
        self.again = sooner(self.again, pause);
    }
}

/// The shorter of two pauses.
fn sooner(again: Option<Duration>, pause: Duration) -> Option<Duration> {
    again.into_iter().chain([pause]).min()
}

/// An owner to be woken.
struct Wake {
    key: Key,
    /// The Pod that is changed.
    pod: Arc<Pod>,
    /// Rule objects in whose ledgers a deletion is written down.
    rules: Vec<RuleKey>,
    /// Whether nothing was tried before.
    first: bool,
    /// Whether the attempt before failed.
    failing: bool,
}

impl Wake {
    /// The owner whose turn it is by `pace`.
    fn of(key: &Key, pod: &Arc<Pod>, pace: &Pace) -> Wake {
        Wake {
            key: key.clone(),
            pod: Arc::clone(pod),
            rules: Vec::new(),
            first: pace.is_first(),
            failing: pace.is_failing(),
        }
    }

    /// Changes an annotation of the Pod, so that its controller looks at its object. Returns whether it was written.
    async fn send(&self, context: &Context) -> bool {
        let now = (context.now)().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let annotation = json!({ "annotations": { (keys::CONTROLLER_WOKEN): now } });
        let patch = pods::patch_metadata(&context.client, &self.pod, annotation);
        let written = write_again("wake a controller", self.failing, patch)
            .await
            .is_ok();
        if written {
            let (namespace, pod) = (&self.pod.metadata.namespace, &self.pod.metadata.name);
            debug!(%namespace, %pod, "told the controller that the budget has room");
        }
        written
    }
}

/// A ReplicaSet whose `spec.replicas` is to become the number of its living Pods.
struct SetBack {
    /// The ReplicaSet.
    key: Key,
    name: String,
    version: u64,
    living: u32,
    /// The Deployment.
    about: ObjectReference,
    message: String,
    /// Whether the attempt before failed.
    failing: bool,
}

impl Retries {
    /// The start of a lead. Rules may have been deleted or changed while nobody led: wakes the owners that no rule covers
    /// in the namespaces that hold rules, or have held some lately. Ends when they have been woken, or at `stop`.
    pub async fn begin(&self, context: &Context, stop: &CancellationToken) {
        tokio::select! { () = stop.cancelled() => return, () = context.index.wait_synced() => {} }
        let marked: Vec<String> = {
            let state = context.index.read();
            let marked = state.namespaces().filter(|(_, home)| {
                let labels = home.labels.as_ref();
                labels.is_some_and(|labels| Mark::of(labels) > Mark::Unruled)
            });
            marked.map(|(name, _)| name.clone()).collect()
        };
        for namespace in &marked {
            self.release(context, namespace);
        }
        loop {
            let mut again = None::<Duration>;
            for namespace in &marked {
                let pause = self.wake_released(context, namespace).await;
                again = pause.map_or(again, |pause| sooner(again, pause));
            }
            let Some(pause) = again else {
                return;
            };
            tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// A rule object of the namespace is gone or was edited: the owners that no rule covers any more are to be woken, by
    /// [`Retries::wake_released`].
    pub fn release(&self, context: &Context, namespace: &str) {
        self.released.add(context, namespace);
    }

    /// Wakes released owners that are due. Returns when to call again, if there is a reason to.
    pub async fn wake_released(&self, context: &Context, namespace: &str) -> Option<Duration> {
        self.released.wake(context, namespace).await
    }

    /// A rule object is gone.
    pub fn forget(&self, name: &RuleName) {
        self.denying.lock().remove(name);
        self.unwritable.lock().remove(name);
    }

    /// Whether the status of a rule object could not be written the last time.
    pub fn is_unwritable(&self, name: &RuleName) -> bool {
        self.unwritable.lock().contains_key(name)
    }

    /// The status of a rule object was written, or could not be.
    pub fn status_written(&self, name: &RuleName, written: bool) {
        if written {
            self.writable(name);
        } else {
            self.unwritable.lock().entry(name.clone()).or_insert(false);
        }
    }

    /// The ledger of a rule object can be written. If wakes were held back, the owners of the namespace get all their tries
    /// again. Returns when to look at them.
    fn writable(&self, name: &RuleName) -> Option<Duration> {
        let held_back = self.unwritable.lock().remove(name)?;
        let (now, mut owners) = (Instant::now(), self.owners.lock());
        let owners = owners
            .iter_mut()
            .filter(|((of, _), _)| held_back && *of == name.0);
        owners.map(|(_, pace)| pace.restart(now)).min()
    }

    /// Wakes the owners below one rule object that have Pods to delete while the budget has room. `denying` says whether
    /// an owner of its Pods can't be read. Returns when to look again, if there is a reason to.
    pub async fn wake(
        &self,
        context: &Context,
        name: &RuleName,
        denying: bool,
    ) -> Option<Duration> {
        match denying {
            true => self.denying.lock().insert(name.clone()),
            false => self.denying.lock().remove(name),
        };
        let mut due = self.due(context, name);
        self.send(context, &mut due).await;
        for back in std::mem::take(&mut due.set_back) {
            if set_back(context, &back).await
                && let Some(pace) = self.set_backs.lock().get_mut(&back.key)
            {
                due.look_after(pace.wrote(Instant::now()));
            }
        }
        due.again
    }

    /// Wakes the owners that are due. An owner that was woken in vain is left alone while a ledger that holds its Pods can't
    /// be written: each deletion would be denied.
    async fn send(&self, context: &Context, due: &mut Due) {
        let mut asked = HashMap::new();
        for wake in std::mem::take(&mut due.wake) {
            let mut writable = true;
            for key in &wake.rules {
                let name = (key.namespace.clone(), key.name.clone());
                if wake.first && !self.is_unwritable(&name) {
                    continue;
                }
                let can = match asked.get(key) {
                    Some(can) => *can,
                    None => self.ask(context, key, &name, due).await,
                };
                asked.insert(key.clone(), can);
                writable &= can;
            }
            if !writable {
                if let Some(pace) = self.owners.lock().get_mut(&wake.key) {
                    pace.uncount();
                }
            } else if wake.send(context).await
                && let Some(pace) = self.owners.lock().get_mut(&wake.key)
            {
                due.look_after(pace.wrote(Instant::now()));
            }
        }
    }

    /// Asks the API server whether the ledger of a rule object can be written.
    async fn ask(&self, context: &Context, key: &RuleKey, name: &RuleName, due: &mut Due) -> bool {
        let Some(snapshot) = context.ledgers.latest(key) else {
            return false; // the rule is gone: a look at its end wakes the owners
        };
        let asked = context.ledgers.store().try_swap(key, &snapshot.claims);
        let failing = self.is_unwritable(name);
        let can = write_again("write a ledger (dry run)", failing, asked).await;
        match can {
            Ok(()) => {
                if let Some(pause) = self.writable(name) {
                    due.look_after(pause);
                }
            }
            Err(_) => {
                self.unwritable.lock().insert(name.clone(), true);
            }
        }
        can.is_ok()
    }

    fn due(&self, context: &Context, name: &RuleName) -> Due {
        let mut due = Due::default();
        let state = context.index.read();
        let (Some(home), Some(entry)) = (state.namespace(&name.0), state.rule(&name.0, &name.1))
        else {
            return due;
        };
        let now = Instant::now();
        let mut owners = self.owners.lock();
        owners.retain(|(namespace, uid), _| *namespace != name.0 || home.has_workload(uid));
        let (closed, sets) = (OnceCell::new(), OnceCell::new());
        for uid in entry.tally.owners() {
            let key = (name.0.clone(), uid.clone());
            let held = |w: &&Workload| look::deletes_more(home, uid, w);
            let Some(workload) = home.workload(uid).filter(held) else {
                owners.remove(&key);
                continue;
            };
            let closed = closed.get_or_init(|| self.closed(context, &state, &name.0, home));
            let seen = Seen::of(home, uid, workload, closed);
            let pod = look::messenger(home, uid).filter(|_| seen.free > 0);
            let Some(pod) = pod else {
                owners.remove(&key); // room that appears later is news
                let sets = sets.get_or_init(|| ReplicaSets::of(home));
                let place = (&*state, home, entry);
                self.without_room(context, place, sets, (uid, workload), &mut due);
                continue;
            };
            let pace = owners.entry(key.clone());
            let pace = pace.or_insert_with(|| Pace::new(seen, now, WAKES));
            match pace.turn(seen, now) {
                Turn::Wake(pause) => {
                    let rules = written(context, &name.0, home, uid);
                    due.wake.push(Wake {
                        rules,
                        ..Wake::of(&key, pod, pace)
                    });
                    due.look_after(pause);
                }
                Turn::Wait(pause) => due.look_after(pause),
                Turn::Rest => {}
            }
        }
        due
    }

    /// The rules of a namespace that let no available Pod go. None while the namespace is excluded from the webhooks.
    fn closed<'a>(
        &self,
        context: &Context,
        state: &State,
        namespace: &str,
        home: &'a Namespace,
    ) -> Vec<&'a RuleSet> {
        if is_excluded(context, namespace, home) {
            return Vec::new();
        }
        let denying = self.denying.lock();
        let denies = |entry: &Entry| {
            let rules = &entry.snapshot.rules;
            let name = (namespace.to_owned(), rules.name.clone());
            match room::allowed(&context.ledgers, state, entry) {
                Some(allowed) => allowed == 0 || denying.contains(&name),
                None => false,
            }
        };
        let closed = home.rules.values().filter(|entry| denies(entry));
        closed.map(|entry| &*entry.snapshot.rules).collect()
    }

    /// An owner has Pods to delete, and the rules let none of them go.
    fn without_room(
        &self,
        context: &Context,
        (state, home, entry): (&State, &Namespace, &Entry),
        sets: &ReplicaSets<'_>,
        (uid, workload): (&Uid, &Workload),
        due: &mut Due,
    ) {
        let rules = &entry.snapshot.rules;
        let mut set_backs = self.set_backs.lock();
        set_backs
            .retain(|(namespace, uid), _| *namespace != rules.namespace || home.has_workload(uid));
        if let Some(overhang) = rollouts::overhang(home, sets, uid, workload) {
            let (now, seen) = (Instant::now(), overhang.seen(home, uid));
            let key = (rules.namespace.clone(), uid.clone());
            let pace = set_backs.entry(key);
            let pace = pace.or_insert_with(|| Pace::new(seen, now, SET_BACKS));
            let turn = pace.turn(seen, now);
            match turn {
                Turn::Wake(pause) => {
                    let failing = pace.is_failing();
                    let back = SetBack::of(rules, uid, workload, &overhang);
                    due.set_back
                        .extend(back.map(|back| SetBack { failing, ..back }));
                    due.look_after(pause);
                }
                Turn::Wait(pause) => due.look_after(pause),
                Turn::Rest => {}
            }
            if turn != Turn::Rest && !pace.is_failing() {
                return;
            }
        }
        if let Some((about, message)) =
            standstill(context, (state, home, entry), sets, uid, workload)
        {
            context.events.record(&about, true, ROLLOUT_HELD, &message);
        }
    }
}

impl SetBack {
    fn of(rules: &RuleSet, uid: &Uid, set: &Workload, overhang: &Overhang<'_>) -> Option<SetBack> {
        let (old, failing) = (&set.name, &overhang.failing.name);
        let (wanted, living) = (overhang.wanted, overhang.living);
        let rule = &rules.name;
        Some(SetBack {
            key: (rules.namespace.clone(), uid.clone()),
            name: old.clone(),
            version: set.version,
            living,
            about: about(rules, set, overhang.deployment)?,
            message: format!(
                "the replicas of the old ReplicaSet {old} were set from {wanted} back to its {living} Pods: \
                 PodTransitionRule {rule} lets none of them go now, and the Deployment controller does not take away the \
                 failing Pods of ReplicaSet {failing} while {old} has more available Pods than replicas"
            ),
            failing: false,
        })
    }
}

/// Returns whether the number was written.
async fn set_back(context: &Context, back: &SetBack) -> bool {
    let (namespace, uid) = &back.key;
    let (version, living) = (back.version, back.living);
    let place = (namespace.as_str(), back.name.as_str());
    let scale = replicasets::scale(&context.client, place, uid, version, living);
    let scale = write_again("set the replicas of a ReplicaSet back", back.failing, scale);
    let written = scale.await.is_ok();
    if written {
        info!(
            %namespace,
            replicaset = back.name,
            replicas = living,
            "set the replicas of an old ReplicaSet back to its Pods"
        );
        let (about, message) = (&back.about, &back.message);
        context.events.record(about, false, SET_BACK, message);
    }
    written
}

/// Whether the API server sends no requests of the namespace to the webhooks.
fn is_excluded(context: &Context, namespace: &str, home: &Namespace) -> bool {
    let own = Some(context.namespace.as_str());
    effect::exclusion(namespace, home.labels.as_ref(), own).is_some()
}

/// The rule objects in whose ledgers a deletion of a Pod of the owner is written.
fn written(context: &Context, namespace: &str, home: &Namespace, uid: &Uid) -> Vec<RuleKey> {
    if is_excluded(context, namespace, home) {
        return Vec::new();
    }
    let limiting = |entry: &&Entry| entry.snapshot.rules.limits().next().is_some();
    look::covering(home, uid)
        .filter(limiting)
        .map(Entry::key)
        .collect()
}

/// A Deployment that cannot go on by itself, and why.
fn standstill(
    context: &Context,
    (state, home, entry): (&State, &Namespace, &Entry),
    sets: &ReplicaSets<'_>,
    uid: &Uid,
    replica_set: &Workload,
) -> Option<(ObjectReference, String)> {
    let rules = &entry.snapshot.rules;
    let limit = room::gauges(&context.ledgers, state, entry)?.limit;
    let (deployment, cause) = rollouts::cause(home, sets, rules, uid, replica_set, limit)?;
    let about = about(rules, replica_set, deployment)?;
    Some((about, cause.explain(&deployment.name, &rules.name)))
}

/// What an Event about the Deployment of a ReplicaSet refers to.
fn about(
    rules: &RuleSet,
    replica_set: &Workload,
    deployment: &Workload,
) -> Option<ObjectReference> {
    let owner = replica_set.controller.as_ref()?;
    Some(ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        namespace: Some(rules.namespace.clone()),
        name: Some(deployment.name.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    })
}
