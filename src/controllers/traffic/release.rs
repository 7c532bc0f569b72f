//! The end of management: Pods lose their marks, and the employer loses its finalizer. Members stay registered, so that
//! nobody who serves is taken off.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

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
            memory.mark_writes.clear();
            return Ok(ReconcileOutcome::Done);
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
            Released::All => ReconcileOutcome::Done,
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

/// Which Pods have lost their marks.
enum Released {
    /// All.
    All,
    /// Not all. Contains the pause before the others, and why they still have marks.
    Some(Duration, Option<String>),
}
