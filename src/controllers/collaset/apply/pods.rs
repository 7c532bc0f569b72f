//! Pods: created, patched, deleted.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::call::{Halt, Trouble, call, worse};
use super::super::memory::{HELD, SPACING};
use super::super::names::Slot;
use super::super::owner;
use super::super::refusals::{Key, Kind};
use super::Work;
use super::batch::{self, Write};
use super::fence;
use super::look::{self, Look};
use super::trials::{self, Tried};
use crate::api::collaset::CollaSet;
use crate::api::keys::{self, Family};
use crate::cluster::pods;
use crate::domain::collaset::plan::{Ownership, PodChange, PodPatch};
use crate::domain::collaset::status::Step;
use crate::domain::deletion::Wishes;
use crate::domain::pod::{Owner, Pod};

/// Lifecycle ID and type of a scale-in.
const SCALE_IN: (&str, &str) = ("collaset", "scale-in");

/// A plan of this age takes no Pod off traffic: others may be down by now. Other writes came first, or the process stood still.
const FRESH: Duration = Duration::from_secs(5);

/// Writes them. What fails for Pods that are there does not keep others from being created.
pub async fn write(work: &Work<'_>, changes: Vec<PodChange>, look: &Look) -> Result<(), Halt> {
    let creates = |change: &PodChange| matches!(change, PodChange::Create { .. });
    let (created, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(creates);
    let of = |change: &PodChange| match change {
        PodChange::Patch(patch) => (patch.leads_to.is_some(), trials::is_trial(work, patch)),
        _ => (false, false),
    };
    let (tried, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|c| of(c).1);
    let (changed, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|c| of(c).0);
    let send = |kind, carefully, changes: Vec<PodChange>| {
        let writes = changes.into_iter();
        let writes = writes.map(|change| write_of(work, change, look));
        batch::send(work, kind, carefully, writes)
    };
    let (others, changed, tried) = tokio::join!(
        send(Kind::PodWrites, false, others),
        send(Kind::PodChanges, false, changed),
        send(Kind::PodTrials, true, tried),
    );
    let created = send(Kind::PodCreations, true, created).await;
    [changed, tried, created].into_iter().fold(others, worse)
}

fn write_of<'a>(
    work: &'a Work<'a>,
    change: PodChange,
    look: &'a Look,
) -> Write<impl Future<Output = Result<(), Halt>> + 'a> {
    let of = |pod: &Pod| Key::PodWrite(pod.metadata.uid.clone());
    let (key, step) = match &change {
        PodChange::Create { id, body } => (Key::Pod(*id), creation(body)),
        PodChange::Patch(change) => {
            let given = change.labels.0.get(&type_key());
            let key = match change.leads_to.is_some() || trials::is_trial(work, change) {
                true => Key::PodChange(change.pod.metadata.uid.clone()),
                false => of(&change.pod),
            };
            (key, step(&change.pod, given, change.ownership))
        }
        PodChange::Delete(pod, _) => (of(pod), step_of_deletion(pod)),
    };
    Write {
        key,
        step,
        request: one(work, change, step, look),
    }
}

async fn one(work: &Work<'_>, change: PodChange, step: Step, look: &Look) -> Result<(), Halt> {
    match change {
        PodChange::Create { id, body } => create(work, id, body, step, look).await,
        PodChange::Patch(change) => {
            let done = unless_held(work, &change.pod, patch(work, &change));
            done.await.map_err(|trouble| trouble.halt(step))
        }
        PodChange::Delete(pod, told) => {
            let request = async {
                let wishes = Wishes::default();
                let request = pods::delete(work.client(), &pod, &wishes);
                let done = call(&deletion_of(&pod.metadata.name), request).await;
                trials::judge_deletion(work, &pod, &done);
                work.memory.wrote_pod(done?);
                work.told.lock().extend(told.map(|event| *event));
                Ok(())
            };
            let done = unless_held(work, &pod, request);
            done.await.map_err(|trouble| trouble.halt(step))
        }
    }
}

/// Leaves a Pod alone that admission holds, and comes back to it.
async fn unless_held(
    work: &Work<'_>,
    pod: &Pod,
    request: impl Future<Output = Result<(), Trouble>>,
) -> Result<(), Trouble> {
    let uid = &pod.metadata.uid;
    if let Some(left) = work.memory.held(uid, Instant::now()) {
        work.again(left);
        return Ok(());
    }
    match request.await {
        Err(Trouble::Held(why)) => {
            work.memory.hold(uid, &why, Instant::now());
            work.again(HELD);
            Ok(())
        }
        Ok(()) => {
            work.memory.let_go(uid);
            Ok(())
        }
        failed => failed,
    }
}

async fn create(
    work: &Work<'_>,
    id: i64,
    mut body: Value,
    step: Step,
    look: &Look,
) -> Result<(), Halt> {
    if !look.is_enough_for(&body) {
        return Err(Halt::Moved);
    }
    if let Some(pod) = look.unmanaged(id, look::claims(&body)) {
        return manage(work, pod).await;
    }
    if let Some((claim, pod)) = look.written(look::claims(&body)) {
        let message = format!(
            "instance ID {id}: waiting for Pod {pod}, which still mounts claim {claim}, to end"
        );
        return Err(Halt::Failed(step, message));
    }
    fence::raise(work, look::claims(&body))
        .await
        .map_err(|trouble| trouble.halt(step))?;
    let slot = Slot::Pod(id);
    let name = named(work, &slot, &mut body);
    let request = pods::create(work.client(), work.namespace(), &body);
    match call(&format!("creation of Pod {name}"), request).await {
        Ok(pod) => {
            work.memory.wrote_pod(pod.metadata.resource_version);
            if !is_ours(work.set, id, &pod) || !pod.is_managed() {
                // Its name is kept: another would be made each time, as no cache shows one without the control label.
                work.memory.spoil(&slot, pod.metadata.uid);
                return Err(Trouble::is_not_as_made(&format!("Pod {name}")).halt(step));
            }
            work.memory.forget(&slot);
            if let Some(revision) = pod.label(keys::REVISION) {
                work.memory.prove(revision);
            }
            work.created.lock().push(name);
            Ok(())
        }
        Err(Trouble::Exists) => meet(work, id, &slot, &name, &body).await,
        Err(trouble) => Err(trouble.halt(step)),
    }
}

/// What the creation of a Pod is for: the new half of a pair adds none to the set.
fn creation(body: &Value) -> Step {
    match body["metadata"]["labels"][keys::REPLACE_PAIR_ORIGIN_NAME] {
        Value::String(_) => Step::Update,
        _ => Step::ScaleOut,
    }
}

/// Gives a Pod back the label that somebody took from it. Without that label the caches do not show the Pod, and another would
/// be made beside it.
async fn manage(work: &Work<'_>, pod: &Pod) -> Result<(), Halt> {
    let mut metadata = preconditions(pod, pod.metadata.resource_version);
    metadata["labels"] = json!({ keys::CONTROL: keys::CONTROL_VALUE });
    let sent = write_pod(work, pod, None, json!({ "metadata": metadata })).await;
    let written = sent.map_err(|trouble| trouble.halt(Step::ScaleOut))?;
    match written.is_managed() {
        true => Ok(()),
        false => {
            let what = format!("Pod {}", pod.metadata.name);
            Err(Trouble::is_not_as_written(&what).halt(Step::ScaleOut))
        }
    }
}

/// There is a Pod of that name: the work of an earlier attempt whose answer was lost, or another's.
async fn meet(work: &Work<'_>, id: i64, slot: &Slot, name: &str, body: &Value) -> Result<(), Halt> {
    let request = pods::get(work.client(), work.namespace(), name);
    let there = call(&format!("reading of Pod {name}"), request)
        .await
        .map_err(|trouble| trouble.halt(Step::ScaleOut))?;
    let Some(there) = there else {
        return Err(Halt::Moved); // gone again
    };
    let is_chosen = body["metadata"]["generateName"].is_string();
    if is_ours(work.set, id, &there) && !there.is_managed() {
        // Nothing would tell of its end.
        if !there.is_terminating() {
            manage(work, &there).await?;
            work.memory.forget(slot);
            return Ok(());
        }
        work.memory.forget(slot);
        if is_chosen {
            return Err(Halt::Moved); // the next one has another name
        }
        let message = format!(
            "instance ID {id}: waiting for Pod {name} to end, which lacks the label {}",
            keys::CONTROL
        );
        return Err(Halt::Failed(Step::ScaleOut, message));
    }
    if is_ours(work.set, id, &there) {
        work.memory.wrote_pod(there.metadata.resource_version);
        work.memory.forget(slot);
        return Ok(());
    }
    let is_spoilt = work.memory.spoilt(slot).as_deref() == Some(&*there.metadata.uid);
    // It may have become a Pod of another instance, or of somebody else, by now.
    let is_others = |owner: &Owner| owner.uid != work.uid();
    let is_others = there.controller().is_some_and(is_others)
        || there
            .label(keys::INSTANCE_ID)
            .is_some_and(|of| of != id.to_string());
    if is_spoilt && !is_others && !there.is_terminating() {
        return Err(Trouble::is_not_as_made(&format!("Pod {name}")).halt(creation(body)));
    }
    if is_chosen {
        work.memory.forget(slot);
        return Err(Halt::Moved);
    }
    if there.is_terminating() {
        return Err(Halt::Moved);
    }
    let message = format!(
        "Pod {name} is there and does not belong to this CollaSet; delete it, the name is that of instance ID {id}"
    );
    Err(Halt::Failed(Step::ScaleOut, message))
}

fn is_ours(set: &CollaSet, id: i64, pod: &Pod) -> bool {
    let controller = pod.controller().map(|owner| owner.uid.as_str());
    controller == set.metadata.uid.as_deref()
        && pod.label(keys::INSTANCE_ID) == Some(&id.to_string())
}

async fn patch(work: &Work<'_>, change: &PodPatch) -> Result<(), Trouble> {
    let is_trial = trials::is_trial(work, change);
    if is_trial {
        match trials::try_update(work, change).await? {
            Tried::Passed => {}
            Tried::Later | Tried::AnotherWay => return Ok(()),
        }
    }
    if begins(change) && work.is_older_than(FRESH) {
        work.again(SPACING);
        return Ok(());
    }
    let mut version = change.pod.metadata.resource_version;
    let revision = change.leads_to.as_deref();
    if let Some(spec) = &change.resize {
        let body = resize(&change.pod, version, spec);
        let sent = send(work, &change.pod, Some("resize"), body).await;
        version = match sent {
            Ok(stored) => stored,
            Err(Trouble::Refused(why)) => {
                trials::give_up(work, &change.pod, revision.unwrap_or_default(), &why);
                return Ok(());
            }
            denied => {
                trials::judge_change(work, &change.pod, revision.unwrap_or_default(), &denied);
                return denied.map(|_| ());
            }
        };
    }
    if let Some(body) = body(work.set, change, version) {
        let by_status = moves_traffic(change).then_some("status");
        let sent = write_pod(work, &change.pod, by_status, body).await;
        let sent = sent.and_then(|pod| holds(work, change, &pod));
        if let Some(revision) = revision {
            trials::judge_change(work, &change.pod, revision, &sent);
        }
        if is_trial {
            trials::judge_begin(work, &change.pod, &sent);
        }
        sent?;
        if change.ahead.is_some() || change.deletes {
            work.memory.forget_passed(&change.pod.metadata.uid);
        }
        work.told.lock().extend(change.told.as_deref().cloned());
    }
    Ok(())
}

/// That a Pod holds what was written of whose it is and what is to become of it: otherwise that would be written again and again. Labels
/// of a lifecycle are not looked at, since admission goes on from them in the same request.
fn holds(work: &Work<'_>, change: &PodPatch, pod: &Pod) -> Result<u64, Trouble> {
    let is_own = pod
        .controller()
        .is_some_and(|owner| owner.uid == work.uid());
    let is_owned_so = match change.ownership {
        Ownership::Adopt => is_own,
        Ownership::Release => !is_own,
        Ownership::Keep => true,
    };
    let mut keys = [keys::INSTANCE_ID, keys::REVISION, keys::TO_DELETE].into_iter();
    let is_labelled = keys.all(|key| {
        let written = change.labels.0.get(key);
        written.is_none_or(|written| pod.label(key) == written.as_deref())
    });
    match is_owned_so && is_labelled {
        true => Ok(pod.metadata.resource_version),
        false => Err(Trouble::is_not_as_written(&change_of(&pod.metadata.name))),
    }
}

/// Whether a change takes a Pod off traffic: who else is down has to be known for that.
fn begins(change: &PodPatch) -> bool {
    let operating = change.labels.0.get(&Family::Operating.key(SCALE_IN.0));
    operating.is_some_and(Option::is_some)
}

/// Whether a change begins or ends an operation and is none of the object itself. As a write of the status it takes the readiness
/// condition along, which admission sets in the same request.
fn moves_traffic(change: &PodPatch) -> bool {
    let operating = Family::Operating.key(SCALE_IN.0);
    let moves = change.labels.0.contains_key(&operating);
    moves && change.spec.is_none() && change.ownership == Ownership::Keep
}

/// Sends one patch; the version that came of it.
async fn send(
    work: &Work<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<u64, Trouble> {
    let written = write_pod(work, pod, subresource, body).await?;
    Ok(written.metadata.resource_version)
}

/// Sends one patch; the Pod that came of it.
async fn write_pod(
    work: &Work<'_>,
    pod: &Pod,
    subresource: Option<&str>,
    body: Value,
) -> Result<Pod, Trouble> {
    let name = &*pod.metadata.name;
    let request = pods::patch(work.client(), (work.namespace(), name), subresource, body);
    let written = call(&change_of(name), request).await?;
    work.memory.wrote_pod(written.metadata.resource_version);
    Ok(written)
}

fn preconditions(pod: &Pod, version: u64) -> Value {
    json!({ "uid": pod.metadata.uid, "resourceVersion": version.to_string() })
}

/// The strategic merge patch of a resize to this content of `spec`.
pub(super) fn resize(pod: &Pod, version: u64, spec: &Value) -> Value {
    json!({ "metadata": preconditions(pod, version), "spec": spec })
}

/// The strategic merge patch of everything but the resize; `None` if there is nothing else.
pub(super) fn body(set: &CollaSet, change: &PodPatch, version: u64) -> Option<Value> {
    let mut metadata = preconditions(&change.pod, version);
    let bare = metadata.clone();
    if !change.labels.is_empty() {
        metadata["labels"] = change.labels.to_merge_patch();
    }
    if !change.annotations.is_empty() {
        metadata["annotations"] = json!(change.annotations);
    }
    if let Some(owners) = owner::patch(set, change.ownership) {
        metadata["ownerReferences"] = owners;
    }
    if metadata == bare && change.spec.is_none() {
        return None;
    }
    let mut body = json!({ "metadata": metadata });
    if let Some(spec) = &change.spec {
        body["spec"] = spec.clone();
    }
    Some(body)
}

/// Gives the body the name that it is created under: its own, or one chosen for the slot after its `generateName`.
pub fn named(work: &Work<'_>, slot: &Slot, body: &mut Value) -> String {
    if let Some(name) = body["metadata"]["name"].as_str() {
        work.memory.note_name(slot, name);
        return name.to_owned();
    }
    let prefix = body["metadata"]["generateName"]
        .as_str()
        .unwrap_or_default();
    let name = work.memory.choose(slot, prefix);
    body["metadata"]["name"] = json!(name);
    name
}

fn type_key() -> String {
    Family::OperationType.key(SCALE_IN.0)
}

/// What is being done to a Pod: it enters or leaves; or by the type of its operation, `given` by the change, or on the Pod.
fn step(pod: &Pod, given: Option<&Option<String>>, ownership: Ownership) -> Step {
    match ownership {
        Ownership::Adopt => return Step::Include,
        Ownership::Release => return Step::Exclude,
        Ownership::Keep => {}
    }
    let given = given.and_then(Option::as_deref);
    match given.or_else(|| pod.label(&type_key())) {
        Some(type_) if type_ == SCALE_IN.1 => Step::ScaleIn,
        _ => Step::Update,
    }
}

/// What is being done by the deletion of a Pod. One that ran to its end is cleaned away, and no update waits for that.
fn step_of_deletion(pod: &Pod) -> Step {
    match pod.is_finished() {
        true => Step::ScaleIn,
        false => step(pod, None, Ownership::Keep),
    }
}

pub(super) fn change_of(name: &str) -> String {
    format!("change of Pod {name}")
}

pub(super) fn deletion_of(name: &str) -> String {
    format!("deletion of Pod {name}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod() -> Pod {
        let pod = json!({ "metadata": { "name": "web-a", "uid": "1", "resourceVersion": "7" } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn one_patch_carries_all_but_the_resize() {
        let mut set = CollaSet::default();
        set.metadata.uid = Some("set".into());
        let mut change = PodPatch {
            pod: pod().into(),
            resize: Some(json!({})),
            ..PodPatch::default()
        };
        assert_eq!(body(&set, &change, 8), None);
        change.labels.0.insert("a".into(), None);
        change.annotations.insert("b".into(), Some("1".into()));
        change.ownership = Ownership::Release;
        change.spec = Some(json!({ "containers": [{ "name": "app", "image": "x" }] }));
        assert_eq!(
            body(&set, &change, 8),
            Some(json!({
                "metadata": {
                    "uid": "1", "resourceVersion": "8",
                    "labels": { "a": null }, "annotations": { "b": "1" },
                    "ownerReferences": [{ "$patch": "delete", "uid": "set" }],
                },
                "spec": { "containers": [{ "name": "app", "image": "x" }] },
            }))
        );
    }

    #[test]
    fn new_half_of_a_pair_is_no_scaling() {
        assert_eq!(creation(&json!({ "metadata": {} })), Step::ScaleOut);
        let labels = json!({ keys::REPLACE_PAIR_ORIGIN_NAME: "web-a" });
        let half = json!({ "metadata": { "labels": labels } });
        assert_eq!(creation(&half), Step::Update);
    }

    #[test]
    fn a_step_is_told_by_the_type_of_the_operation() {
        let mut pod = pod();
        assert_eq!(step(&pod, None, Ownership::Keep), Step::Update);
        assert_eq!(
            step(&pod, Some(&Some("scale-in".into())), Ownership::Keep),
            Step::ScaleIn
        );
        pod.metadata.labels.insert(type_key(), "scale-in".into());
        assert_eq!(step(&pod, None, Ownership::Keep), Step::ScaleIn);
        assert_eq!(step(&pod, Some(&None), Ownership::Keep), Step::ScaleIn);
        assert_eq!(
            step(&pod, Some(&Some("update".into())), Ownership::Keep),
            Step::Update
        );
        assert_eq!(step(&pod, None, Ownership::Release), Step::Exclude);
        assert_eq!(step(&pod, None, Ownership::Adopt), Step::Include);
    }
}
