//! What happens next to an OperationJob, or what the user can do.

use jiff::Timestamp;

use super::facts::JobFacts;
use super::targets::JobTargets;
use crate::api::keys;
use crate::api::operationjob::{OperationJob, Progress};
use crate::domain::messages;

/// Most names in a sentence.
const MAX_NAMES: usize = 3;

/// What happens next, or what the user can do.
pub fn next_steps(
    job: &OperationJob,
    facts: &JobFacts,
    targets: &JobTargets,
    now: Timestamp,
) -> Vec<String> {
    if facts.deleting_since.is_some() {
        return deletion_steps(facts, targets);
    }
    let steps = [
        describe_unseen_change(job, facts),
        pod_step(facts, targets),
        partition_step(facts, targets),
        failure_step(targets),
        describe_ttl(facts, targets, now),
    ];
    steps.into_iter().flatten().collect()
}

/// The steps after which a job that is being deleted is gone.
fn deletion_steps(facts: &JobFacts, targets: &JobTargets) -> Vec<String> {
    let to_release = targets.listed.iter().filter(|target| target.to_release);
    let names: Vec<&str> = to_release.map(|target| &*target.name).collect();
    let (own, others): (Vec<&str>, Vec<&str>) = facts
        .finalizers
        .iter()
        .map(String::as_str)
        .partition(|finalizer| *finalizer == keys::PROTECTED_FINALIZER);
    let mut steps = Vec::new();
    if !own.is_empty() {
        let finalizer = keys::PROTECTED_FINALIZER;
        steps.push(match names.len() {
            0 => format!("the controller removes finalizer {finalizer}"),
            _ => format!(
                "the controller withdraws what the job asked of {}, and then removes finalizer {finalizer}",
                messages::list_names(&names, MAX_NAMES)
            ),
        });
    }
    if !others.is_empty() {
        let others = others.join(", ");
        steps.push(format!("other programs remove these finalizers: {others}"));
    }
    steps
}

fn describe_unseen_change(job: &OperationJob, facts: &JobFacts) -> Option<String> {
    let status = job.status.as_ref();
    let observed = status.map_or(0, |status| status.observed_generation);
    if facts.progress.is_none() {
        let step = "the controller starts the job: if nothing happens, see whether a server leads, and whether its feature \
            gate CollaSets is on";
        return Some(step.to_owned());
    }
    (observed < job.metadata.generation.unwrap_or(0))
        .then(|| "the controller looks at the latest change of the job".to_owned())
}

/// Where to read more about the Pod of the target that has waited longest.
fn pod_step(facts: &JobFacts, targets: &JobTargets) -> Option<String> {
    let mut listed = targets.listed.iter();
    let target = listed.find(|target| target.progress == Progress::Processing.as_str())?;
    let (name, namespace) = (&target.name, &facts.namespace);
    Some(format!(
        "more about the Pod of a target: kubectl operating why pod/{name} -n {namespace}"
    ))
}

fn partition_step(facts: &JobFacts, targets: &JobTargets) -> Option<String> {
    let partition = facts.partition.filter(|_| !targets.held_back.is_empty())?;
    let JobFacts {
        namespace, name, ..
    } = facts;
    let total = targets.counts.total;
    Some(format!(
        "spec.partition {partition} holds targets back, and the job neither ends nor is deleted by its TTL before it is raised; this \
         operates on all targets: kubectl patch operationjob {name} -n {namespace} --type merge -p \
         '{{\"spec\":{{\"partition\":{total}}}}}'"
    ))
}

fn failure_step(targets: &JobTargets) -> Option<String> {
    (targets.counts.failed > 0).then(|| {
        "a target that has failed is not operated on again: create another OperationJob for it"
            .to_owned()
    })
}

/// When a finished job is deleted.
fn describe_ttl(facts: &JobFacts, targets: &JobTargets, now: Timestamp) -> Option<String> {
    let seconds = facts.deletion_due?.duration_since(now).as_secs();
    let release = match targets.listed.iter().any(|target| target.to_release) {
        true => ", after what it asked of its targets is withdrawn",
        false => "",
    };
    Some(match seconds {
        1.. => format!(
            "the job is deleted in {}{release} (spec.TTLSecondsAfterFinished)",
            messages::format_age(seconds)
        ),
        _ => format!("the job is deleted now{release} (spec.TTLSecondsAfterFinished)"),
    })
}
