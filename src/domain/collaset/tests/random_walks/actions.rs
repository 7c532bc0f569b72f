//! The actions of a walk: of users, of other controllers and of nodes, faults of the API server, and the passing of
//! time.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::super::world::{Kubelet, Resizing, World, WriteKind};
use super::decorations;
use crate::api::collaset::PodNamingSuffixPolicy;
use crate::api::keys::{self, Family};
use crate::domain::collaset::headroom;
use crate::domain::collaset::pvcs::hash::hash_template;
use crate::domain::collaset::revision::data::pvc_templates;

/// One action. Pods are named by their index among all Pods of the namespace.
#[derive(Clone, Debug)]
pub enum WalkAction {
    /// A user edits the spec.
    Edit(Value),
    /// A user commands a rollout.
    Command(&'static str),
    /// A user puts one Pod, or none, into a list of the spec.
    List(&'static str, Option<usize>),
    /// Somebody else writes to a Pod.
    Label(usize, String, Option<String>),
    /// Somebody else writes to the first PVC of a Pod of the set.
    LabelPvc(usize, &'static str, String),
    /// A Pod is deleted, or fails.
    Kill(usize),
    Fail(usize),
    /// Somebody removes the owner of a Pod.
    Orphan(usize),
    /// The properties of its kubelet change.
    Kubelet(usize, Kubelet),
    /// Every write of the set to this Pod is refused from now on, or accepted again.
    Stubborn(usize, bool),
    /// The deletion of this Pod is refused from now on, or accepted again.
    Undeletable(usize, bool),
    /// Somebody edits the pool.
    LosePool,
    LoseEntry(usize),
    /// The controller restarts.
    Forget,
    /// The API server begins or stops to refuse something.
    Refuse(WriteKind, bool),
    Forbid(u8, bool),
    Unpullable(u8, bool),
    MostPods(Option<usize>),
    MostPvcs(Option<usize>),
    /// The pool has space for this many instance IDs of Pods without pairs.
    PoolRoom(usize),
    /// Whether webhooks pin images at creations and at changes.
    Pins(bool, bool),
    /// Whether rules let no Pod go off traffic, and whether they let none come back.
    Hold(bool, bool),
    Budget(Option<usize>),
    /// The set is deleted, with its Pods or without, and created again later.
    DeleteSet(bool),
    /// A user creates or edits a PodDecoration.
    Decorate(&'static str, Value),
    /// A user deletes a PodDecoration.
    Undecorate(&'static str),
    /// Another leader has published no PodDecoration yet.
    ForgetDecorations,
    /// The API server begins or stops to refuse revisions of PodDecorations.
    RefuseDecorations(bool),
    /// A user creates an OperationJob of this action on so many Pods from this place on.
    CreateJob(&'static str, usize, usize),
    /// A user deletes an OperationJob.
    DeleteJob(usize),
    /// The program of an action answers.
    AnswerJob(&'static str),
    /// A plan is made and carried out, up to this many writes.
    Step(usize),
    /// Everybody else acts on the Pods in the mask.
    Turn(u8),
    /// This many seconds pass.
    Pass(u64),
    /// The walk continues until nothing changes, whatever is refused.
    Settle,
}

/// Each kind of action is part of a walk or not, so that an action that is rare among all kinds is frequent in some
/// walks.
const KINDS: [fn(&mut StdRng) -> WalkAction; 65] = [
    |rng| create_job(rng, "Replace"),
    |rng| create_job(rng, "walk.test/drain"),
    |rng| WalkAction::DeleteJob(rng.random_range(0..4)),
    |rng| {
        let answers = ["Succeeded", "Failed"];
        WalkAction::AnswerJob(answers.choose(rng).unwrap())
    },
    |rng| edit("replicas", rng.random_range(0..6)),
    |rng| edit("replicas", rng.random_range(2..5)),
    |rng| image(rng),
    |rng| image(rng),
    |rng| {
        let cpu = rng.random_range(1..4);
        container(json!({ "resources": { "requests": { "cpu": cpu.to_string() } } }))
    },
    |rng| {
        let tier = rng.random_range(0..3).to_string();
        WalkAction::Edit(json!({ "template": { "metadata": { "labels": { "tier": tier } } } }))
    },
    |rng| {
        let network = rng.random_bool(0.5);
        WalkAction::Edit(json!({ "template": { "spec": { "hostNetwork": network } } }))
    },
    |rng| {
        rolling(json!({ "byLabel": null, "byPartition": { "partition": rng.random_range(0..5) } }))
    },
    |rng| {
        let percent = rng.random_range(0..=100);
        let by = json!({ "partition": null, "partitionPercent": percent });
        rolling(json!({ "byLabel": null, "byPartition": by }))
    },
    |_| rolling(json!({ "byLabel": {}, "byPartition": null })),
    |rng| {
        let policies = ["Recreate", "InPlaceIfPossible", "Replace"];
        update("podUpgradePolicy", json!(policies.choose(rng).unwrap()))
    },
    |rng| edit("paused", rng.random_bool(0.4)),
    |rng| {
        let steps: Vec<Value> = (0..rng.random_range(0..4))
            .map(|_| draw_rollout_step(rng))
            .collect();
        rolling(json!({ "steps": steps }))
    },
    |rng| {
        let commands = ["promote", "promote", "promote-full", "abort", "retry", "go"];
        WalkAction::Command(commands.choose(rng).unwrap())
    },
    |rng| edit("minReadySeconds", rng.random_range(0..20)),
    |rng| match rng.random_bool(0.7) {
        true => edit("progressDeadlineSeconds", rng.random_range(20..60)),
        false => edit("progressDeadlineSeconds", Value::Null),
    },
    |rng| {
        let bounds = [json!(null), json!(1), json!(2), json!("30%"), json!("60%")];
        update("maxUnavailable", bounds.choose(rng).unwrap().clone())
    },
    |rng| {
        let bounds = [json!(null), json!(1), json!(2), json!("30%")];
        update("maxSurge", bounds.choose(rng).unwrap().clone())
    },
    |rng| {
        let mut policy = || *["Retain", "Delete"].choose(rng).unwrap();
        let policy = json!({ "whenScaled": policy(), "whenDeleted": policy() });
        scale(json!({ "persistentVolumeClaimRetentionPolicy": policy }))
    },
    |rng| WalkAction::Edit(json!({ "volumeClaimTemplates": templates(rng.random_range(0..4)) })),
    |rng| {
        let naming = naming(rng.random_bool(0.5));
        WalkAction::Edit(json!({ "namingStrategy": naming }))
    },
    |rng| update("operationDelaySeconds", json!(rng.random_range(0..30))),
    |rng| scale(json!({ "operationDelaySeconds": rng.random_range(0..30) })),
    |rng| edit("historyLimit", rng.random_range(0..3)),
    |rng| WalkAction::List("podToExclude", maybe_pod(rng)),
    |rng| WalkAction::List("podToInclude", maybe_pod(rng)),
    |rng| WalkAction::List("podToDelete", maybe_pod(rng)),
    |rng| WalkAction::Kill(pod(rng)),
    |rng| WalkAction::Fail(pod(rng)),
    |rng| label(rng, keys::TO_DELETE, "1"),
    |rng| label(rng, keys::TO_REPLACE, "1"),
    |rng| label(rng, keys::TO_EXCLUDE, "1"),
    |rng| label(rng, keys::UPDATE_INCLUDED, "1"),
    |rng| {
        let id = rng.random_range(0..6).to_string();
        label(rng, keys::INSTANCE_ID, &id)
    },
    |rng| label(rng, keys::CONTROL, "false"),
    |rng| label(rng, keys::REVISION, "web-unknown"),
    |rng| label(rng, keys::SERVICE_AVAILABLE, "1"),
    |rng| {
        let families = [
            Family::Operating,
            Family::OperationType,
            Family::Operate,
            Family::UndoOperationType,
            Family::PreChecked,
        ];
        let key = families.choose(rng).unwrap().key("collaset");
        let value = *["update", "scale-in", "other"].choose(rng).unwrap();
        label(rng, &key, value)
    },
    |rng| {
        let keys = [
            keys::REPLACE_PAIR_NEW_ID,
            keys::REPLACE_PAIR_ORIGIN_NAME,
            keys::REPLACED_BY_REPLACE_UPDATE,
            keys::PREPARING_TO_DELETE,
        ];
        let key = *keys.choose(rng).unwrap();
        let value = rng.random_range(0..6).to_string();
        label(rng, key, &value)
    },
    |rng| label(rng, keys::ORPHANED, "true"),
    |rng| label(rng, keys::STAY_OFFLINE, "1"),
    |rng| WalkAction::Orphan(pod(rng)),
    |rng| {
        let id = rng.random_range(0..6).to_string();
        let (key, value) = match rng.random_range(0..5) {
            0 | 1 => (keys::INSTANCE_ID, id),
            2 => (keys::PVC_TEMPLATE_NAME, "logs".to_owned()),
            3 => (keys::PVC_TEMPLATE_HASH, id),
            _ => (keys::KEPT_FOR, String::new()),
        };
        WalkAction::LabelPvc(pod(rng), key, value)
    },
    |rng| {
        WalkAction::Label(
            pod(rng),
            "app".into(),
            Some((*["web", "debug"].choose(rng).unwrap()).into()),
        )
    },
    |rng| WalkAction::Kubelet(pod(rng), kubelet(rng)),
    |rng| WalkAction::Stubborn(pod(rng), rng.random_bool(0.6)),
    |rng| WalkAction::Undeletable(pod(rng), rng.random_bool(0.6)),
    |rng| match rng.random_range(0..3) {
        0 => WalkAction::LosePool,
        1 => WalkAction::LoseEntry(rng.random_range(0..5)),
        _ => WalkAction::Forget,
    },
    |rng| WalkAction::Refuse(write(rng), rng.random_bool(0.6)),
    |rng| WalkAction::Forbid(rng.random_range(1..4), rng.random_bool(0.6)),
    |rng| WalkAction::Unpullable(rng.random_range(1..4), rng.random_bool(0.6)),
    |rng| {
        let most = rng.random_bool(0.7).then(|| rng.random_range(0..6));
        match rng.random_bool(0.5) {
            true => WalkAction::MostPods(most),
            false => WalkAction::MostPvcs(most),
        }
    },
    |rng| WalkAction::PoolRoom(rng.random_range(5..12)),
    |rng| WalkAction::Pins(rng.random_bool(0.5), rng.random_bool(0.5)),
    |rng| match rng.random_bool(0.5) {
        true => WalkAction::Hold(rng.random_bool(0.3), rng.random_bool(0.2)),
        false => WalkAction::Budget(rng.random_bool(0.7).then(|| rng.random_range(0..3))),
    },
    |rng| WalkAction::DeleteSet(rng.random_bool(0.7)),
    |rng| WalkAction::Decorate(decorations::draw_name(rng), decorations::draw_template(rng)),
    |rng| WalkAction::Decorate(decorations::draw_name(rng), decorations::draw_selector(rng)),
    |rng| WalkAction::Decorate(decorations::draw_name(rng), decorations::draw_strategy(rng)),
    |rng| WalkAction::Decorate(decorations::FAILING, decorations::draw_failing(rng)),
    |rng| match rng.random_range(0..10) {
        0..6 => WalkAction::Undecorate(decorations::draw_any_name(rng)),
        6..8 => WalkAction::RefuseDecorations(rng.random_bool(0.6)),
        _ => WalkAction::ForgetDecorations,
    },
];

/// Draws the actions of one walk.
pub fn draw_actions(rng: &mut StdRng) -> Vec<WalkAction> {
    let share = *[0.1, 0.2, 0.4, 0.8].choose(rng).unwrap();
    let kinds: Vec<_> = KINDS.iter().filter(|_| rng.random_bool(share)).collect();
    let length = rng.random_range(20..200);
    let acts = (0..length).map(|_| match rng.random_range(0..100) {
        0..30 => WalkAction::Step(usize::MAX),
        30..34 => WalkAction::Step(rng.random_range(1..6)),
        34..50 => WalkAction::Turn(u8::MAX),
        50..58 => WalkAction::Turn(rng.random()),
        58..62 => WalkAction::Pass(rng.random_range(1..90)),
        62..66 => WalkAction::Settle,
        _ => match kinds.choose(rng) {
            Some(kind) => kind(rng),
            None => WalkAction::Settle,
        },
    });
    acts.collect()
}

fn edit(field: &str, value: impl Into<Value>) -> WalkAction {
    let mut spec = json!({});
    spec[field] = value.into();
    WalkAction::Edit(spec)
}

fn update(field: &str, value: Value) -> WalkAction {
    let mut strategy = json!({});
    strategy[field] = value;
    WalkAction::Edit(json!({ "updateStrategy": strategy }))
}

fn rolling(rolling: Value) -> WalkAction {
    update("rollingUpdate", rolling)
}

fn draw_rollout_step(rng: &mut StdRng) -> Value {
    match rng.random_range(0..5) {
        0 => json!({ "pause": {} }),
        1 => json!({ "pause": { "duration": "20s" } }),
        2 => json!({ "partition": format!("{}%", rng.random_range(0..=100)) }),
        _ => json!({ "partition": rng.random_range(0..5) }),
    }
}

fn scale(part: Value) -> WalkAction {
    WalkAction::Edit(json!({ "scaleStrategy": part }))
}

fn image(rng: &mut StdRng) -> WalkAction {
    let image = format!("app:{}", rng.random_range(1..4));
    container(json!({ "image": image }))
}

/// An edit of the only container that keeps its other fields, see `edit_spec`.
fn container(part: Value) -> WalkAction {
    WalkAction::Edit(json!({ "container": part }))
}

fn pod(rng: &mut StdRng) -> usize {
    rng.random_range(0..8)
}

fn maybe_pod(rng: &mut StdRng) -> Option<usize> {
    rng.random_bool(0.7).then(|| pod(rng))
}

fn label(rng: &mut StdRng, key: &str, value: &str) -> WalkAction {
    let value = rng.random_bool(0.6).then(|| value.to_owned());
    WalkAction::Label(pod(rng), key.to_owned(), value)
}

fn kubelet(rng: &mut StdRng) -> Kubelet {
    let resizings = [Resizing::Prompt, Resizing::Deferred, Resizing::Infeasible];
    match rng.random_range(0..6) {
        0 => Kubelet {
            is_slow: true,
            ..Kubelet::default()
        },
        1 => Kubelet {
            is_lost: true,
            ..Kubelet::default()
        },
        2 => Kubelet {
            ends_slowly: true,
            ..Kubelet::default()
        },
        3 => Kubelet {
            resizing: *resizings.choose(rng).unwrap(),
            ..Kubelet::default()
        },
        _ => Kubelet::default(),
    }
}

fn write(rng: &mut StdRng) -> WriteKind {
    let all = [
        WriteKind::Revision,
        WriteKind::Pool,
        WriteKind::PvcCreation,
        WriteKind::PvcWrite,
        WriteKind::PvcDeletion,
        WriteKind::PodCreation,
        WriteKind::PodPatch,
        WriteKind::PodChange,
        WriteKind::PodDeletion,
        WriteKind::Resize,
        WriteKind::AnyResize,
        WriteKind::FailingChange,
        WriteKind::LateResize,
    ];
    *all.choose(rng).unwrap()
}

/// Variants of volume claim templates, one of them without any.
pub fn templates(variant: u8) -> Value {
    let template = |name: &str, size: &str| {
        json!({
            "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
        })
    };
    match variant {
        0 => json!([]),
        1 => json!([template("data", "1Gi")]),
        2 => json!([template("data", "2Gi")]),
        _ => json!([template("data", "1Gi"), template("logs", "1Gi")]),
    }
}

pub fn naming(sequence: bool) -> Value {
    let policy = if sequence {
        "PersistentSequence"
    } else {
        "Random"
    };
    json!({ "podNamingSuffixPolicy": policy })
}

/// Carries out an action, except those of the controller and of time.
pub fn apply_action(world: &mut World, act: &WalkAction) {
    match act {
        WalkAction::Edit(spec) => edit_spec(world, spec),
        WalkAction::Command(command) => world.command(command),
        WalkAction::List(list, pod) => {
            let name = pod.and_then(|pod| name(world, pod));
            // Admission refuses this under `PersistentSequence`.
            if *list == "podToDelete" || !is_sequence(world) || name.is_none() {
                let names: Vec<String> = name.into_iter().collect();
                let mut part = json!({});
                part[*list] = json!(names);
                world.edit(json!({ "scaleStrategy": part }));
            }
        }
        WalkAction::Forget => world.forget_refusals(),
        WalkAction::LosePool => world.pool = None,
        WalkAction::LoseEntry(entry) => {
            if let Some(pool) = &mut world.pool
                && *entry < pool.contexts.len()
            {
                pool.contexts.remove(*entry);
            }
        }
        WalkAction::Refuse(write, on) => {
            match on {
                true => world.faults.refused.insert(*write),
                false => world.faults.refused.remove(write),
            };
        }
        WalkAction::Forbid(image, on) => {
            let image = format!("app:{image}");
            match on {
                true => world.forbidden.insert(image),
                false => world.forbidden.remove(&image),
            };
        }
        WalkAction::Unpullable(image, on) => {
            let image = format!("app:{image}");
            match on {
                true => world.faults.unpullable.insert(image),
                false => world.faults.unpullable.remove(&image),
            };
        }
        WalkAction::MostPods(most) => world.faults.most_pods = *most,
        WalkAction::MostPvcs(most) => world.faults.most_pvcs = *most,
        WalkAction::PoolRoom(entries) => {
            world.pool_bytes = headroom::MAX_POOL_BYTES / headroom::max_replicas("web") * entries
        }
        WalkAction::Pins(created, changed) => {
            world.faults.pins_created = *created;
            world.faults.pins_changed = *changed;
        }
        WalkAction::Hold(go, back) => {
            world.faults.holds = *go;
            world.faults.holds_back = *back;
        }
        WalkAction::Budget(most) => world.faults.max_unavailable = *most,
        WalkAction::DeleteSet(orphans) => world.delete_set(*orphans),
        WalkAction::Decorate(name, patch) => decorations::decorate(world, name, patch),
        WalkAction::Undecorate(name) => world.delete_decoration(name),
        WalkAction::ForgetDecorations => world.decorations.board.clear(),
        WalkAction::CreateJob(action, place, count) => {
            let names: Vec<String> = world
                .pods
                .keys()
                .skip(*place)
                .take(*count)
                .cloned()
                .collect();
            if !names.is_empty() {
                world.create_job(action, &names);
            }
        }
        WalkAction::DeleteJob(place) => world.delete_job(*place),
        WalkAction::AnswerJob(progress) => world.answer_job(progress),
        WalkAction::RefuseDecorations(on) => world.decorations.refuses_revisions = *on,
        WalkAction::Pass(seconds) => {
            world.advance_time(*seconds);
        }
        WalkAction::Label(pod, ..)
        | WalkAction::LabelPvc(pod, ..)
        | WalkAction::Kill(pod)
        | WalkAction::Fail(pod)
        | WalkAction::Orphan(pod)
        | WalkAction::Kubelet(pod, _)
        | WalkAction::Stubborn(pod, _)
        | WalkAction::Undeletable(pod, _) => {
            if let Some(name) = name(world, *pod) {
                apply_pod_action(world, &name, act);
            }
        }
        WalkAction::Step(_) | WalkAction::Turn(_) | WalkAction::Settle => {}
    }
}

fn apply_pod_action(world: &mut World, name: &str, act: &WalkAction) {
    let uid = world.pods[name].metadata.uid.clone();
    match act {
        WalkAction::Label(_, key, value) => {
            world.write_pod(name, |pod| {
                match value {
                    Some(value) => pod.metadata.labels.insert(key.clone(), value.clone()),
                    None => pod.metadata.labels.remove(key),
                };
            });
        }
        WalkAction::LabelPvc(_, key, value) => {
            let pod = &world.pods[name];
            let pvc_name = pod.spec.pvcs.first().filter(|_| world.owns(pod));
            let pvc_name = pvc_name.cloned();
            // The hash is that of the first template of some revision.
            let templates = world.revisions.values().filter_map(|revision| {
                let template = pvc_templates(&revision.data).first()?;
                Some(hash_template(template))
            });
            let hashes: Vec<_> = templates.collect();
            let value = match *key {
                keys::PVC_TEMPLATE_HASH => value
                    .parse()
                    .ok()
                    .and_then(|nth: usize| hashes.get(nth).cloned())
                    .unwrap_or_default(),
                _ => value.clone(),
            };
            let pvc = pvc_name.and_then(|name| world.pvcs.get_mut(&name));
            match pvc {
                Some(pvc) if value.is_empty() => _ = pvc.labels.remove(*key),
                Some(pvc) => _ = pvc.labels.insert((*key).to_owned(), value),
                None => {}
            }
        }
        WalkAction::Kill(_) => world.delete(name),
        WalkAction::Fail(_) => {
            let until = world.now() + 60_000_000_000;
            let pod = world.pods.get_mut(name).unwrap();
            if !pod.is_finished() {
                pod.status.phase = "Failed".into();
                pod.status.conditions.retain(|c| c.type_ != "Ready");
                world.ended_until.insert(uid, until);
            }
        }
        WalkAction::Orphan(_) => {
            world.write_pod(name, |pod| pod.metadata.owner_references.clear());
        }
        WalkAction::Kubelet(_, kubelet) => {
            world.kubelets.insert(uid, kubelet.clone());
        }
        WalkAction::Stubborn(_, on) => {
            match on {
                true => world.faults.stubborn.insert(uid),
                false => world.faults.stubborn.remove(&uid),
            };
        }
        WalkAction::Undeletable(_, on) => {
            match on {
                true => world.faults.undeletable.insert(uid),
                false => world.faults.undeletable.remove(&uid),
            };
        }
        _ => {}
    }
}

fn edit_spec(world: &mut World, spec: &Value) {
    let Some(part) = spec.get("container") else {
        // Under `PersistentSequence` admission refuses these lists.
        if spec["namingStrategy"] == naming(true) {
            let lists = json!({ "podToExclude": [], "podToInclude": [] });
            world.edit(json!({ "scaleStrategy": lists }));
        }
        return world.edit(spec.clone());
    };
    let mut container = world.set.spec.template["spec"]["containers"][0].clone();
    json_patch::merge(&mut container, part);
    world.edit(json!({ "template": { "spec": { "containers": [container] } } }));
}

fn name(world: &World, index: usize) -> Option<String> {
    world.pods.keys().nth(index).cloned()
}

/// Whether the naming policy is `PersistentSequence`.
pub fn is_sequence(world: &World) -> bool {
    let naming = world.set.spec.naming_strategy.clone().unwrap_or_default();
    naming.pod_naming_suffix_policy == Some(PodNamingSuffixPolicy::PersistentSequence)
}

fn create_job(rng: &mut StdRng, action: &'static str) -> WalkAction {
    WalkAction::CreateJob(action, rng.random_range(0..4), rng.random_range(1..4))
}
