//! Wakes owners that no rule object covers any more, because a rule was deleted or its selector was changed. The run
//! for a rule object does not find these owners. Therefore this module remembers them until they have been woken.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::owner_backoff::{BackoffDecision, OwnerBackoff};
use super::owner_state::{self, OwnerState};
use super::wake::OwnerWake;
use super::{OwnerKey, shorter_pause};
use crate::controllers::ControllerContext;
use crate::ledger::store::Uid;

/// Maximum number of owners that one call of [`UncoveredOwners::add_uncovered_owners`] adds.
const MAX_UNCOVERED_OWNERS: usize = 100;
/// How many times each owner is woken. Another replica may deny the first deletion, because its cache is stale.
const UNCOVERED_OWNER_TRIES: u32 = 2;
/// An owner is forgotten after this time. By then its controller has retried by itself, because its backoff is at most
/// 1,000 s.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(20);

/// The uncovered owners whose controllers must be woken.
#[derive(Default)]
pub struct UncoveredOwners(Mutex<HashMap<OwnerKey, OwnerBackoff>>);

impl UncoveredOwners {
    /// Remembers the owners of a namespace that have Pods to delete and that no rule object covers.
    pub fn add_uncovered_owners(&self, context: &ControllerContext, namespace: &str) {
        let state = context.index.read_state();
        let Some(namespace_index) = state.namespace(namespace) else {
            return;
        };
        let (now, mut all) = (Instant::now(), self.0.lock());
        for uid in owner_state::uncovered_owners(namespace_index).take(MAX_UNCOVERED_OWNERS) {
            if let Some(workload) = namespace_index.workload(uid) {
                let all_free = namespace_index.living_pods_of(uid).count();
                let backoff = OwnerBackoff::new(
                    OwnerState::from_owner(namespace_index, uid, workload, all_free),
                    now,
                    UNCOVERED_OWNER_TRIES,
                );
                all.insert((namespace.to_owned(), uid.clone()), backoff);
            }
        }
    }

    /// Wakes the owners of a namespace that are due. Returns when to call this function again; `None` if nothing is
    /// left to do.
    pub async fn wake_due_owners(
        &self,
        context: &ControllerContext,
        namespace: &str,
    ) -> Option<Duration> {
        let (mut due, mut requeue_after) = (Vec::new(), None::<Duration>);
        {
            let (state, mut all, now) = (context.index.read_state(), self.0.lock(), Instant::now());
            let namespace_index = state.namespace(namespace);
            let deletes_more = |uid: &Uid| {
                let namespace_index = namespace_index?;
                let workload = namespace_index.workload(uid)?;
                owner_state::has_pods_to_delete(namespace_index, uid, workload)
                    .then(|| owner_state::pod_to_annotate(namespace_index, uid))?
            };
            all.retain(|key, backoff| {
                let (owner_namespace, uid) = key;
                if owner_namespace != namespace {
                    return true;
                }
                let Some(pod) = deletes_more(uid).filter(|_| backoff.age(now) < FORGOTTEN_AFTER)
                else {
                    return false;
                };
                let pause = match backoff.decide_attempt(now) {
                    BackoffDecision::Wake(pause) => {
                        due.push(OwnerWake::new_wake(key, pod, backoff, Vec::new()));
                        pause
                    }
                    BackoffDecision::Wait(pause) => pause,
                    BackoffDecision::Rest => return false,
                };
                requeue_after = shorter_pause(requeue_after, pause);
                true
            });
        }
        for wake in due {
            if wake.send_wake(context).await
                && let Some(backoff) = self.0.lock().get_mut(&wake.key)
            {
                requeue_after =
                    shorter_pause(requeue_after, backoff.record_owner_write(Instant::now()));
            }
        }
        requeue_after
    }
}
