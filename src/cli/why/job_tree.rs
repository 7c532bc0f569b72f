//! Prints the diagnosis of an OperationJob as a tree for people.

use jiff::Timestamp;

use super::tree_node::TreeNode;
use crate::api::operationjob::Progress;
use crate::domain::diagnosis::operationjob::error_text;
use crate::domain::diagnosis::operationjob::facts::{JobDiagnosis, JobFacts, TargetFacts};
use crate::domain::messages;

/// Most names of targets in one line.
const MAX_NAMES: usize = 3;

/// The diagnosis of a job as text. Ages are relative to `now`.
pub fn render_job(all: &JobDiagnosis, now: Timestamp) -> String {
    let mut tree = vec![job_node(&all.job, now)];
    tree.extend(all.targets.iter().map(|target| target_node(target, now)));
    if all.unlisted > 0 {
        let noun = if all.unlisted == 1 {
            "target"
        } else {
            "targets"
        };
        let text = format!("{} more {noun}, not listed here", all.unlisted);
        tree.push(TreeNode::leaf(text));
    }
    tree.extend(held_back_node(all));
    if !all.next.is_empty() {
        tree.push(TreeNode::new("next", all.next.iter().map(TreeNode::leaf)));
    }
    TreeNode::new(&all.summary, tree).render()
}

/// The progress of a target that is not finished or has failed, with ages.
pub fn describe_progress(
    progress: &str,
    since: Option<Timestamp>,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> String {
    let mut text = progress.to_owned();
    if let Some(since) = since {
        let age = messages::format_ago(since, now);
        text += &match progress == Progress::Failed.as_str() {
            true => format!(" {age} ago"),
            false => format!(" for {age}"),
        };
    }
    if let Some(deadline) = deadline {
        let remaining = deadline.duration_since(now).as_secs();
        text += &match remaining {
            1.. => format!(", deadline in {}", messages::format_age(remaining)),
            _ => format!(
                ", the deadline passed {} ago",
                messages::format_age(-remaining)
            ),
        };
    }
    text
}

fn job_node(job: &JobFacts, now: Timestamp) -> TreeNode {
    let JobFacts {
        namespace, name, ..
    } = job;
    let mut parts: Vec<String> = job.progress.iter().cloned().collect();
    let ago = |time| messages::format_ago(time, now);
    if let Some(since) = job.since {
        parts.push(format!("begun {} ago", ago(since)));
    }
    if let Some(ended) = job.ended {
        parts.push(format!("ended {} ago", ago(ended)));
    }
    if let Some(partition) = job.partition {
        parts.push(format!("partition {partition}"));
    }
    if let Some(since) = job.deleting_since {
        parts.push(format!("being deleted for {}", ago(since)));
    }
    if parts.is_empty() {
        parts.push("not begun".to_owned());
    }
    TreeNode::leaf(format!(
        "OperationJob {namespace}/{name}: {}",
        parts.join(", ")
    ))
}

fn target_node(target: &TargetFacts, now: Timestamp) -> TreeNode {
    let TargetFacts { name, progress, .. } = target;
    let progress = describe_progress(progress, target.since, target.deadline, now);
    let new_pod = target.new_pod.as_ref();
    let new_pod = new_pod.map_or_else(String::new, |pod| format!(", new Pod {pod}"));
    let error = target.error.as_ref().map(error_text);
    let wait = target.waits_for.as_ref();
    let wait = wait.map(|wait| format!("waits for {wait}"));
    let release = target
        .to_release
        .then(|| "what the job asked of the Pod is to be withdrawn".to_owned());
    let below = [error, wait, release].into_iter().flatten();
    TreeNode::new(
        format!("{name}: {progress}{new_pod}"),
        below.map(TreeNode::leaf),
    )
}

fn held_back_node(all: &JobDiagnosis) -> Option<TreeNode> {
    let count = all.counts.held_back;
    let (noun, verb) = match count {
        0 => return None,
        1 => ("target", "is"),
        _ => ("targets", "are"),
    };
    let listed = all.held_back.iter().take(MAX_NAMES).map(String::as_str);
    let mut names = listed.collect::<Vec<_>>().join(", ");
    if count > MAX_NAMES {
        names += &format!(" and {} more", count - MAX_NAMES);
    }
    let partition = all.job.partition.unwrap_or_default();
    Some(TreeNode::leaf(format!(
        "{count} {noun} ({names}) {verb} held back by spec.partition {partition}"
    )))
}
