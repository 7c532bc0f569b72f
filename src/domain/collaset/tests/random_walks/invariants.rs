//! Checks what must hold after every step. The checks read the objects and not the planner's view of them.

use std::collections::{BTreeMap, BTreeSet};

use super::super::world::{World, WriteKind};
use crate::api::collaset::{CollaSetStatus, RolloutStatus};
use crate::api::keys::{self, Family};
use crate::domain::collaset::plan::{PodChange, SetPlan};
use crate::domain::collaset::pool;
use crate::domain::collaset::revision::data;
use crate::domain::collaset::strategy::{ResolvedStep, ResolvedStrategy, UpdateScope};
use crate::domain::lifecycle::{is_held_offline, operator};
use crate::domain::pod::{Pod, Resources};

type Verdict = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

/// Whether an operation of the set is in progress.
pub fn is_on(pod: &Pod, type_: &str) -> bool {
    operator::is_in_progress(pod, "collaset", type_)
}

fn is_leaving(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some() || operator::is_in_progress(pod, "pod-delete", "delete")
}

/// The Pods that count as members.
pub fn members(world: &World) -> Vec<&Pod> {
    let pods = world.pods.values();
    let counts = |pod: &&Pod| {
        world.owns(pod)
            && pod.is_managed()
            && !pod.is_terminating()
            && !pod.is_finished()
            && pod.label("app") == Some("web")
    };
    pods.filter(counts).collect()
}

/// Whether a Pod is the new Pod of a pair. A name may be used again: a Pod that was created later and names no new Pod
/// of its own is not the origin.
pub fn is_half(world: &World, pod: &Pod) -> bool {
    let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
    let origin = origin.and_then(|name| world.pods.get(name));
    origin.is_some_and(|origin| {
        let paired = match origin.label(keys::REPLACE_PAIR_NEW_ID) {
            Some(_) => true,
            None => origin.metadata.creation_timestamp < pod.metadata.creation_timestamp,
        };
        paired && world.owns(origin) && origin.is_managed() && !origin.is_terminating()
    })
}

/// Checks a plan against the world before the plan.
pub fn judge_plan(world: &World, plan: &SetPlan) -> Verdict {
    judge_deletions(plan)?;
    judge_creations(world, plan)?;
    if world.set.metadata.deletion_timestamp.is_none() {
        let status = plan.status.as_ref().or(world.set.status.as_ref());
        if let Some(status) = status {
            judge_begun_updates(world, plan, status)?;
            judge_instances(world, plan)?;
            judge_conditions(world, plan, status)?;
        }
    }
    Ok(())
}

/// Checks that the plan gives up no instance whose Pod is missing for now, unless there are more instances than wanted.
/// Instances with a request to exclude them do not count.
fn judge_instances(world: &World, plan: &SetPlan) -> Verdict {
    let (Some(stored), Some(next)) = (&world.pool, &plan.pool) else {
        return Ok(());
    };
    let strategy = ResolvedStrategy::from_spec(&world.set.spec);
    let is_of = |pod: &&Pod, id: i64| pod.label(keys::INSTANCE_ID) == Some(&id.to_string());
    let to_exclude = |pod: &Pod| {
        let is_named = strategy.exclude.contains(&pod.metadata.name);
        is_named || pod.label(keys::TO_EXCLUDE).is_some()
    };
    // A leaving Pod takes its ID along, even if somebody has removed or changed its label.
    let carries_its_own = |pod: &Pod| {
        let mut ids = stored.contexts.iter().map(|entry| entry.id);
        let is_named = |id: i64| !strategy.sequence || pod.metadata.name == format!("web-{id}");
        ids.any(|id| is_of(&pod, id) && is_named(id))
    };
    let mut own = world.pods.values().filter(|pod| world.owns(pod));
    let is_leaving = |pod: &Pod| to_exclude(pod) || pod.label("app") != Some("web");
    if own.any(|pod| !carries_its_own(pod) && is_leaving(pod)) {
        return Ok(());
    }
    // If somebody has changed an ID and two Pods have the same, one of them may have another place.
    let leaves = |id: i64| {
        let mut pods = members(world).into_iter().filter(|pod| is_of(pod, id));
        !strategy.sequence && pods.next().is_some_and(to_exclude) && pods.all(to_exclude)
    };
    let counts = |data: &BTreeMap<String, String>| {
        !data.contains_key(pool::REPLACE_ORIGIN) && !data.contains_key(pool::REPLACED)
    };
    let has_a_pod = |id: i64| world.pods.values().any(|pod| is_of(&pod, id));
    let given_up = stored.contexts.iter().find(|entry| {
        let is_kept = next.iter().any(|other| other.id == entry.id);
        // The new Pod of its pair stands for it.
        let is_replaced = entry.data.contains_key(pool::REPLACE_NEW);
        counts(&entry.data) && !is_replaced && !is_kept && !has_a_pod(entry.id)
    });
    let remaining = next.iter().filter(|c| counts(&c.data) && !leaves(c.id));
    let (remaining, wanted) = (remaining.count(), strategy.replicas);
    match given_up {
        Some(entry) if remaining < wanted => Err(format!(
            "instance ID {} is given up, and {remaining} of {wanted} are left",
            entry.id
        )),
        _ => Ok(()),
    }
}

/// Checks that no serving Pod is deleted.
fn judge_deletions(plan: &SetPlan) -> Verdict {
    for change in &plan.pods {
        if let PodChange::Delete(pod, _) = change {
            let operated = ["update", "scale-in"].iter().any(|type_| {
                is_on(pod, type_) && pod.label(&Family::Operate.key("collaset")).is_some()
            });
            let name = &pod.metadata.name;
            ensure!(
                pod.is_finished() || operated,
                "Pod {name} is deleted out of turn"
            );
        }
    }
    Ok(())
}

/// Whether the pool records that `podToDelete` meant an earlier Pod of this name.
fn is_made_again(world: &World, plan: &SetPlan, pod: &Pod) -> bool {
    let id = label_after_plan(plan, pod, keys::INSTANCE_ID).and_then(|id| id.parse().ok());
    let mut entries = world.pool.iter().flat_map(|pool| &pool.contexts);
    let entry = entries.find(|entry| Some(entry.id) == id);
    let mark = entry.and_then(|entry| entry.data.get(pool::DELETED));
    mark.is_some_and(|mark| *mark != pool::pod_digest(pod))
}

/// The value of a label after the plan.
fn label_after_plan<'a>(plan: &'a SetPlan, pod: &'a Pod, key: &str) -> Option<&'a str> {
    let mut patches = plan.pods.iter().filter_map(|change| match change {
        PodChange::Patch(patch) if patch.pod.metadata.uid == pod.metadata.uid => Some(patch),
        _ => None,
    });
    match patches.next().and_then(|patch| patch.labels.0.get(key)) {
        Some(value) => value.as_deref(),
        None => pod.label(key),
    }
}

fn is_deleted(plan: &SetPlan, pod: &Pod) -> bool {
    plan.pods.iter().any(|change| match change {
        PodChange::Delete(deleted, _) => deleted.metadata.uid == pod.metadata.uid,
        _ => false,
    })
}

fn is_released(plan: &SetPlan, pod: &Pod) -> bool {
    use crate::domain::collaset::plan::OwnershipChange;
    plan.pods.iter().any(|change| match change {
        PodChange::Patch(patch) => {
            patch.pod.metadata.uid == pod.metadata.uid
                && patch.ownership == OwnershipChange::Release
        }
        _ => false,
    })
}

/// Whether the plan asks for the deletion of a Pod, or begins its scale-in.
fn is_taken_away(plan: &SetPlan, pod: &Pod) -> bool {
    let [operating, type_] = [Family::Operating, Family::OperationType].map(|f| f.key("collaset"));
    let is_scaled_in = label_after_plan(plan, pod, &operating).is_some()
        && label_after_plan(plan, pod, &type_) == Some("scale-in");
    label_after_plan(plan, pod, keys::TO_DELETE).is_some() || is_scaled_in
}

/// Checks that no instance ID has two Pods that both stay, and that each ID is in the pool before its Pod is created.
fn judge_creations(world: &World, plan: &SetPlan) -> Verdict {
    let mut ids = BTreeSet::new();
    let staying = members(world).into_iter().filter(|pod| {
        let goes = label_after_plan(plan, pod, keys::TO_DELETE).is_some() || is_leaving(pod);
        !goes && !is_deleted(plan, pod) && !is_released(plan, pod)
    });
    if world.set.metadata.deletion_timestamp.is_none() {
        for pod in staying {
            let id = label_after_plan(plan, pod, keys::INSTANCE_ID);
            let name = &pod.metadata.name;
            ensure!(id.is_some(), "Pod {name} is kept without an instance ID");
            ensure!(
                ids.insert(id),
                "instance ID {id:?} is kept twice, by Pod {name} too"
            );
        }
    }
    let stored = world.pool.iter().map(|pool| &pool.contexts);
    let pool = plan
        .pool
        .as_ref()
        .or_else(|| stored.into_iter().next_back());
    for change in &plan.pods {
        if let PodChange::Create { id, .. } = change {
            let text = id.to_string();
            ensure!(
                !ids.contains(&Some(text.as_str())),
                "a second Pod of instance ID {id} is made"
            );
            let is_known = pool.is_some_and(|pool| pool.iter().any(|c| c.id == *id));
            ensure!(
                is_known,
                "the Pod of instance ID {id} is made, and the pool does not know it"
            );
        }
    }
    Ok(())
}

/// The revision that the pool records for the ID of a Pod after the plan.
fn recorded_revision(world: &World, plan: &SetPlan, pod: &Pod) -> Option<String> {
    let id: i64 = label_after_plan(plan, pod, keys::INSTANCE_ID)?
        .parse()
        .ok()?;
    let stored = world.pool.as_ref().map(|pool| &pool.contexts);
    let mut entries = plan.pool.as_ref().or(stored)?.iter();
    let entry = entries.find(|entry| entry.id == id)?;
    entry.data.get(pool::REVISION).cloned()
}

/// The stored position of the rollout when the plan was made.
fn stored(world: &World) -> Option<&RolloutStatus> {
    world.set.status.as_ref()?.rollout.as_ref()
}

/// Whether a Pod goes back from a later revision to the current one, because the template was rolled back.
fn is_taken_back(world: &World, status: &CollaSetStatus, pod: &Pod) -> bool {
    let updated = &status.updated_revision;
    let status = world.set.status.as_ref();
    let is_back = status.is_some_and(|status| status.current_revision == *updated);
    let made = |name: &str| world.revisions.get(name)?.creation_timestamp;
    let of = pod.label(keys::REVISION).unwrap_or_default();
    is_back && made(updated).is_some() && made(of) > made(updated)
}

/// The Pods that may be updated now. A plan uses the stored position, and an aborted rollout takes all Pods back.
fn scope(world: &World, status: &CollaSetStatus, strategy: &ResolvedStrategy) -> UpdateScope {
    let Some(next) = status.rollout.as_ref() else {
        return strategy.scope;
    };
    let stored = stored(world).filter(|stored| stored.revision == next.revision);
    if stored.is_some_and(|stored| stored.aborted) {
        return UpdateScope::Partition(0); // also in the plan that carries out a retry
    }
    if next.step == 0 && !next.aborted {
        return strategy.scope;
    }
    let UpdateScope::Partition(final_partition) = strategy.scope else {
        return strategy.scope;
    };
    let steps = &strategy.steps;
    let stored = stored.filter(|stored| usize::try_from(stored.steps) == Ok(steps.len()));
    let step = stored.map_or(1, |stored| usize::try_from(stored.step.max(1)).unwrap());
    if step > steps.len() {
        return strategy.scope;
    }
    let partition = steps[..step].iter().rev().find_map(|step| match step {
        ResolvedStep::Partition(final_partition) => Some(*final_partition),
        ResolvedStep::Pause(_) => None,
    });
    UpdateScope::Partition(final_partition.max(partition.unwrap_or(usize::MAX)))
}

/// Checks that updates begin within their bounds.
fn judge_begun_updates(world: &World, plan: &SetPlan, status: &CollaSetStatus) -> Verdict {
    let strategy = ResolvedStrategy::from_spec(&world.set.spec);
    let members = members(world);
    // If the plan ends a pair, its new Pod counts like any other.
    let is_paired = |pod: &Pod| {
        is_half(world, pod) && label_after_plan(plan, pod, keys::REPLACE_PAIR_ORIGIN_NAME).is_some()
    };
    let counted: Vec<&Pod> = members.iter().copied().filter(|p| !is_paired(p)).collect();
    let type_ = Family::OperationType.key("collaset");
    let only_tried = |pod: &Pod| {
        plan.pods.iter().any(|change| match change {
            PodChange::Patch(patch) => {
                patch.dry_run_only && patch.pod.metadata.uid == pod.metadata.uid
            }
            _ => false,
        })
    };
    let begins = |pod: &Pod| {
        !is_on(pod, "update")
            && !only_tried(pod)
            && label_after_plan(plan, pod, &Family::Operating.key("collaset")).is_some()
            && label_after_plan(plan, pod, &type_) == Some("update")
    };
    let opens = |pod: &Pod| {
        pod.label(keys::TO_REPLACE).is_none()
            && label_after_plan(plan, pod, keys::TO_REPLACE).is_some()
    };
    let beginning: Vec<&Pod> = counted.iter().copied().filter(|p| begins(p)).collect();
    let opened = counted.iter().filter(|p| opens(p)).count();
    if beginning.is_empty() && opened == 0 {
        return Ok(());
    }
    ensure!(!strategy.paused, "a paused set begins an update");
    let is_old = |pod: &Pod| pod.label(keys::REVISION) != Some(&status.updated_revision);
    // An update for decorations alone keeps the revision, and the scope of the rollout does not matter for it.
    let keeps_revision = |pod: &Pod| {
        let recorded = recorded_revision(world, plan, pod);
        let own = pod.label(keys::REVISION);
        // A Pod of an unknown revision is created again of the current one.
        let is_unknown = own.is_none_or(|own| !world.revisions.contains_key(own));
        !world.decorations.objects.is_empty() && (is_unknown || recorded.as_deref() == own)
    };
    let moves = |pod: &Pod| (begins(pod) || opens(pod)) && !keeps_revision(pod);
    if let UpdateScope::Partition(partition) = scope(world, status, &strategy) {
        // A Pod whose update is cancelled stays unchanged, unless it is replaced instead.
        let undo = Family::UndoOperationType.key("collaset");
        let is_staying = |pod: &&Pod| {
            let is_updated = is_on(pod, "update")
                && (opens(pod) || label_after_plan(plan, pod, &undo).is_none());
            let is_replaced = pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
                && (pod.label(keys::TO_REPLACE).is_some() || pod.label(keys::TO_DELETE).is_none());
            let goes = (is_updated || is_replaced) && !keeps_revision(pod);
            is_old(pod) && !goes && !is_taken_back(world, status, pod)
        };
        let before = counted.iter().copied().filter(is_staying);
        let after = before.clone().filter(|pod| !moves(pod)).count();
        let least = partition.min(before.count());
        ensure!(
            after >= least,
            "{after} Pods stay on older revisions, {least} are to"
        );
    } else {
        for pod in counted.iter().filter(|p| moves(p)) {
            let (name, label) = (&pod.metadata.name, pod.label(keys::UPDATE_INCLUDED));
            ensure!(label.is_some(), "Pod {name} is updated without the label");
        }
    }
    if let Some(most) = strategy.max_unavailable {
        let serves = |pod: &&&Pod| {
            let goes = is_on(pod, "update") || is_on(pod, "scale-in") || is_leaving(pod);
            pod.is_available() && !goes && !is_taken_away(plan, pod)
        };
        let serving = counted.iter().filter(serves);
        let remaining = serving.clone().filter(|pod| !begins(pod)).count();
        let needed = strategy.replicas.saturating_sub(most);
        let taken = serving.count() - remaining;
        ensure!(
            taken == 0 || remaining >= needed,
            "an update takes {taken} Pods and leaves {remaining}, {needed} are to stay"
        );
    }
    if let Some(most) = strategy.max_surge {
        let open = |pod: &&&Pod| {
            pod.label(keys::TO_REPLACE).is_some()
                && pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some()
        };
        // The new Pod of a cancelled pair counts until it is terminating or the pair is over. If it has its origin's
        // revision, a user had asked for it.
        let cancelled = |pod: &&&Pod| {
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let origin = origin.and_then(|name| world.pods.get(name));
            is_half(world, pod)
                && label_after_plan(plan, pod, keys::REPLACE_PAIR_ORIGIN_NAME).is_some()
                && origin.is_some_and(|origin| {
                    origin.label(keys::TO_REPLACE).is_none()
                        && !opens(origin) // the pair continues
                        && origin.label(keys::REVISION) != pod.label(keys::REVISION)
                })
        };
        let cancelled = members.iter().filter(cancelled).count();
        let open = members.iter().filter(open).count() + cancelled;
        ensure!(
            opened == 0 || open + opened <= most,
            "{opened} pairs are opened beside {open}, {most} may be"
        );
    }
    Ok(())
}

/// Checks that the conditions are true.
fn judge_conditions(world: &World, plan: &SetPlan, status: &CollaSetStatus) -> Verdict {
    let is_true = |type_: &str| {
        let mut conditions = status.conditions.iter();
        conditions.any(|c| c.type_ == type_ && c.status == "True")
    };
    let strategy = ResolvedStrategy::from_spec(&world.set.spec);
    let members = members(world);
    let half = |p: &Pod| {
        is_half(world, p) && label_after_plan(plan, p, keys::REPLACE_PAIR_ORIGIN_NAME).is_some()
    };
    let halves = members.iter().filter(|p| half(p)).count();
    let staying = members.iter().filter(|p| !is_deleted(plan, p));
    let ids: Vec<_> = staying
        .map(|p| label_after_plan(plan, p, keys::INSTANCE_ID))
        .collect();
    let distinct: BTreeSet<_> = ids.iter().collect();
    if is_true("Scale") || is_true("Ready") {
        let (instances, wanted) = (members.len() - halves, strategy.replicas);
        ensure!(
            instances == wanted,
            "Scale or Ready is True with {instances} Pods of {wanted}"
        );
        ensure!(
            ids.len() == distinct.len(),
            "Scale or Ready is True with shared instance IDs"
        );
    }
    let is_old = |pod: &&&Pod| pod.label(keys::REVISION) != Some(&status.updated_revision);
    // If two Pods have one ID, the one that is deleted takes no part in an update.
    let is_double = |pod: &Pod| {
        let id = label_after_plan(plan, pod, keys::INSTANCE_ID);
        let mut others = members
            .iter()
            .filter(|p| p.metadata.uid != pod.metadata.uid);
        label_after_plan(plan, pod, keys::TO_DELETE).is_some()
            && others.any(|other| label_after_plan(plan, other, keys::INSTANCE_ID) == id)
    };
    let single = members.iter().filter(|pod| !is_double(pod));
    let old = single.clone().filter(is_old);
    // A pair counts as one Pod.
    let is_half_of_old = |pod: &Pod| {
        let origin = label_after_plan(plan, pod, keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|name| old.clone().any(|old| old.metadata.name == name))
    };
    let seconds: Vec<_> = old.clone().filter(|pod| is_half_of_old(pod)).collect();
    let old = old.filter(|pod| {
        !seconds
            .iter()
            .any(|half| half.metadata.uid == pod.metadata.uid)
    });
    let behind = match strategy.scope {
        UpdateScope::Partition(partition) => old.count().saturating_sub(partition),
        UpdateScope::ByLabel => old
            .filter(|p| p.label(keys::UPDATE_INCLUDED).is_some())
            .count(),
    };
    if is_true("Update") || is_true("Ready") {
        ensure!(
            behind == 0,
            "Update or Ready is True, and {behind} Pods are behind"
        );
        let updating = single.clone().find(|pod| is_on(pod, "update"));
        let name = updating.map(|pod| &pod.metadata.name);
        ensure!(
            name.is_none(),
            "Update or Ready is True, and Pod {name:?} is updated"
        );
    }
    let stalled = status.conditions.iter().find(|c| c.type_ == "Stalled");
    let mut rollouts = [stored(world), status.rollout.as_ref()]
        .into_iter()
        .flatten();
    let aborted = rollouts.any(|rollout| rollout.aborted);
    ensure!(
        stalled.is_none() || aborted || strategy.progress_deadline.is_some(),
        "without a deadline {stalled:?}"
    );
    if !is_true("Ready") {
        return Ok(());
    }
    ensure!(stalled.is_none(), "Ready is True, and {stalled:?}");
    let rollout = status.rollout.as_ref();
    let over = rollout.is_none_or(|r| !r.aborted && r.step > r.steps || r.steps == 0);
    ensure!(over, "Ready is True, and a rollout is at {rollout:?}");
    ensure!(halves == 0, "Ready is True with {halves} open pairs");
    let generation = world.set.metadata.generation;
    ensure!(
        Some(status.observed_generation) == generation,
        "Ready is True for generation {}",
        status.observed_generation
    );
    let created = plan.revisions.iter().find_map(|change| match change {
        crate::domain::collaset::plan::RevisionChange::Create(new) => Some(&**new),
        _ => None,
    });
    let stored = world.revisions.get(&status.updated_revision);
    let updated = stored.or(created.filter(|new| new.name == status.updated_revision));
    let same = updated.is_some_and(|updated| {
        data::is_equal_data(&updated.data, &data::revision_data(&world.set.spec))
    });
    ensure!(
        same,
        "Ready is True, and {} is not the template",
        status.updated_revision
    );
    for pod in &members {
        let name = &pod.metadata.name;
        ensure!(
            pod.is_available(),
            "Ready is True, and Pod {name} is not available"
        );
        let goes = label_after_plan(plan, pod, keys::TO_DELETE).is_some();
        ensure!(
            !is_leaving(pod) && !goes,
            "Ready is True, and Pod {name} is to be deleted"
        );
        // Admission refuses a Pod in several lists. Such a Pod stays, and the message says why.
        let in_all = strategy.include.contains(name) && strategy.exclude.contains(name);
        let named = strategy.delete.contains(name) && !is_made_again(world, plan, pod);
        let named = named && !in_all;
        ensure!(!named, "Ready is True, and podToDelete names Pod {name}");
        let replaced = label_after_plan(plan, pod, keys::TO_REPLACE).is_some();
        ensure!(!replaced, "Ready is True, and Pod {name} is to be replaced");
        ensure!(
            !is_released(plan, pod),
            "Ready is True, and Pod {name} leaves the set"
        );
        ensure!(
            !is_on(pod, "scale-in"),
            "Ready is True, and Pod {name} is scaled in"
        );
        if !is_old(&pod) {
            judge_running_pod(world, pod)?;
        }
    }
    Ok(())
}

/// Checks that an updated Pod is as the template says, and that its containers run accordingly.
fn judge_running_pod(world: &World, pod: &Pod) -> Verdict {
    let name = &pod.metadata.name;
    let template = &world.set.spec.template["spec"]["containers"][0];
    let container = &pod.spec.containers[0];
    let plain = container.image.split('@').next().unwrap_or_default();
    ensure!(
        plain == template["image"],
        "Ready is True, and Pod {name} is to run {plain}"
    );
    let status = pod
        .status
        .container_statuses
        .iter()
        .find(|s| s.name == "app");
    let status = status.ok_or_else(|| format!("Ready is True, and Pod {name} runs nothing"))?;
    ensure!(
        status.image == container.image,
        "Ready is True, and Pod {name} runs {} instead of {}",
        status.image,
        container.image
    );
    let requested = Resources::from_resources(&template["resources"]);
    ensure!(
        requested == Resources::default()
            || requested == Resources::from_resources(&container.resources),
        "Ready is True, and Pod {name} is to have {} instead of {}",
        container.resources,
        template["resources"]
    );
    let wanted = Resources::from_resources(&container.resources);
    let (is, reported) = (status.resources, [status.resources, wanted]);
    // The set does not wait for an update that somebody has ended by hand.
    let is_cut_short = pod.annotation(keys::LAST_POD_STATUS).is_some() && !is_on(pod, "update");
    ensure!(
        reported.contains(&Resources::default()) || is == wanted || is_cut_short,
        "Ready is True, and Pod {name} has its former resources"
    );
    Ok(())
}

/// Checks what must hold in a world at any time.
pub fn judge_cluster(world: &World) -> Verdict {
    let mut writers = BTreeMap::new();
    for pod in world.pods.values().filter(|pod| !pod.is_finished()) {
        let name = &pod.metadata.name;
        for pvc_name in &pod.spec.pvcs {
            let other = writers.insert(pvc_name, name);
            ensure!(
                other.is_none(),
                "PVC {pvc_name} is mounted by {name} and {other:?}"
            );
            ensure!(
                world.pvcs.contains_key(pvc_name),
                "PVC {pvc_name} of Pod {name} is gone"
            );
        }
    }
    Ok(())
}

/// Checks what must hold when nothing changes any more, even if something is refused: the status names every Pod that
/// is off traffic for an operation of the set.
pub fn judge_stuck(world: &World) -> Verdict {
    if world.is_deleted || world.set.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let status = world.set.status.clone().unwrap_or_default();
    let conditions: Vec<_> = status
        .conditions
        .iter()
        .filter(|c| c.status == "False")
        .collect();
    for pod in world.pods.values() {
        let operating = Family::Operating.key("collaset");
        let off = is_held_offline(pod) && pod.label(&operating).is_some();
        let is_of_a_set = pod.is_managed() && pod.label(keys::INSTANCE_ID).is_some();
        if !off || pod.is_terminating() || pod.is_finished() || !is_of_a_set {
            continue;
        }
        let name = &pod.metadata.name;
        let own = ["update", "scale-in"].iter().any(|type_| is_on(pod, type_));
        ensure!(
            !own || world.owns(pod),
            "Pod {name} was left off traffic by its set"
        );
        let reasons = conditions.iter().any(|c| {
            let names = c.message.matches("Pod web-").count() >= 3;
            c.message.contains(name.as_str()) || names || c.message.contains(": refused: ")
        });
        ensure!(
            !own || reasons,
            "Pod {name} is off traffic and nobody says why: {conditions:#?}"
        );
        // If an update has not changed the Pod yet, the Pod goes back on traffic, provided that it can be written.
        let faults = &world.faults;
        let is_free = !faults.refused.contains(&WriteKind::PodPatch)
            && !faults.stubborn.contains(&pod.metadata.uid)
            && !faults.holds_back;
        let is_unchanged = [keys::LAST_POD_STATUS, keys::RESIZING]
            .iter()
            .all(|key| pod.annotation(key).is_none());
        let operates = pod.label(&Family::Operate.key("collaset")).is_some();
        ensure!(
            !(is_free && is_unchanged && operates && is_on(pod, "update")),
            "Pod {name} stays off traffic for an update that has changed nothing: {conditions:#?}"
        );
    }
    Ok(())
}
