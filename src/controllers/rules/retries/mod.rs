//! Wakes controllers whose deletions were denied.
//!
//! ReplicaSet, StatefulSet, DaemonSet and Job controllers retry a denied DELETE with exponential backoff of up to 1,000 s
//! (client-go's default rate limiter), and nothing tells them when a budget has room again. But each of them looks at its
//! object at once when one of its Pods changes. Therefore the leader changes an annotation of one Pod when the budget has
//! room and the owner still has Pods to delete.

mod pace;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;

use self::pace::{Pace, Seen, Turn};
use super::super::{Context, RuleName, room, write};
use crate::api::keys;
use crate::cluster::index::{Entry, Namespace, State};
use crate::cluster::sizes::{Kind, Workload};
use crate::cluster::{pods, selected};
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// Owners that are woken at once when a rule object is gone.
const AT_ONCE: usize = 100;

/// Reason of the Event on a Deployment that cannot go on.
const ROLLOUT_HELD: &str = "RolloutHeld";

/// Remembers when each owner was woken. Kept by the leader only; a new leader starts anew.
#[derive(Default)]
pub struct Retries {
    owners: Mutex<HashMap<(String, Uid), Pace>>,
}

impl Retries {
    /// Wakes the owners below one rule object that have Pods to delete while the budget has room. Returns when to look
    /// again, if there is a reason to.
    pub async fn wake(&self, context: &Context, name: &RuleName) -> Option<Duration> {
        let (due, again) = self.due(context, name);
        for pod in due {
            wake(context, &pod).await;
        }
        again
    }

    /// A Pod of each owner to be woken now, and when to look again.
    fn due(&self, context: &Context, name: &RuleName) -> (Vec<Arc<Pod>>, Option<Duration>) {
        let state = context.index.read();
        let (Some(home), Some(entry)) = (state.namespace(&name.0), state.rule(&name.0, &name.1))
        else {
            return (Vec::new(), None);
        };
        let now = Instant::now();
        let (mut due, mut again) = (Vec::new(), None::<Duration>);
        let mut owners = self.owners.lock();
        owners.retain(|(namespace, uid), _| *namespace != name.0 || home.has_workload(uid));
        for uid in entry.tally.owners() {
            let key = (name.0.clone(), uid.clone());
            let Some(workload) = home.workload(uid).filter(|w| deletes_more(home, uid, w)) else {
                owners.remove(&key);
                continue;
            };
            let Some(pod) = free_pod(context, &state, home, uid) else {
                owners.remove(&key); // room that appears later is news
                if let Some((about, message)) = standstill(context, &state, home, entry, workload) {
                    context.events.record(&about, true, ROLLOUT_HELD, &message);
                }
                continue;
            };
            let seen = Seen {
                version: workload.version,
                alive: alive(home, uid),
            };
            let pace = owners.entry(key).or_insert_with(|| Pace::new(seen, now));
            let pause = match pace.turn(seen, now) {
                Turn::Wake(pause) => {
                    due.push(Arc::clone(pod));
                    Some(pause)
                }
                Turn::Wait(pause) => Some(pause),
                Turn::Rest => None,
            };
            again = again.into_iter().chain(pause).min();
        }
        (due, again)
    }

    /// A rule object of the namespace is gone: wakes the owners that it may have held up, at most [`AT_ONCE`].
    pub async fn gone(&self, context: &Context, namespace: &str) {
        self.owners.lock().retain(|(n, _), _| n != namespace);
        let held_up: Vec<Arc<Pod>> = {
            let state = context.index.read();
            let home = state.namespace(namespace).into_iter();
            let owners = home.flat_map(|home| home.workloads().map(move |(uid, w)| (home, uid, w)));
            let owners = owners.filter(|(home, uid, w)| deletes_more(home, uid, w));
            let pods = owners.filter_map(|(home, uid, _)| {
                let mut living = home.owned_by(uid).filter(|pod| is_alive(pod));
                living.next().cloned()
            });
            pods.take(AT_ONCE).collect()
        };
        for pod in held_up {
            wake(context, &pod).await;
        }
    }
}

/// Changes an annotation of a Pod, so that its controller looks at its object.
async fn wake(context: &Context, pod: &Pod) {
    let now = (context.now)().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let annotation = json!({ "annotations": { (keys::CONTROLLER_WOKEN): now } });
    let patch = pods::patch_metadata(&context.client, pod, annotation);
    if write("wake a controller", patch).await.is_ok() {
        let (namespace, pod) = (&pod.metadata.namespace, &pod.metadata.name);
        debug!(%namespace, %pod, "told the controller that the budget has room");
    }
}

/// Whether the owner's controller is to delete Pods: it has more than it wants, or its rollout is not finished. CollaSets
/// are our own and wait in the queue of the rule.
pub(super) fn deletes_more(home: &Namespace, uid: &str, workload: &Workload) -> bool {
    workload.kind != Kind::CollaSet && (home.surplus(uid) > 0 || workload.rolling)
}

fn alive(home: &Namespace, uid: &str) -> usize {
    home.owned_by(uid).filter(|pod| is_alive(pod)).count()
}

fn is_alive(pod: &Pod) -> bool {
    !pod.is_terminating() && !pod.is_finished()
}

/// A living Pod of the owner that every rule covering it has room for.
fn free_pod<'a>(
    context: &Context,
    state: &State,
    home: &'a Namespace,
    uid: &str,
) -> Option<&'a Arc<Pod>> {
    let has_room = |pod: &Pod| {
        state
            .covering(pod)
            .all(|entry| room::allowed(&context.ledgers, state, entry) != Some(0))
    };
    let living = home.owned_by(uid).filter(|pod| is_alive(pod));
    let first = living.min_by(|a, b| a.metadata.name.cmp(&b.metadata.name))?;
    has_room(first).then_some(first)
}

/// A Deployment that cannot go on by itself, and why.
fn standstill(
    context: &Context,
    state: &State,
    home: &Namespace,
    entry: &Entry,
    replica_set: &Workload,
) -> Option<(ObjectReference, String)> {
    let owner = replica_set.controller.as_ref()?;
    let rules = &entry.snapshot.rules;
    let limit = room::gauges(&context.ledgers, state, entry)?.limit;
    let (deployment, cause) = selected::held_rollout(home, rules, replica_set, limit)?;
    let about = ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        namespace: Some(rules.namespace.clone()),
        name: Some(deployment.name.clone()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    };
    Some((about, cause.explain(&deployment.name, &rules.name)))
}
