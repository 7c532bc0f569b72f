//! Checks the state of a set that has been left alone.

use super::super::world::{World, is_job_over};
use super::actions::is_sequence;
use super::decorations;
use super::invariants::{ensure, members};
use crate::api::keys;
use crate::domain::collaset::headroom;
use crate::domain::collaset::pool;
use crate::domain::collaset::revision::data::pvc_templates;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};
use crate::domain::pod::Pod;

/// Removes all faults, and the requests that only users withdraw.
pub fn lift_obstacles(world: &mut World) {
    world.faults = Default::default();
    world.forbidden.clear();
    world.pool_bytes = headroom::MAX_POOL_BYTES;
    world.kubelets.clear();
    world.decorations.refuses_revisions = false;
    world.delete_decoration(decorations::FAILING);
    world.edit(serde_json::json!({
        "paused": false, "scaleStrategy": { "podToDelete": [], "podToInclude": [], "podToExclude": [] },
        "updateStrategy": { "rollingUpdate": { "steps": [] } },
    }));
    // A command that no plan has seen yet might be an abort. An aborted rollout is retried.
    let annotations = world.set.metadata.annotations.get_or_insert_default();
    annotations.remove(keys::ROLLOUT);
    let rollout = world.set.status.as_ref().and_then(|s| s.rollout.as_ref());
    if rollout.is_some_and(|rollout| rollout.aborted) {
        world.command("retry");
    }
    let names: Vec<String> = world.pods.keys().cloned().collect();
    let keeps_names = is_sequence(world);
    for name in names {
        world.write_pod(&name, |pod| {
            let labels = &mut pod.metadata.labels;
            labels.retain(|key, _| ![keys::TO_REPLACE, keys::STAY_OFFLINE].contains(&&**key));
            if keeps_names {
                labels.remove(keys::TO_EXCLUDE); // otherwise the exclusion is refused as long as the label exists
            }
        });
        let pod = &world.pods[&name];
        let mut pvcs = pod
            .spec
            .pvcs
            .iter()
            .filter_map(|pvc_name| world.pvcs.get(pvc_name));
        let holds = pvcs.any(|pvc| !pvc.labels.contains_key(keys::ORPHANED));
        // Delete a Pod outside the set that holds a persistent name or a PVC.
        let foreign = !world.owns(pod) || !pod.is_managed() || pod.label("app") != Some("web");
        if foreign && (keeps_names || holds) {
            world.delete(&name);
        }
    }
}

/// Checks that the set is as its spec says.
pub fn check_at_rest(world: &World) -> Result<(), String> {
    for (name, job) in &world.jobs {
        ensure!(is_job_over(job), "{name} is not over: {job:?}");
    }
    for pod in world.pods.values() {
        let mut labels = pod.metadata.labels.keys();
        let left = labels.find(|key| key.contains("/operationjob-"));
        ensure!(left.is_none(), "{left:?} stays on {}", pod.metadata.name);
        let answer = pod.annotation(keys::ACTION_RESULT);
        ensure!(
            answer.is_none(),
            "{answer:?} stays on {}",
            pod.metadata.name
        );
    }
    let strategy = ResolvedStrategy::from_spec(&world.set.spec);
    let wanted = strategy.replicas;
    let all = members(world);
    ensure!(
        all.len() == wanted,
        "{} Pods, {wanted} are wanted",
        all.len()
    );
    let members = world.members();
    let status = world.set.status.clone().unwrap_or_default();
    let old = || {
        let pods = members.values();
        pods.filter(|p| p.label(keys::REVISION) != Some(&status.updated_revision))
    };
    match strategy.scope {
        UpdateScope::Partition(partition) => {
            let old = old().count();
            ensure!(
                old <= partition,
                "{old} Pods of older revisions, {partition} may be"
            );
        }
        UpdateScope::ByLabel => {
            let labelled = old().find(|p| p.label(keys::UPDATE_INCLUDED).is_some());
            ensure!(
                labelled.is_none(),
                "{labelled:?} is labelled and not updated"
            );
        }
    }
    for (id, pod) in &members {
        let revision = pod.label(keys::REVISION).unwrap_or_default();
        let Some(revision) = world.revisions.get(revision) else {
            continue; // the Pod has an older revision, see above
        };
        // The Pod is as the revision in its label says.
        let image = &revision.data["spec"]["template"]["spec"]["containers"][0]["image"];
        let plain = pod.spec.containers[0].image.split('@').next();
        ensure!(
            plain == image.as_str(),
            "ID {id} is to run {plain:?} instead of {image}"
        );
        for key in [
            keys::TO_REPLACE,
            keys::REPLACE_PAIR_NEW_ID,
            keys::REPLACE_PAIR_ORIGIN_NAME,
            keys::REPLACED_BY_REPLACE_UPDATE,
        ] {
            ensure!(pod.label(key).is_none(), "ID {id} still has {key}");
        }
        let (pvc_names, templates) = (&pod.spec.pvcs, pvc_templates(&revision.data));
        ensure!(
            pvc_names.len() == templates.len(),
            "ID {id} has the PVCs {pvc_names:?}"
        );
        for pvc_name in pvc_names {
            let pvc = &world.pvcs[pvc_name];
            let carried = pvc.labels.get(keys::INSTANCE_ID);
            ensure!(
                carried == Some(&id.to_string()),
                "{} has {carried:?}, not {id}",
                pvc.name
            );
            ensure!(
                pvc.belongs_to_set(Some(world.uid())),
                "{pvc:?} does not belong to the set"
            );
        }
    }
    decorations::check_decorations(world)?;
    let contexts = world.pool.iter().flat_map(|p| &p.contexts);
    let ids: Vec<i64> = contexts.clone().map(|c| c.id).collect();
    let existing = world.ids();
    ensure!(
        ids == existing,
        "the pool holds {ids:?}, there are {existing:?}"
    );
    for context in contexts {
        let revision = members[&context.id].label(keys::REVISION);
        let revision = revision.filter(|name| world.revisions.contains_key(*name));
        let recorded = context.data.get(pool::REVISION).map(String::as_str);
        let is_right = revision.is_none_or(|revision| recorded == Some(revision));
        ensure!(is_right, "{recorded:?} is recorded for {revision:?}");
    }
    if !strategy.retain_scaled {
        for pvc in world.pvcs.values() {
            let owned = pvc.belongs_to_set(Some(world.uid()));
            let mounted = world.pods.values().any(|p| p.spec.pvcs.contains(&pvc.name));
            // If an instance has several PVCs for one volume, the unused ones are deleted with the instance.
            let id = pvc
                .labels
                .get(keys::INSTANCE_ID)
                .and_then(|id| id.parse().ok());
            let served = id.is_some_and(|id| members.contains_key(&id));
            ensure!(!owned || mounted || served, "PVC {} is left over", pvc.name);
        }
    }
    let has_left = |pod: &&Pod| pod.controller().is_none() && !pod.is_finished();
    for pod in world.pods.values().filter(has_left) {
        let pvcs = pod
            .spec
            .pvcs
            .iter()
            .filter_map(|pvc_name| world.pvcs.get(pvc_name));
        let mut owned = pvcs.filter(|pvc| pvc.belongs_to_set(Some(world.uid())));
        let owned = owned.next().map(|pvc| &pvc.name);
        let name = &pod.metadata.name;
        ensure!(
            owned.is_none(),
            "Pod {name} has left, and its PVC {owned:?} has not"
        );
    }
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    // The Pod was resized halfway and is out of the scope of the rollout. Users have to decide about it.
    let by_label = matches!(strategy.scope, UpdateScope::ByLabel);
    let is_kept = by_label && ready.is_some_and(|c| c.message.contains("is kept on revision"));
    ensure!(
        is_kept || ready.is_some_and(|c| c.status == "True"),
        "{ready:?}"
    );
    Ok(())
}
