//! Wakes controllers whose deletions were denied.
//!
//! ReplicaSet, StatefulSet, DaemonSet and Job controllers retry a denied DELETE with exponential backoff of up to 1,000 s
//! (client-go's default rate limiter), and nothing tells them when a budget has room again. But each of them looks at its
//! object at once when one of its Pods changes. Therefore the leader changes an annotation of one Pod when the budget has
//! room and the owner still has Pods to delete.
//!
//! A wake is in vain, and adds to the controller's back-off, while the API server refuses writes of a ledger. From the
//! second wake on, the leader therefore asks by a dry run whether the ledgers can be written. It asks before the first wake
//! too if the last write of the status, which holds the ledger, failed.
//!
//! While the budget has no room, a Deployment may wait for its old ReplicaSet, see [`rollouts::Overhang`]. Then the leader
//! sets the number of the ReplicaSet back.

pub(super) mod look;
mod pace;
mod released;
mod set_back;
mod wake;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::look::Seen;
use self::pace::{Pace, Turn};
use self::released::Released;
use self::set_back::SetBack;
use self::wake::{Wake, ledgers_of};
use super::super::{Context, RuleName, room, write_again};
use super::rollouts::{self, ReplicaSets};
use crate::cluster::index::{Entry, Namespace, State};
use crate::cluster::sizes::Workload;
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

impl Retries {
    /// The start of a lead. Rules may have been deleted or changed while nobody led: wakes the owners that no rule covers
    /// in the namespaces that hold rules, or have held some lately. Ends when they have been woken, or at `stop`.
    pub async fn begin(&self, context: &Context, stop: &CancellationToken) {
        tokio::select! { () = stop.cancelled() => return, () = context.index.wait_listed() => {} }
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
                let wake = self.wake_released(context, namespace);
                let pause =
                    tokio::select! { () = stop.cancelled() => return, pause = wake => pause };
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
        let mut unwritable = self.unwritable.lock();
        match (written, unwritable.get(name)) {
            (false, _) => {
                unwritable.entry(name.clone()).or_insert(false);
            }
            (true, Some(false)) => {
                unwritable.remove(name);
            }
            // The ledger can be written too, most likely. The wakes that follow at once ask.
            (true, Some(true)) => {
                drop(unwritable);
                self.restart(&name.0);
            }
            (true, None) => {}
        }
    }

    /// Gives the owners of a namespace all their tries again, because wakes were held back. Returns when to look at them.
    fn restart(&self, namespace: &str) -> Option<Duration> {
        let (now, mut owners) = (Instant::now(), self.owners.lock());
        let owners = owners.iter_mut().filter(|((of, _), _)| of == namespace);
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
        let mut due = self.due(context, name).await;
        self.send(context, &mut due).await;
        for back in std::mem::take(&mut due.set_back) {
            if back.send(context).await
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

    /// Asks the API server whether the ledger of a rule object can be written and is kept.
    async fn ask(&self, context: &Context, key: &RuleKey, name: &RuleName, due: &mut Due) -> bool {
        let Some(snapshot) = context.ledgers.latest(key) else {
            return false; // the rule is gone: a look at its end wakes the owners
        };
        let asked = context.ledgers.store().try_swap(key, &snapshot.claims);
        let failing = self.is_unwritable(name);
        let can = write_again("write a ledger (dry run)", failing, asked).await;
        match can {
            Ok(true) => {
                let held_back = self.unwritable.lock().remove(name).unwrap_or(false);
                if held_back && let Some(pause) = self.restart(&name.0) {
                    due.look_after(pause);
                }
            }
            Ok(false) | Err(_) => {
                self.unwritable.lock().insert(name.clone(), true);
            }
        }
        can.is_ok_and(|kept| kept)
    }

    async fn due(&self, context: &Context, name: &RuleName) -> Due {
        let free = self.free(context, name).await;
        let mut due = Due::default();
        let state = context.index.read();
        let (Some(home), Some(entry)) = (state.namespace(&name.0), state.rule(&name.0, &name.1))
        else {
            return due;
        };
        let now = Instant::now();
        let mut owners = self.owners.lock();
        owners.retain(|(namespace, uid), _| *namespace != name.0 || home.has_workload(uid));
        let sets = OnceCell::new();
        for uid in entry.tally.owners() {
            let key = (name.0.clone(), uid.clone());
            let held = |w: &&Workload| look::deletes_more(home, uid, w);
            let Some(workload) = home.workload(uid).filter(held) else {
                owners.remove(&key);
                continue;
            };
            let Some(free) = free.get(uid) else {
                continue; // it began in this very moment: the change brings the rule back here
            };
            let seen = Seen::of(home, uid, workload, *free);
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
                    let rules = ledgers_of(context, &name.0, home, uid);
                    due.wake.push(Wake::of(&key, pod, pace, rules));
                    due.look_after(pause);
                }
                Turn::Wait(pause) => due.look_after(pause),
                Turn::Rest => {}
            }
        }
        due
    }

    /// How many Pods of each owner below a rule object may go by all rules, for the owners that have Pods to delete. The
    /// index is read in small parts: a change in between brings the rule back here.
    async fn free(&self, context: &Context, name: &RuleName) -> HashMap<Uid, usize> {
        let (held, rules) = {
            let state = context.index.read();
            let (Some(home), Some(entry)) =
                (state.namespace(&name.0), state.rule(&name.0, &name.1))
            else {
                return HashMap::new();
            };
            let deletes_more = |uid: &&Uid| {
                let workload = home.workload(uid);
                workload.is_some_and(|workload| look::deletes_more(home, uid, workload))
            };
            let held: Vec<Uid> = entry.tally.owners().filter(deletes_more).cloned().collect();
            let is_free = held.is_empty() || is_excluded(context, &name.0, home);
            // A rule that selects a Pod of an owner has the owner in its counts.
            let rules = home
                .rules
                .iter()
                .filter(|(_, entry)| !is_free && held.iter().any(|uid| entry.tally.has_owner(uid)));
            let rules: Vec<String> = rules.map(|(rule, _)| rule.clone()).collect();
            (held, rules)
        };
        let closed = self.closed(context, &name.0, rules).await;
        let mut free = HashMap::new();
        for uid in held {
            let pods: Vec<_> = {
                let state = context.index.read();
                let home = state.namespace(&name.0).into_iter();
                home.flat_map(|home| home.living(&uid).cloned()).collect()
            };
            free.insert(uid, look::free(&pods, &closed).await);
        }
        free
    }

    /// Those of these rules of a namespace that let no available Pod go. Each is measured on its own: that takes as long as
    /// its claims are many.
    async fn closed(
        &self,
        context: &Context,
        namespace: &str,
        rules: Vec<String>,
    ) -> Vec<Arc<RuleSet>> {
        let mut closed = Vec::new();
        for rule in rules {
            let name = (namespace.to_owned(), rule);
            let denies = {
                let state = context.index.read();
                let entry = state.rule(namespace, &name.1);
                entry.and_then(|entry| {
                    let allowed = room::allowed(&context.ledgers, &state, entry)?;
                    let denies = allowed == 0 || self.denying.lock().contains(&name);
                    denies.then(|| Arc::clone(&entry.snapshot.rules))
                })
            };
            closed.extend(denies);
            yield_now().await;
        }
        closed
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
                    let set = (uid, workload);
                    due.set_back
                        .extend(SetBack::of(rules, set, &overhang, pace));
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

/// Whether the API server sends no requests of the namespace to the webhooks.
fn is_excluded(context: &Context, namespace: &str, home: &Namespace) -> bool {
    let own = Some(context.namespace.as_str());
    effect::exclusion(namespace, home.labels.as_ref(), own).is_some()
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
