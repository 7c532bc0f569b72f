//! The summary of an OperationJob in one sentence.

use jiff::Timestamp;

use super::facts::{ErrorFacts, JobFacts, TargetCounts, TargetFacts};
use super::targets::JobTargets;
use crate::api::operationjob::Progress;
use crate::domain::messages;

/// The summary: the counts, and the target that explains most.
pub fn summarize(job: &JobFacts, targets: &JobTargets, now: Timestamp) -> String {
    let state = match job.progress.as_deref() {
        _ if job.deleting_since.is_some() => " is being deleted",
        Some("Succeeded") => " has succeeded",
        Some("Failed") => " has failed",
        _ => "",
    };
    format!(
        "{}{state}: {}{}",
        job_title(job),
        describe_counts(&targets.counts),
        explain_state(job, targets, now)
    )
}

/// The name of a job with its action.
pub fn job_title(job: &JobFacts) -> String {
    match job.action.as_str() {
        "" => format!("OperationJob {}", job.name),
        action => format!("OperationJob {} ({action})", job.name),
    }
}

fn describe_counts(counts: &TargetCounts) -> String {
    let TargetCounts {
        total,
        succeeded,
        failed,
        waiting,
        held_back,
    } = *counts;
    let noun = if total == 1 { "target" } else { "targets" };
    let mut text = match succeeded == total {
        true => format!("all {total} {noun} succeeded"),
        false => format!("{succeeded} of {total} {noun} succeeded"),
    };
    if failed > 0 {
        text += &format!(", {failed} failed");
    }
    if waiting > 0 {
        let verb = if waiting == 1 { "waits" } else { "wait" };
        text += &format!(", {waiting} {verb}");
    }
    if held_back > 0 {
        let verb = if held_back == 1 { "is" } else { "are" };
        text += &format!(", {held_back} {verb} held back by spec.partition");
    }
    text
}

/// Why the job is not finished, or why it has failed. Empty if there is nothing to explain.
fn explain_state(job: &JobFacts, targets: &JobTargets, now: Timestamp) -> String {
    let count = |test: fn(&TargetFacts) -> bool| targets.listed.iter().filter(|t| test(t)).count();
    if job.deleting_since.is_some() {
        let to_release = count(|target| target.to_release);
        return match to_release {
            0 => String::new(),
            1 => "; 1 target is to be released".to_owned(),
            n => format!("; {n} targets are to be released"),
        };
    }
    if job.progress.is_none() {
        return "; the controller has not seen the job yet".to_owned();
    }
    if let Some(target) = longest_wait(targets) {
        return describe_wait(target, now);
    }
    if let Some((name, error)) = first_failure(targets) {
        return format!(
            "; the first failure is that of {name}: {}",
            error_text(error)
        );
    }
    if targets.counts.held_back > 0 && targets.counts.waiting == 0 {
        return "; nothing more is done until spec.partition is raised".to_owned();
    }
    String::new()
}

/// The target that has begun first among those that are not finished.
fn longest_wait(targets: &JobTargets) -> Option<&TargetFacts> {
    let mut listed = targets.listed.iter();
    listed.find(|target| target.progress == Progress::Processing.as_str())
}

fn describe_wait(target: &TargetFacts, now: Timestamp) -> String {
    let age = target.since.map_or_else(String::new, |since| {
        format!(" for {}", messages::format_ago(since, now))
    });
    let name = &target.name;
    match &target.waits_for {
        Some(wait) => format!("; {name} has been Processing{age} and waits for {wait}"),
        None => format!("; {name} has been Processing{age}"),
    }
}

fn first_failure(targets: &JobTargets) -> Option<(&str, &ErrorFacts)> {
    let mut listed = targets.listed.iter();
    listed.find_map(|target| Some((&*target.name, target.error.as_ref()?)))
}

/// The reason and the message of an error.
pub fn error_text(error: &ErrorFacts) -> String {
    let parts = [&*error.reason, &*error.message];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    match parts[..] {
        [] => "its status gives no reason".to_owned(),
        _ => parts.join(": "),
    }
}
