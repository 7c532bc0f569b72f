//! The finalizer that keeps a CollaSet until what belongs to it is reclaimed (contract 2.3).

use kube::core::params::Patch;
use serde_json::json;
use tokio::time::Instant;

use super::super::call::{Halt, Trouble, call};
use super::super::refusals::Key;
use super::{Work, events};
use crate::api::keys;
use crate::cluster::workloads::{SetObject, write};
use crate::domain::collaset::status::Step;

/// Adds it.
pub async fn add(work: &Work<'_>) -> Result<(), Halt> {
    let mut all = others(work);
    all.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
    let mut done = set(work, &all).await;
    let now = work.objects().sets.get(work.namespace(), work.name());
    let now = now.map(|now| now.metadata.finalizers.clone().unwrap_or_default());
    if done.is_ok() && now.is_some_and(|now| !now.contains(&keys::PRE_RECLAIM_FINALIZER.to_owned()))
    {
        let what = format!("the finalizer of CollaSet {}", work.name());
        done = Err(Trouble::is_not_in(&what).halt(Step::Revisions));
    }
    let done = work.again_if_written(done);
    events::failure(work, "FailedAddFinalizer", &done);
    done
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
