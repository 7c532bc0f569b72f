//! Changes in place and deletions that are tried by a dry run before a Pod goes off traffic for them, and what the controller learns from
//! those that are refused.

use std::sync::Arc;
use std::time::Duration;

use kube::Error;
use serde_json::Value;
use tokio::time::Instant;

use super::super::call::{Trouble, call};
use super::super::memory::SPACING;
use super::super::refusals::{Key, LATE};
use super::Work;
use super::pods::{body, change_of, deletion_of, resize};
use crate::api::keys;
use crate::cluster::pods;
use crate::domain::collaset::plan::{Ahead, PodPatch};
use crate::domain::collaset::{ABORT, Operation, RETRY};
use crate::domain::deletion::Wishes;
use crate::domain::pod::Pod;

/// What is refused late is so by its revision, whatever else changes in the spec, as an autoscaler changes `replicas`.
const ANY_SPEC: i64 = 0;
/// Failures of a write in a row before the next one is taken for a refusal.
const FAILURES: u32 = 4;

/// An older plan than this does not know who is down by now: a Pod whose dry run took its time goes off traffic with the next one.
const SLOW: Duration = Duration::from_secs(1);
/// For so long a dry run that has passed is good.
const PASSED: Duration = Duration::from_secs(30);

/// When the change of a Pod that was refused late is tried again; said with the refusal. The command is one that changes nothing else.
fn tried(work: &Work<'_>) -> String {
    let status = work.set.status.as_ref();
    let rollout = status.and_then(|status| status.rollout.as_ref());
    let command = match rollout.is_some_and(|rollout| rollout.aborted) {
        true => ABORT,
        false => RETRY,
    };
    format!(
        "its dry run had passed, so it is tried with pauses that grow to a minute; the annotation {}: {command} has it tried soon",
        keys::ROLLOUT
    )
}

/// By which a change that is refused although its dry run passed is remembered: for all Pods, until one of them is changed, and for this.
fn late(pod: &Pod, revision: &str) -> [Key; 2] {
    let uid = pod.metadata.uid.clone();
    let of = Key::LateRefusalOf(revision.to_owned(), uid);
    [Key::LateRefusal(revision.to_owned()), of]
}

/// The same of a deletion.
fn late_deletion(pod: &Pod) -> [Key; 2] {
    [
        Key::LateDeletions,
        Key::LateDeletion(pod.metadata.uid.clone()),
    ]
}

/// Fails while one of these keys is left alone.
fn check_late(work: &Work<'_>, late: &[Key; 2]) -> Result<(), Trouble> {
    let now = Instant::now();
    let left = late
        .iter()
        .map(|key| work.memory.refused(key, now, ANY_SPEC));
    match left.flatten().max() {
        Some((left, why)) => {
            work.again(left);
            Err(Trouble::Failed(format!("{why} ({})", tried(work))))
        }
        None => Ok(()),
    }
}

/// Notes a refusal that came after a dry run had passed.
fn refuse_late(work: &Work<'_>, late: [Key; 2], why: &str) {
    let now = Instant::now();
    for key in late {
        if work.memory.refused(&key, now, ANY_SPEC).is_none() {
            work.memory.refuse_for(LATE, key, why, now, ANY_SPEC);
        }
    }
}

/// Leaves a key alone again, for the reason that its last refusal gave: one Pod at a time finds out whether that is over.
fn pause_others(work: &Work<'_>, key: Key, last: Option<(u32, String)>) {
    if let Some((_, why)) = last {
        work.memory
            .refuse_for(LATE, key, &why, Instant::now(), ANY_SPEC);
    }
}

/// What a trial tells of the update that it tries.
pub enum Tried {
    /// It may begin.
    Passed,
    /// It may begin with the next plan.
    Later,
    /// The Pod has to get to its revision by another way.
    AnotherWay,
}

/// Whether the update that a patch begins is to be tried first.
pub fn is_trial(work: &Work<'_>, patch: &PodPatch) -> bool {
    let uid = &patch.pod.metadata.uid;
    if patch.only_tried {
        return true;
    }
    if work.memory.has_passed(uid, revision(patch), Instant::now()) {
        return false;
    }
    let ahead = patch.ahead.as_ref();
    ahead.is_some_and(|ahead| work.memory.is_untried(uid, &ahead.revision))
        || patch.deletes && work.memory.doubts_deletions()
}

/// The revision that the update is to lead to which a patch begins; empty where it deletes the Pod.
fn revision(patch: &PodPatch) -> &str {
    patch.ahead.as_ref().map_or("", |ahead| &ahead.revision)
}

/// Tries what the update that a patch begins is for.
pub async fn try_update(work: &Work<'_>, patch: &PodPatch) -> Result<Tried, Trouble> {
    if patch.deletes {
        may_delete(work, &patch.pod).await?;
    }
    if let Some(ahead) = &patch.ahead
        && !may_change(work, &patch.pod, ahead).await?
    {
        return Ok(Tried::AnotherWay);
    }
    if patch.only_tried || work.is_older_than(SLOW) {
        let until = Instant::now() + PASSED;
        let uid = &patch.pod.metadata.uid;
        work.memory.pass(uid, revision(patch), until);
        work.again(SPACING);
        return Ok(Tried::Later);
    }
    Ok(Tried::Passed)
}

/// Asks the API server whether it would let a Pod be deleted.
async fn may_delete(work: &Work<'_>, pod: &Pod) -> Result<(), Trouble> {
    check_late(work, &late_deletion(pod))?;
    let request = async {
        match pods::may_delete(work.client(), pod, &Wishes::default()).await {
            Err(Error::Api(status)) if pods::tells_nothing(&status) => Ok(()),
            tried => tried,
        }
    };
    let uid = &pod.metadata.uid;
    match call(&deletion_of(&pod.metadata.name), request).await {
        Ok(()) | Err(Trouble::Moved) => {
            work.memory.accept_deletion(uid);
            let last = work.memory.last_refusal(&Key::LateDeletions);
            pause_others(work, Key::LateDeletions, last);
            Ok(())
        }
        Err(trouble) => {
            if lasting(work, &trouble, &Key::PodChange(uid.clone())).is_some() {
                work.memory.refuse_deletion(uid); // it takes no place from others
                work.again(SPACING);
            }
            Err(trouble)
        }
    }
}

/// Notes whether a Pod can be deleted. One that is off traffic for its deletion comes back if not, and no other goes off before a dry run
/// has passed.
pub fn judge_deletion(work: &Work<'_>, pod: &Pod, done: &Result<u64, Trouble>) {
    let uid = &pod.metadata.uid;
    let late = late_deletion(pod);
    match done {
        Ok(_) => {
            work.memory.accept_deletion(uid);
            if Operation::Update.is_on(pod) {
                late.iter().for_each(|key| work.memory.accept(key));
            }
        }
        Err(trouble) => {
            if let Some(why) = lasting(work, trouble, &Key::PodWrite(uid.clone())) {
                work.memory.refuse_deletion(uid);
                // Of others no dry run has passed.
                if Operation::Update.is_on(pod) {
                    refuse_late(work, late, why);
                }
                work.again(SPACING);
            }
        }
    }
}

/// Why a write is not done for now: somebody refuses it, or it has failed several times in a row, as with a webhook that is down.
fn lasting<'a>(work: &Work<'_>, trouble: &'a Trouble, key: &Key) -> Option<&'a str> {
    match trouble {
        Trouble::Refused(why) | Trouble::Denied(why) => Some(why),
        Trouble::Failed(why) => {
            let last = work.memory.last_refusal(key);
            last.is_some_and(|(times, _)| times >= FAILURES)
                .then_some(why)
        }
        Trouble::Moved | Trouble::Exists | Trouble::Held(_) => None,
    }
}

/// Asks the API server whether it would take the change that an update is for; false where the Pod has to get to the revision by
/// another way.
async fn may_change(work: &Work<'_>, pod: &Arc<Pod>, ahead: &Ahead) -> Result<bool, Trouble> {
    let late = late(pod, &ahead.revision);
    check_late(work, &late)?;
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
    let [of_revision, _] = late;
    let before = work.memory.last_refusal(&of_revision);
    let tried = dry_run(work, pod, None, body).await;
    // One that tells nothing is no refusal: the Pod waits for its rules, and its change is judged then.
    judge(work, pod, &ahead.revision, &tried.as_ref());
    if tried.is_ok() {
        pause_others(work, of_revision, before);
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
    call(&change_of(name), request).await
}

/// Notes whether an update could be begun whose dry run has passed. A Pod that can't be written keeps no place from others.
pub fn judge_begin<T>(work: &Work<'_>, pod: &Pod, done: &Result<T, Trouble>) {
    let key = Key::PodWrite(pod.metadata.uid.clone());
    match done {
        Ok(_) => work.memory.accept(&key),
        Err(trouble) => {
            if let Some(why) = lasting(work, trouble, &Key::PodChange(pod.metadata.uid.clone())) {
                let now = Instant::now();
                work.memory.refuse(key, why, now, work.generation());
            }
        }
    }
}

/// Notes that a Pod can't be resized where it is: the next plan has it made again.
pub fn give_up(work: &Work<'_>, pod: &Pod, revision: &str, why: &str) {
    work.memory.refuse_resize(&pod.metadata.uid, revision, why);
    work.again(SPACING);
}

/// As [`judge`], of a change that was no dry run. One that is refused, or fails several times in a row, takes its revision's other Pods into
/// doubt, and is left alone for longer each time, as a dry run may pass where the change does not.
pub fn judge_change<T>(work: &Work<'_>, pod: &Pod, revision: &str, done: &Result<T, Trouble>) {
    let late = late(pod, revision);
    match done {
        Ok(_) => {
            late.iter().for_each(|key| work.memory.accept(key));
            work.memory.accept_change(&pod.metadata.uid, revision);
        }
        Err(trouble) => {
            let key = Key::PodChange(pod.metadata.uid.clone());
            let Some(why) = lasting(work, trouble, &key) else {
                return;
            };
            work.memory.doubt(revision);
            work.memory.refuse_change(&pod.metadata.uid, revision);
            work.again(SPACING);
            refuse_late(work, late, why);
        }
    }
}

/// Notes whether a change of a Pod to a revision is refused, or fails several times in a row: the next plan leaves the Pod on traffic, or
/// calls it back, and it takes no place from other Pods. So it is with a resize that a quota or a policy denies: a new Pod would ask for
/// no less.
fn judge<T>(work: &Work<'_>, pod: &Pod, revision: &str, done: &Result<T, &Trouble>) {
    let uid = &pod.metadata.uid;
    match done {
        Ok(_) => work.memory.accept_change(uid, revision),
        Err(trouble) => {
            if lasting(work, trouble, &Key::PodChange(uid.clone())).is_some() {
                work.memory.refuse_change(uid, revision);
                work.again(SPACING);
            }
        }
    }
}
