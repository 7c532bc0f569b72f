//! Explains what the rollout or the scaling of a workload waits for: makes a [`WorkloadDiagnosis`] from the workload and
//! its Pods, for `kubectl operating why cls/NAME` and for the built-in kinds. The decisions about each Pod are those of
//! the diagnosis of a Pod.
//!
//! | File | Content |
//! |---|---|
//! | `facts` | the data of a diagnosis |
//! | `stored` | what stored workloads say about their rollouts |
//! | `waits` | what each Pod waits for |
//! | `groups` | the Pods grouped by what they wait for |
//! | `covering` | the rules and PodDisruptionBudgets that select Pods of the workload |
//! | `summary` | the answer in one sentence |
//! | `next_steps` | what the user can do |

mod covering;
pub mod facts;
mod groups;
mod next_steps;
mod stored;
mod summary;
mod waits;

use std::cell::OnceCell;
use std::sync::Arc;

use jiff::Timestamp;

use self::facts::WorkloadDiagnosis;
pub use self::stored::StoredWorkload;
pub use self::summary::{describe_counts, describe_group};
use super::rules::BudgetTable;
use super::{ObservedPod, PodContext, RuleObject, rollout_owner, unenforced_reason};
use crate::api::operationjob::OperationJob;
use crate::domain::pod::Pod;

/// The observed state from which the diagnosis of a workload is made.
#[derive(Clone, Debug)]
pub struct ObservedWorkload {
    /// The workload.
    pub workload: StoredWorkload,
    /// Its Pods. `None` if Pods could not be read.
    pub pods: Option<Vec<Arc<Pod>>>,
    /// The managed Pods of the namespace.
    pub managed_pods: Vec<Arc<Pod>>,
    /// The rule objects of the namespace. `None` if they could not be read.
    pub rules: Option<Vec<RuleObject>>,
    /// The OperationJobs of the namespace. `None` if they were not read.
    pub jobs: Option<Vec<OperationJob>>,
    /// The context of its Pods. A dry run, an employer and a scheduler's message belong to single Pods and are not in it.
    pub context: PodContext,
    /// What could not be read, and the cause.
    pub notes: Vec<String>,
}

impl ObservedWorkload {
    /// The observed state of one of its Pods.
    fn observed_pod(&self, pod: &Arc<Pod>, now: Timestamp) -> ObservedPod {
        ObservedPod {
            pod: Arc::clone(pod),
            rules: self.rules.clone().unwrap_or_default(),
            pods: self.managed_pods.clone(),
            controller: Some(self.workload.controller.clone()),
            jobs: self.jobs.clone(),
            context: self.context.clone(),
            notes: Vec::new(),
            now,
        }
    }
}

/// Whether the Pod belongs to a Deployment, by the names that the Deployment controller makes. It is for users who may
/// not list ReplicaSets.
pub fn is_of_deployment(pod: &Pod, deployment: &str) -> bool {
    rollout_owner(pod).is_some_and(|owner| owner == format!("Deployment {deployment}"))
}

/// Makes the diagnosis of a workload.
pub fn diagnose_workload(observed: &ObservedWorkload, now: Timestamp) -> WorkloadDiagnosis {
    let stored = &observed.workload;
    let pods = observed.pods.as_deref().unwrap_or_default();
    let budgets = BudgetTable::default();
    // One value is used for all Pods, because it holds all Pods of the namespace.
    let mut pod_view = pods.first().map(|pod| observed.observed_pod(pod, now));
    let unenforced = pod_view.as_ref().and_then(unenforced_reason);
    let excluded = unenforced.as_ref().filter(|reason| reason.excluded);
    let excluded = excluded.map(|reason| reason.reason.clone());
    let mut unknown = Vec::new();
    if observed.pods.is_none() {
        unknown.push("which Pods wait is not known");
    } else if observed.rules.is_none() {
        unknown.push("which rules hold its Pods is not known");
    }
    let mut groups = Vec::new();
    let mut rules = Vec::new();
    if let Some(view) = &mut pod_view {
        let context = waits::WaitContext {
            stored,
            budgets: &budgets,
            pods,
            own_limit: OnceCell::new(),
            excluded: excluded.as_deref(),
        };
        groups = groups::wait_groups(&context, view, pods);
        rules = covering::covering_rules(&context, view, pods);
    }
    if observed.pods.is_some() {
        groups.extend(groups::missing_group(stored, pods));
        groups.extend(groups::surplus_group(stored, pods, &rules));
        groups.extend(groups::uncounted_group(stored, &groups, &rules));
    }
    groups.sort_by_key(|group| (group.kind, std::cmp::Reverse(group.count)));
    if let Some(unenforced) = &unenforced {
        covering::mark_unenforced(&mut rules, &unenforced.reason);
    }
    let mut diagnosis = WorkloadDiagnosis {
        summary: String::new(),
        workload: stored.facts.clone(),
        problems: stored.problems.clone(),
        waits: groups,
        rules,
        disruption_budgets: covering::disruption_budgets(&observed.context, pods),
        next: Vec::new(),
        notes: observed.notes.clone(),
    };
    let unmanaged = pods.iter().filter(|pod| !pod.is_managed()).count();
    diagnosis
        .workload
        .remarks
        .extend(summary::describe_unmanaged(unmanaged));
    diagnosis.summary = summary::summarize(&diagnosis, stored, &unknown);
    diagnosis.next = next_steps::next_steps(&diagnosis);
    diagnosis
}
