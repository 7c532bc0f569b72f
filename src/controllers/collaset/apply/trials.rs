//! Changes in place that are tried by a dry run before a Pod goes off traffic for them, and what is learnt from changes that are refused.

use std::sync::Arc;

use serde_json::Value;
use tokio::time::Instant;

use super::super::call::{Trouble, call};
use super::super::memory::SPACING;
use super::super::refusals::{Key, LATE};
use super::Work;
use super::pods::{body, resize, what};
use crate::cluster::pods;
use crate::domain::collaset::plan::{Ahead, PodPatch};
use crate::domain::pod::Pod;

/// What is refused late is so by its revision, whatever else changes in the spec, as an autoscaler changes `replicas`.
const ANY_SPEC: i64 = 0;

/// When the change of a Pod that was refused late is tried again; said with the refusal.
const TRIED: &str = "its dry run had passed, so it is tried once a minute at most";

/// By which a change that is refused although its dry run passed is remembered: for all Pods, until one of them is changed, and for this.
fn late(pod: &Pod, revision: &str) -> [Key; 2] {
    let uid = pod.metadata.uid.clone();
    let of = Key::LateRefusalOf(revision.to_owned(), uid);
    [Key::LateRefusal(revision.to_owned()), of]
}

/// Whether the update that a patch begins is to be tried first.
pub fn is_trial(work: &Work<'_>, patch: &PodPatch) -> bool {
    let uid = &patch.pod.metadata.uid;
    let ahead = patch.ahead.as_ref();
    ahead.is_some_and(|ahead| work.memory.is_untried(uid, &ahead.revision))
}

/// Asks the API server whether it would take the change that an update is for; false where the Pod has to get to the revision by
/// another way.
pub async fn may_change(work: &Work<'_>, pod: &Arc<Pod>, ahead: &Ahead) -> Result<bool, Trouble> {
    let now = Instant::now();
    let late = late(pod, &ahead.revision);
    let late = late.map(|key| work.memory.refused(&key, now, ANY_SPEC));
    if let Some((left, why)) = late.into_iter().flatten().max() {
        work.again(left);
        return Err(Trouble::Failed(format!("{why} ({TRIED})")));
    }
    let version = pod.metadata.resource_version;
    if let Some(spec) = &ahead.resize {
        let tried = dry_run(work, pod, Some("resize"), resize(pod, version, spec)).await;
        match tried {
            Err(Trouble::Refused(why)) => {
                give_up(work, pod, &ahead.revision, &why);
                return Ok(false);
            }
            Ok(_) => {}
            Err(denied) => {
                judge::<()>(work, pod, &ahead.revision, &Err(&denied));
                return Err(denied);
            }
        }
    }
    let trial = PodPatch {
        pod: Arc::clone(pod),
        labels: ahead.labels.clone(),
        annotations: ahead.annotations.clone(),
        spec: ahead.spec.clone(),
        ..PodPatch::default()
    };
    let Some(body) = body(work.set, &trial, version) else {
        return Ok(true);
    };
    let tried = dry_run(work, pod, None, body).await;
    if !matches!(tried, Ok(false)) {
        judge(work, pod, &ahead.revision, &tried.as_ref());
    }
    tried.map(|_| true)
}

/// Tries a patch; false where that does not tell: the rules let the change pass, or not, once the Pod is operated on, and it is judged then.
async fn dry_run(
    work: &Work<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<bool, Trouble> {
    let name = &*pod.metadata.name;
    let place = (work.namespace(), name);
    let request = pods::may_patch(work.client(), place, subresource, body);
    match call(&what(name), request).await {
        Err(Trouble::Held) => Ok(false),
        tried => tried,
    }
}

/// Notes that a Pod can't be resized where it is: the next plan has it made again.
pub fn give_up(work: &Work<'_>, pod: &Pod, revision: &str, why: &str) {
    work.memory.refuse_resize(&pod.metadata.uid, revision, why);
    work.again(SPACING);
}

/// As [`judge`], of a change that was no dry run. One that is refused takes its revision's other Pods into doubt, and is left alone for
/// longer each time, as a dry run may pass where the change does not.
pub fn judge_change<T>(work: &Work<'_>, pod: &Pod, revision: &str, done: &Result<T, Trouble>) {
    let (late, now) = (late(pod, revision), Instant::now());
    match done {
        Ok(_) => late.iter().for_each(|key| work.memory.accept(key)),
        Err(Trouble::Refused(why) | Trouble::Denied(why)) => {
            work.memory.doubt(revision);
            for key in late {
                if work.memory.refused(&key, now, ANY_SPEC).is_none() {
                    work.memory.refuse_for(LATE, key, why, now, ANY_SPEC);
                }
            }
        }
        Err(_) => {}
    }
    judge(work, pod, revision, &done.as_ref());
}

/// Notes whether a change of a Pod to a revision is refused: the next plan leaves the Pod on traffic, or calls it back. So it is with a
/// resize that a quota or a policy denies: a new Pod would ask for no less.
fn judge<T>(work: &Work<'_>, pod: &Pod, revision: &str, done: &Result<T, &Trouble>) {
    let uid = &pod.metadata.uid;
    match done {
        Ok(_) => work.memory.accept_change(uid, revision),
        Err(Trouble::Refused(_) | Trouble::Denied(_)) => {
            work.memory.refuse_change(uid, revision);
            work.again(SPACING);
        }
        Err(_) => {}
    }
}
