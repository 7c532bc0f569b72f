//! The finalizer that keeps a CollaSet until what belongs to it is reclaimed (contract 2.3).

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::super::call::{Halt, Trouble, call};
use super::super::refusals::Key;
use super::{Work, events};
use crate::api::keys;
use crate::cluster::objects::{SetObject, write};
use crate::domain::collaset::status::Step;

/// Adds it.
pub async fn add(work: &Work<'_>) -> Result<(), Halt> {
    let mut all = others(work);
    all.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
    let done = set(work, &all).await.and_then(|()| holds(work));
    let done = work.again_if_written(done);
    events::failure(work, "FailedAddFinalizer", &done);
    done
}

/// That the set has it, as far as the cache knows the answer: otherwise it would be added again and again.
fn holds(work: &Work<'_>) -> Result<(), Halt> {
    let now = work.objects().sets.get(work.namespace(), work.name());
    let is_there = now.is_none_or(|now| {
        let mut all = now.metadata.finalizers.iter().flatten();
        all.any(|finalizer| finalizer == keys::PRE_RECLAIM_FINALIZER)
    });
    let what = format!("the finalizer of CollaSet {}", work.name());
    match is_there {
        true => Ok(()),
        false => Err(Trouble::is_not_as_written(&what).halt(Step::Revisions)),
    }
}

/// Takes it off; the set is gone then, unless others hold it.
pub async fn remove(work: &Work<'_>) -> Result<(), Halt> {
    let others = others(work);
    let done = set(work, &others).await;
    events::failure(work, "FailedRemoveFinalizer", &done);
    match &done {
        Ok(()) => work.memory.accept(&Key::Finalizer),
        Err(Halt::Failed(_, why)) => {
            let now = Instant::now(); // the next status tells of it
            work.memory
                .refuse(Key::Finalizer, why, now, work.generation());
        }
        Err(_) => {}
    }
    if done.is_ok() && others.is_empty() {
        let sets = &work.objects().sets;
        sets.deleted(work.namespace(), work.name(), work.uid());
    }
    done
}

fn others(work: &Work<'_>) -> Vec<String> {
    let all = work.set.metadata.finalizers.iter().flatten();
    all.filter(|f| *f != keys::PRE_RECLAIM_FINALIZER)
        .cloned()
        .collect()
}

/// A merge patch takes the list as a whole, hence on condition of the version looked at.
async fn set(work: &Work<'_>, finalizers: &[String]) -> Result<(), Halt> {
    let metadata = &work.set.metadata;
    let patch = Patch::Merge(json!({ "metadata": {
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "finalizers": finalizers,
    } }));
    let object = (work.namespace(), work.name());
    let request = write::patch::<SetObject>(work.client(), work.objects(), object, &patch, false);
    call(&format!("CollaSet {}", work.name()), request)
        .await
        .map_err(|trouble| trouble.halt(Step::Revisions))
}
