//! The annotation by which users command a rollout: removed once it has been carried out.

use std::collections::BTreeMap;

use kube::core::params::Patch;
use serde_json::json;

use super::super::call::{Halt, Trouble, call};
use super::super::memory::SPACING;
use super::super::refusals::Key;
use super::batch::{self, Write};
use super::{Work, events};
use crate::api::keys;
use crate::cluster::objects::{SetObject, write};
use crate::domain::collaset::status::Step;

/// Removes it, and tells of it if that is refused. The set is none the worse then: the status has noted the command, which is not
/// carried out again.
pub async fn forget(work: &Work<'_>) -> Result<(), Halt> {
    let step = Step::Update;
    let write = Write {
        key: Key::Command,
        step,
        request: remove(work, step),
    };
    let removed = batch::one(work, write).await;
    match &removed {
        Err(Halt::Failed(..)) => {
            events::failure(work, "RolloutCommandNotRemoved", &removed);
            Ok(())
        }
        Ok(()) => {
            work.memory.forget_late_refusals(); // whoever commands a rollout looks at it, and may have mended what was refused
            work.again(SPACING); // no event brings it back: the caches know already
            removed
        }
        Err(_) => removed,
    }
}

/// On condition of the version that the plan was made from: a command that has come since stays.
async fn remove(work: &Work<'_>, step: Step) -> Result<(), Halt> {
    let metadata = &work.set.metadata;
    let annotations = metadata.annotations.as_ref();
    let command = annotations.and_then(|annotations| annotations.get(keys::ROLLOUT));
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": { keys::ROLLOUT: null },
    } }));
    let object = (work.namespace(), work.name());
    let request = write::patch::<SetObject>(work.client(), work.objects(), object, &patch, false);
    let what = format!(
        "CollaSet {}: the annotation {} could not be removed; it is not carried out again, remove it",
        work.name(),
        keys::ROLLOUT
    );
    call(&what, request)
        .await
        .map_err(|trouble| trouble.halt(step))?;
    let now = work.objects().sets.get(work.namespace(), work.name());
    let now = now.and_then(|now| now.metadata.annotations.clone());
    let same = |now: &BTreeMap<String, String>| now.get(keys::ROLLOUT) == command;
    match command.is_some() && now.as_ref().is_some_and(same) {
        true => Err(Trouble::is_not_as_written(&what).halt(step)),
        false => Ok(()),
    }
}
