//! Explains why a Pod waits: makes a [`Diagnosis`] from the observed state of a Pod, for `kubectl operating why` and
//! for Events. `operationjob` explains an OperationJob.
//!
//! | File | Content |
//! |---|---|
//! | `facts` | the data of a diagnosis |
//! | `operations` | what each lifecycle ID waits for |
//! | `rules` | the decision of each rule, and the Pods that use its budget |
//! | `pod_context` | the scheduler, PodDisruptionBudgets, the API server's answer to a dry run |
//! | `deletion_path` | whether a deletion goes through the lifecycle |
//! | `owner` | what the Pod's controller does to the Pod |
//! | `decorations`, `decoration_stays`, `decoration_waits` | the PodDecorations that the Pod has or should have |
//! | `summary` | the answer in one sentence, and what happens next |
//! | `pod_jobs` | the OperationJobs that are not finished with the Pod |
//! | `operationjob` | why an OperationJob waits |
//! | `traffic` | what the Services of a Pod say about its traffic, and why the traffic of a Service waits |
//! | `stamps` | the times in objects and labels |
//! | `budget` | the gauges of rule objects, the tightest first |
//! | `wait_notices` | which waits cause an Event |
//! | `workload` | what the rollout or the scaling of a workload waits for |

pub(crate) mod budget;
mod decoration_stays;
#[cfg(test)]
mod decoration_tests;
mod decoration_waits;
mod decorations;
pub(crate) mod deletion_path;
pub mod facts;
pub mod operationjob;
mod operations;
mod owner;
pub(crate) mod pod_context;
mod pod_jobs;
#[cfg(test)]
mod pod_jobs_tests;
mod rules;
mod stamps;
mod summary;
#[cfg(test)]
mod tests;
pub mod traffic;
pub(crate) mod wait_notices;
pub mod workload;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use decorations::may_wait_for_max_unavailable;
pub use facts::Diagnosis;
use facts::{ClaimFacts, PodFacts};
pub use owner::may_be_bounded;
pub use pod_context::PodContext;
use rules::BudgetTable;
use stamps::{parse_stamp, parse_time};

use super::lifecycle::{LifecycleWrite, Phase, min_ready, restarts, stored_phases};
use super::not_ready::NotReadyCause;
use super::pod::Pod;
use super::rules::RuleSet;
use super::rules::conditions::{self, rollouts_held};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::operationjob::OperationJob;
use crate::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus};

/// A rule object, stored and compiled.
#[derive(Clone, Debug)]
pub struct RuleObject {
    /// The stored object.
    pub object: Arc<PodTransitionRule>,
    /// The compiled rules.
    pub set: Arc<RuleSet>,
}

impl RuleObject {
    /// Compiles an object.
    pub fn compile(object: PodTransitionRule) -> RuleObject {
        RuleObject {
            set: Arc::new(RuleSet::compile(&object)),
            object: Arc::new(object),
        }
    }

    fn status(&self) -> Option<&PodTransitionRuleStatus> {
        self.object.status.as_ref()
    }

    /// The status of the object, if it describes the present spec.
    pub(in crate::domain) fn current_status(&self) -> Option<&PodTransitionRuleStatus> {
        let status = self.status()?;
        let current = status.observed_generation == self.set.generation;
        (current && status.observed_generation > 0).then_some(status)
    }

    /// The claims in the status: the UID of each Pod, and the operation.
    pub(in crate::domain) fn claims(&self) -> impl Iterator<Item = (&str, &str)> {
        let ledger = self.status().and_then(|status| status.ledger.as_ref());
        let claims = ledger.into_iter().flat_map(|ledger| &ledger.claims);
        claims.map(|claim| (claim.pod_uid.as_str(), claim.operation.as_str()))
    }

    /// The limit that the server has counted, if the object has only one availability rule. The status does not show on
    /// how many Pods a percentage is based: Pods without an owner are left out.
    pub(in crate::domain) fn counted_limit(&self) -> Option<u32> {
        let is_single = self.set.availability_limits().count() == 1;
        let limit = self.current_status()?.unavailable_limit;
        u32::try_from(limit.filter(|_| is_single)?).ok()
    }

    /// Why the rules of the object hold no deletion, by its condition `Enforced`. `None` if they are enforced.
    pub(in crate::domain) fn unenforced(&self) -> Option<&str> {
        UNENFORCED_REASONS
            .into_iter()
            .find_map(|reason| self.unenforced_message(reason))
            .map(|(_, message)| message)
    }

    /// Why the object denies every disruption of an available Pod, whatever its counts are.
    pub(in crate::domain) fn denies_all_message(&self) -> Option<&str> {
        self.denies_all_condition().map(|c| c.message.as_str())
    }

    /// The reason and the message of the condition `Enforced`, if it is False for this reason.
    fn unenforced_message(&self, reason: &str) -> Option<(&str, &str)> {
        let mut conditions = self.status()?.conditions.iter();
        let failed = conditions.find(|c| c.type_ == "Enforced" && c.status == "False")?;
        (failed.reason == reason).then_some((failed.reason.as_str(), failed.message.as_str()))
    }

    /// The condition because of which the object denies every disruption of an available Pod, whatever its counts are.
    fn denies_all_condition(&self) -> Option<&Condition> {
        let mut conditions = self.status()?.conditions.iter();
        conditions.find(|c| is_denying_condition(c))
    }

    /// The message of the condition `Matched`, if the object selects only some of the Pods of an owner.
    fn partly_matched_message(&self) -> Option<&str> {
        let mut conditions = self.status()?.conditions.iter();
        let matched = conditions.find(|c| c.reason == "TemplateNotMatched")?;
        Some(&matched.message)
    }

    /// The sentence of the condition `RolloutsHeld` about the owner whose rollout replaces the Pod, if the rollout is
    /// blocked.
    fn held_rollout_message(&self, pod: &Pod) -> Option<&str> {
        let owner = rollout_owner(pod)?;
        let mut conditions = self.status()?.conditions.iter();
        let condition = conditions.find(|c| c.type_ == "RolloutsHeld" && c.status == "True")?;
        rollouts_held::owner_sentence(&condition.message, &owner)
    }
}

/// The owner whose rollout replaces a Pod, as `Kind name`. For a Pod of a ReplicaSet it is the Deployment. The
/// Deployment controller makes the name of a ReplicaSet from the name of the Deployment and the value of a label of its
/// Pods.
fn rollout_owner(pod: &Pod) -> Option<String> {
    let owner = pod.controller()?;
    if owner.kind != "ReplicaSet" {
        return Some(format!("{} {}", owner.kind, owner.name));
    }
    let hash = pod.label(keys::POD_TEMPLATE_HASH)?;
    let deployment = owner.name.strip_suffix(hash)?.strip_suffix('-')?;
    Some(format!("Deployment {deployment}"))
}

/// Whether a condition says that owners can't be read or do not set their number of replicas, or that the ledger can't
/// be used.
fn is_denying_condition(condition: &Condition) -> bool {
    let is_false = |type_: &str| condition.type_ == type_ && condition.status == "False";
    is_false(conditions::LEDGER_USABLE)
        || is_false("ExpectedKnown")
            && conditions::DENYING_REASONS.contains(&condition.reason.as_str())
}

/// Reasons of the condition `Enforced` that concern all rules of a namespace.
const UNENFORCED_REASONS: [&str; 3] = ["NamespaceExcluded", "NotEnforced", "NotRegistered"];

/// Why the rules of the namespace are not enforced.
struct UnenforcedReason {
    /// A clause, with the remedy.
    reason: String,
    /// Whether the API server sends no request of the namespace to the server. If false, operations still wait for
    /// their rules.
    excluded: bool,
}

/// The controller of a Pod.
#[derive(Clone, Debug)]
pub enum PodController {
    /// A CollaSet.
    CollaSet(Arc<CollaSet>),
    /// Another kind, and its `spec.replicas` if it could be read.
    Other {
        /// Number of Pods that the controller asks for.
        replicas: Option<u32>,
    },
    /// The controller does not exist any more.
    Gone,
}

/// The observed state from which a diagnosis is made.
#[derive(Clone, Debug)]
pub struct ObservedPod {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// The rule objects of its namespace.
    pub rules: Vec<RuleObject>,
    /// The managed Pods of the namespace that could be read. They are needed if a rule covers the Pod, or if
    /// [`may_be_bounded`] or [`may_wait_for_max_unavailable`] is true.
    pub pods: Vec<Arc<Pod>>,
    /// The controller of the Pod. `None` if there is none, or if it could not be read.
    pub controller: Option<PodController>,
    /// The OperationJobs of the namespace. `None` if they were not read.
    pub jobs: Option<Vec<OperationJob>>,
    /// The context of the Pod, such as its namespace and its PodDisruptionBudgets.
    pub context: PodContext,
    /// What could not be read, and the cause.
    pub notes: Vec<String>,
    /// The present time.
    pub now: Timestamp,
}

impl ObservedPod {
    /// Whether the Pod belongs to a CollaSet that is being deleted.
    fn is_set_deleted(&self) -> bool {
        matches!(&self.controller, Some(PodController::CollaSet(set)) if set.metadata.deletion_timestamp.is_some())
    }
}

/// Makes the diagnosis of a Pod.
pub fn diagnose(observed: &ObservedPod) -> Diagnosis {
    let unenforced = unenforced_reason(observed);
    let excluded = unenforced.as_ref().filter(|u| u.excluded);
    let excluded = excluded.map(|u| u.reason.as_str());
    let budgets = BudgetTable::default();
    let rules = rules::rule_facts(observed, &budgets, excluded, None);
    let mut diagnosis = Diagnosis {
        summary: String::new(),
        pod: pod_facts(&observed.pod, observed.context.unscheduled.as_deref()),
        owner: owner::owner_facts(observed, &rules),
        decorations: Vec::new(),
        jobs: pod_jobs::pod_job_facts(observed),
        traffic: traffic::pod_traffic_facts(
            &observed.pod,
            &observed.context.employers,
            observed.now,
        ),
        operations: Vec::new(),
        rules,
        disruption_budgets: pod_context::disruption_budget_facts(
            &observed.context.disruption_budgets,
            &observed.pod,
        ),
        deletion: observed.context.dry_run_deletion.clone(),
        claims: claim_facts(observed),
        next: Vec::new(),
        notes: observed.notes.clone(),
    };
    diagnosis.operations =
        operations::operation_facts(observed, &diagnosis.rules, &budgets, excluded);
    diagnosis.decorations = decorations::decoration_facts(observed, &diagnosis.operations);
    if let Some(unenforced) = &unenforced {
        rules::mark_unenforced(&mut diagnosis.rules, &unenforced.reason);
    }
    let reason = unenforced.map(|u| u.reason);
    diagnosis.summary = summary::summarize(observed, &diagnosis, reason.as_deref());
    if diagnosis.operations.is_empty() {
        diagnosis.summary += &pod_jobs::describe_first_wait(&diagnosis.jobs);
    }
    diagnosis.summary += &traffic::describe_first(&diagnosis.traffic);
    diagnosis.next = summary::next_steps(observed, &diagnosis);
    diagnosis
}

/// Why the rules of the namespace are not enforced, by the namespace or by the condition of a rule. These reasons apply
/// to all rules of a namespace.
fn unenforced_reason(observed: &ObservedPod) -> Option<UnenforcedReason> {
    if let Some(reason) = observed.context.excluded.clone() {
        return Some(UnenforcedReason {
            reason,
            excluded: true,
        });
    }
    UNENFORCED_REASONS.into_iter().find_map(|reason| {
        let mut rules = observed.rules.iter();
        let (_, message) = rules.find_map(|rule| rule.unenforced_message(reason))?;
        Some(UnenforcedReason {
            reason: message.to_owned(),
            excluded: reason == "NamespaceExcluded",
        })
    })
}

fn pod_facts(pod: &Pod, unscheduled: Option<&str>) -> PodFacts {
    PodFacts {
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        managed: pod.is_managed(),
        available: pod.is_available(),
        unavailable_because: out_of_service_reason(pod, unscheduled),
        ready: pod.is_ready(),
        readiness_since: readiness_since(pod),
        terminating: pod.is_terminating(),
        deletion_due: pod
            .metadata
            .deletion_timestamp
            .as_deref()
            .and_then(parse_time),
        to_delete: pod.label(keys::TO_DELETE).is_some(),
        finalizers: pod.metadata.finalizers.clone(),
    }
}

/// Why a Pod does not serve. `None` if it serves, or will serve in a moment.
///
/// A cause of the scheduler or the kubelet comes first. The readiness gate of the lifecycle only follows them.
fn out_of_service_reason(pod: &Pod, unscheduled: Option<&str>) -> Option<String> {
    if pod.is_available() || !pod.is_managed() {
        return None;
    }
    let cause = NotReadyCause::of_pod(pod);
    let describe = |cause: NotReadyCause| cause.describe(pod, unscheduled);
    let is_gone = pod.is_terminating() || pod.is_finished();
    let operation = operation_off_traffic(pod).filter(|_| !is_gone);
    if let Some((id, phase)) = &operation {
        let operation = format!("operation {id} keeps it off traffic ({})", phase.name());
        return Some(match cause.filter(NotReadyCause::is_stuck) {
            Some(cause) => format!("{}; {operation}", describe(cause)),
            None => operation,
        });
    }
    let is_to_serve = !is_gone
        && pod.label(keys::STAY_OFFLINE).is_none()
        && restarts::pending_restarts(pod).is_none();
    if let Some(cause) = cause.filter(|_| is_to_serve) {
        return Some(describe(cause));
    }
    let obstacle = LifecycleWrite::from_write(Some(pod), pod, 0).service_label_obstacle();
    if let Some(obstacle) = obstacle {
        return Some(obstacle.into_owned());
    }
    let seconds = min_ready::min_ready_seconds(pod).filter(|seconds| *seconds > 0);
    Some(match (seconds, readiness_since(pod)) {
        (Some(seconds), Some(since)) => format!(
            "it is Ready since {since}, and available once it has been Ready for {seconds} s (minReadySeconds of its CollaSet)"
        ),
        _ => "the controller has yet to label it podopslifecycle.kusionstack.io/service-available"
            .to_owned(),
    })
}

/// The first operation that keeps a Pod off traffic.
fn operation_off_traffic(pod: &Pod) -> Option<(String, Phase)> {
    let mut phases = stored_phases(pod).into_iter();
    phases.find(|(_, phase)| !matches!(phase, Phase::Idle | Phase::PreCheck))
}

/// When the condition Ready changed last. If the kubelet has not reported it, this is the creation time of the Pod.
fn readiness_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = &pod.status.conditions;
    let ready = conditions.iter().find(|c| c.type_ == "Ready");
    ready
        .and_then(|c| c.last_transition_time.as_deref())
        .or(pod.metadata.creation_timestamp.as_deref())
        .and_then(parse_time)
}

fn claim_facts(observed: &ObservedPod) -> Vec<ClaimFacts> {
    let rules = observed.rules.iter();
    let claims = rules.flat_map(|rule| {
        let ledger = rule.status().and_then(|s| s.ledger.as_ref());
        ledger
            .into_iter()
            .flat_map(|ledger| &ledger.claims)
            .map(|claim| (&rule.set.name, claim))
    });
    claims
        .filter(|(_, claim)| claim.pod_uid == observed.pod.metadata.uid)
        .map(|(object, claim)| ClaimFacts {
            object: object.clone(),
            operation: claim.operation.clone(),
            since: claim.since.0,
        })
        .collect()
}
