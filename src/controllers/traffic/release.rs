//! The end of management: Pods lose their marks, and the employer loses its finalizer. Members stay registered, so that
//! nobody who serves is taken off.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::cache_waits::UNSYNCED_RETRY;
use super::{EmployerMemory, TrafficController, mark_writes, pods};
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::PodMarks;

impl TrafficController {
    /// An employer gives up the management of its traffic: Pods lose their marks, and the employer its finalizer.
    /// Members stay registered, so that nobody who serves is taken off.
    pub(super) async fn release_employer(
        &self,
        employer: &CachedEmployer,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        memory.plans.clear();
        memory.places.clear();
        memory.served = None;
        let marked = pods::marked_pods(&self.context, &employer.name);
        match self.release_pods(&employer.name, marked, memory).await? {
            Released::All => {
                self.finish(employer).await?;
                Ok(ReconcileOutcome::Done)
            }
            Released::Some(pause, Some(error)) => {
                self.report_failure(employer, &error, pause, memory).await
            }
            Released::Some(pause, None) => Ok(ReconcileOutcome::After(pause)),
        }
    }

    /// The cache does not have the employer. Only the API server can tell that it is gone, or that it has given up the
    /// management of its traffic: the cache may be late.
    pub(super) async fn release_pods_of_none(
        &self,
        name: &EmployerName,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let mut marked = pods::marked_pods(&self.context, name);
        if marked.is_empty() && memory.marked.is_empty() {
            self.watched.set(name, HashSet::new());
            return Ok(forget_writes(memory));
        }
        match self.read_employer(name).await? {
            Some(live) if live.concerns_traffic() => {
                return Ok(ReconcileOutcome::After(UNSYNCED_RETRY));
            }
            // It may have been replaced by its manifest while nobody led. Without its label, no program of this form
            // manages it. A finalizer alone may be that of another program.
            Some(_) if memory.marked.is_empty() => {
                marked.retain(|pod| PodMarks::of(name, pod).expected);
            }
            _ => {}
        }
        Ok(match self.release_pods(name, marked, memory).await? {
            Released::All => forget_writes(memory),
            Released::Some(pause, _) => ReconcileOutcome::After(pause),
        })
    }

    /// Removes all marks of an employer from the Pods of the cache that are `marked`, and from those that it has lost.
    async fn release_pods(
        &self,
        name: &EmployerName,
        mut marked: Vec<Arc<Pod>>,
        memory: &mut EmployerMemory,
    ) -> Result<Released, ReconcileOutcome> {
        let (lost, unread) = pods::read_lost_pods(&self.context, name, &memory.marked).await?;
        marked.extend(lost);
        let writes = &mut memory.mark_writes;
        let result = mark_writes::release_all(&self.context, name, &marked, writes).await;
        if result.moved {
            return Err(ReconcileOutcome::Retry);
        }
        if let Some(pause) = result.again {
            return Ok(Released::Some(pause, result.error));
        }
        memory.marked = unread;
        if !memory.marked.is_empty() {
            return Ok(Released::Some(UNSYNCED_RETRY, None));
        }
        self.watched.set(name, HashSet::new());
        Ok(Released::All)
    }
}

/// Forgets the old writes of an employer that does not exist. As long as others are left, its memory stays: another
/// program may put the marks back again and again. Nothing else would end that, so it is looked at again.
fn forget_writes(memory: &mut EmployerMemory) -> ReconcileOutcome {
    let left = memory.mark_writes.forget_old(Instant::now());
    left.map_or(ReconcileOutcome::Done, ReconcileOutcome::After)
}

/// Which Pods have lost their marks.
enum Released {
    /// All.
    All,
    /// Not all. Contains the pause before the others, and why they still have marks.
    Some(Duration, Option<String>),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::convert::Infallible;

    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::super::super::ControllerContext;
    use super::*;
    use crate::api::keys;

    fn pod(version: &str, employer: Option<&EmployerName>) -> Value {
        let entries = employer.map(|employer| json!({ (employer.key()): employer.finalizer() }));
        let expected = entries.map(|entries| json!({ "expectedFinalizers": entries }).to_string());
        json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "web-0", "resourceVersion": version,
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
                "annotations": expected.map(|text| json!({ (keys::AVAILABLE_CONDITIONS): text })),
            },
        })
    }

    /// Names come from annotations of Pods, so the leader may see a new one with each write of a Pod.
    #[tokio::test(start_paused = true)]
    async fn released_employer_that_does_not_exist_leaves_no_memory() {
        let service = tower::service_fn(|_: http::Request<Body>| async {
            let body = Body::from(pod("8", None).to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::new(body))
        });
        let context = ControllerContext::at_epoch(Client::new(service, "default"));
        let cache = |pod| {
            context
                .index
                .apply_pod(serde_json::from_value(pod).unwrap())
        };
        let name = EmployerName::new("Service", "shop", "web");
        cache(pod("7", Some(&name)));
        let controller = TrafficController::new(Arc::clone(&context), Arc::default());
        let mut memory = EmployerMemory::default();
        let released = controller.release_pods_of_none(&name, &mut memory).await;
        // The write is remembered for a while: another program may put the marks back again and again.
        let Ok(ReconcileOutcome::After(pause)) = released else {
            panic!("{released:?}");
        };
        assert!(!memory.mark_writes.is_empty());
        cache(pod("8", None));
        tokio::time::advance(pause).await;
        let later = controller.release_pods_of_none(&name, &mut memory).await;
        assert!(matches!(later, Ok(ReconcileOutcome::Done)), "{later:?}");
        assert!(memory.mark_writes.is_empty());
    }
}
