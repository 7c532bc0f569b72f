//! CollaSets of any size in different states, as input of plans.

use std::collections::BTreeMap;
use std::sync::Arc;

use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::resourcecontext::ContextDetail;
use operating::api::resourcecontext::data::{OWNER, REPLACE_NEW, REPLACE_ORIGIN, REVISION};
use operating::domain::collaset::api_refusals::ApiRefusals;
use operating::domain::collaset::headroom;
use operating::domain::collaset::observed::{InstancePool, ObservedSet, Pvc, Revision};
use operating::domain::collaset::plan::RevisionChange;
use operating::domain::collaset::planner::plan_set;
use operating::domain::collaset::pvcs::hash::hash_template;
use operating::domain::pod::Pod;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The name of a state, and a function that builds a set of this many Pods in this state.
type State = (&'static str, fn(usize) -> ObservedSet);

/// The states.
pub const STATES: [State; 9] = [
    ("settled", |pods| settled(pods, false)),
    ("settled, with PVCs", |pods| settled(pods, true)),
    ("first plan of a rollout", |pods| rollout(pods, false)),
    ("first plan of a rollout, with PVCs", |pods| {
        rollout(pods, true)
    }),
    ("rollout by label, one Pod left", labelled),
    ("Replace with a third of the Pods in pairs", replacing),
    ("all Pods have ended and wait", |pods| ended(pods, false)),
    ("all Pods have ended, names persist", |pods| {
        ended(pods, true)
    }),
    ("all Pods are orphans, with PVCs", orphaned),
];

/// Name of the set, and value of the label `app` of its Pods.
pub const NAME: &str = "web";
const UID: &str = "set-uid";
const TIME: &str = "2026-03-01T10:00:00Z";

/// A set that has reached its spec.
pub fn settled(size: usize, with_pvcs: bool) -> ObservedSet {
    let mut observed = empty(size, with_pvcs);
    let revision = revision(&mut observed);
    for id in 0..size {
        member(&mut observed, id, &revision, json!({}));
    }
    mount(&mut observed);
    let status = plan_set(&observed).status;
    edit(&mut observed, |set| set.status = status);
    let plan = plan_set(&observed);
    assert!(plan.is_empty(), "not settled: {} Pods", plan.pods.len());
    observed
}

/// The same set with a new image.
fn rollout(size: usize, with_pvcs: bool) -> ObservedSet {
    let mut observed = settled(size, with_pvcs);
    image(&mut observed, "app:2");
    let planned = plan_set(&observed).pods.len();
    assert_eq!(planned, size, "all Pods begin at once");
    observed
}

/// A rollout by label that has updated all Pods except the last.
fn labelled(size: usize) -> ObservedSet {
    let mut observed = empty(size, false);
    let strategy = json!({ "rollingUpdate": { "byLabel": {} } });
    edit(&mut observed, |set| {
        set.spec.update_strategy = typed(strategy)
    });
    let former = revision(&mut observed);
    image(&mut observed, "app:2");
    let updated = revision(&mut observed);
    for id in 0..size {
        let is_last = id + 1 == size;
        let revision = if is_last { &former } else { &updated };
        member(
            &mut observed,
            id,
            revision,
            json!({ (keys::UPDATE_INCLUDED): "1" }),
        );
    }
    observed
}

/// A set of Pods that have ended. With persistent names they are recreated now, otherwise later.
fn ended(size: usize, names_persist: bool) -> ObservedSet {
    let mut observed = settled(size, false);
    if names_persist {
        let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
        edit(&mut observed, |set| {
            set.spec.naming_strategy = typed(naming)
        });
    }
    for pod in &mut observed.pods {
        let pod = Arc::make_mut(pod);
        pod.status.phase = "Failed".to_owned();
        pod.status.conditions.clear();
        if !names_persist {
            let uid = pod.metadata.uid.clone();
            observed.ended_until.insert(uid, u64::MAX);
        }
    }
    observed
}

/// A set that was deleted without its Pods and PVCs, and created again.
fn orphaned(size: usize) -> ObservedSet {
    let mut observed = settled(size, true);
    for pod in &mut observed.pods {
        Arc::make_mut(pod).metadata.owner_references.clear();
    }
    for pvc in &mut observed.pvcs {
        Arc::make_mut(pvc).controller = None;
    }
    observed.orphans = std::mem::take(&mut observed.pods);
    observed.pool = None;
    observed.mounts.clear();
    for pod in &observed.orphans {
        for pvc in &pod.spec.pvcs {
            observed.mounts.insert(pvc.clone(), vec![Arc::clone(pod)]);
        }
    }
    observed
}

/// A rollout by Replace. The first third has the new revision, the second third is in pairs, and the rest
/// waits. Half of the new Pods are available.
fn replacing(size: usize) -> ObservedSet {
    let mut observed = empty(size, false);
    let former = revision(&mut observed);
    let third = size / 3;
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": third });
    edit(&mut observed, |set| {
        set.spec.update_strategy = typed(strategy)
    });
    image(&mut observed, "app:2");
    let updated = revision(&mut observed);
    for id in 0..third {
        member(&mut observed, id, &updated, json!({}));
    }
    for id in third..2 * third {
        let new = size + id;
        let labels = json!({
            (keys::TO_REPLACE): "1", (keys::REPLACED_BY_REPLACE_UPDATE): updated.name,
            (keys::REPLACE_PAIR_NEW_ID): new.to_string(),
        });
        member(&mut observed, id, &former, labels);
        let serves = (id % 2 == 0).then_some("1");
        let labels = json!({
            (keys::REPLACE_PAIR_ORIGIN_NAME): pod_name(id), (keys::SERVICE_AVAILABLE): serves,
        });
        member(&mut observed, new, &updated, labels);
    }
    for id in 2 * third..size {
        member(&mut observed, id, &former, json!({}));
    }
    pair(&mut observed, third..2 * third, size);
    mount(&mut observed);
    let status = plan_set(&observed).status;
    edit(&mut observed, |set| set.status = status);
    observed
}

/// The set alone.
fn empty(size: usize, with_pvcs: bool) -> ObservedSet {
    let pvcs = match with_pvcs {
        true => vec![pvc_template()],
        false => Vec::new(),
    };
    let set = json!({
        "metadata": {
            "name": NAME, "namespace": "shop", "uid": UID, "generation": 1, "finalizers": [keys::PRE_RECLAIM_FINALIZER],
        },
        "spec": {
            "replicas": size,
            "selector": { "matchLabels": { "app": NAME } },
            "template": template("app:1"),
            "volumeClaimTemplates": pvcs,
        },
    });
    ObservedSet {
        set: Arc::new(typed(set)),
        revisions: Vec::new(),
        pods: Vec::new(),
        pods_to_include: Vec::new(),
        orphans: Vec::new(),
        mounts: BTreeMap::new(),
        pvcs: Vec::new(),
        decorations: Vec::new(),
        pool: None,
        pool_bytes: headroom::MAX_POOL_BYTES,
        refused: ApiRefusals::default(),
        ended_until: BTreeMap::new(),
        held: BTreeMap::new(),
        unmanaged: Default::default(),
        now_nanos: 1_800_000_000_000_000_000,
    }
}

/// A typical template: some environment, ports, probes and volumes.
fn template(image: &str) -> Value {
    let environment: Vec<_> = (0..10)
        .map(|i| json!({ "name": format!("VARIABLE_{i}"), "value": "a value of some length" }))
        .collect();
    json!({
        "metadata": { "labels": { "app": NAME, "tier": "web" }, "annotations": { "team": "shop" } },
        "spec": {
            "containers": [{
                "name": "app", "image": image, "env": environment,
                "ports": [{ "name": "http", "containerPort": 8080 }],
                "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
                "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 10 },
                "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }],
            }],
            "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
        },
    })
}

fn pvc_template() -> Value {
    json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    })
}

/// Parses an object of this file into its type.
pub fn typed<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap_or_else(|e| unreachable!("{e}"))
}

/// Changes the CollaSet.
pub fn edit(observed: &mut ObservedSet, change: impl FnOnce(&mut CollaSet)) {
    change(Arc::make_mut(&mut observed.set));
}

fn image(observed: &mut ObservedSet, image: &str) {
    edit(observed, |set| {
        set.spec.template = typed(template(image));
        set.metadata.generation = set.metadata.generation.map(|g| g + 1);
    });
}

/// Stores the revision of the template and returns it.
fn revision(observed: &mut ObservedSet) -> Arc<Revision> {
    let planned = plan_set(observed).revisions;
    let created = planned.into_iter().find_map(|change| match change {
        RevisionChange::Create(revision) => Some((*revision).clone()),
        _ => None,
    });
    let created = created.unwrap_or_else(|| unreachable!("the template has a revision already"));
    let stored = Arc::new(Revision {
        uid: format!("uid-{}", created.name),
        controller: Some(UID.to_owned()),
        ..created
    });
    observed.revisions.push(Arc::clone(&stored));
    stored
}

fn pod_name(id: usize) -> String {
    format!("{NAME}-{id:05}")
}

fn pvc_name(id: usize) -> String {
    format!("{NAME}-data-{id:05}")
}

/// Adds an available Pod, its entry in the pool and its PVC. A label that is null is left out.
fn member(observed: &mut ObservedSet, id: usize, revision: &Revision, more: Value) {
    let templates = &revision.data["spec"]["volumeClaimTemplates"];
    let template = templates.get(0);
    if let Some(template) = template {
        observed.pvcs.push(Arc::new(pvc(id, template)));
    }
    let volumes = match template {
        Some(_) => {
            json!([{ "name": "data", "persistentVolumeClaim": { "claimName": pvc_name(id) } }])
        }
        None => json!([]),
    };
    let mut labels = json!({
        "app": NAME, "tier": "web", (keys::CONTROL): keys::CONTROL_VALUE, (keys::INSTANCE_ID): id.to_string(),
        (keys::REVISION): revision.name, (keys::SERVICE_AVAILABLE): "1",
    });
    if let (Some(labels), Value::Object(more)) = (labels.as_object_mut(), more) {
        labels.extend(more);
        labels.retain(|_, value| !value.is_null());
    }
    let image = &revision.data["spec"]["template"]["spec"]["containers"][0]["image"];
    let condition =
        |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": TIME });
    let conditions = [
        "PodScheduled",
        "Initialized",
        "ContainersReady",
        "Ready",
        keys::SERVICE_READY,
    ];
    let pod = json!({
        "metadata": {
            "namespace": "shop", "name": pod_name(id), "uid": format!("uid-{id}"), "resourceVersion": "7",
            "generation": 1, "creationTimestamp": TIME, "labels": labels,
            "ownerReferences": [{
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": NAME, "uid": UID,
                "controller": true,
            }],
        },
        "spec": {
            "containers": [{ "name": "app", "image": image }],
            "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
            "volumes": volumes,
        },
        "status": {
            "phase": "Running", "observedGeneration": 1,
            "conditions": conditions.map(condition),
            "containerStatuses": [{
                "name": "app", "image": image, "ready": true, "imageID": format!("id-of-{image}"),
                "containerID": format!("run-{id}"), "state": { "running": { "startedAt": TIME } },
            }],
        },
    });
    observed.pods.push(Arc::new(typed::<Pod>(pod)));
    let data = [(OWNER, NAME), (REVISION, &revision.name)];
    place(observed, id).extend(data.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

/// The entry of the pool for an instance ID.
fn place(observed: &mut ObservedSet, id: usize) -> &mut BTreeMap<String, String> {
    let pool = observed.pool.get_or_insert_with(|| {
        Arc::new(InstancePool {
            name: NAME.to_owned(),
            ..InstancePool::default()
        })
    });
    let contexts = &mut Arc::make_mut(pool).contexts;
    let id = i64::try_from(id).unwrap_or(i64::MAX);
    let at = contexts.binary_search_by_key(&id, |context| context.id);
    let at = at.unwrap_or_else(|at| {
        let data = BTreeMap::new();
        contexts.insert(at, ContextDetail { id, data });
        at
    });
    &mut contexts[at].data
}

/// Records in the pool that the Pods of these IDs are pairs.
fn pair(observed: &mut ObservedSet, ids: std::ops::Range<usize>, offset: usize) {
    for id in ids {
        let new = offset + id;
        place(observed, id).insert(REPLACE_NEW.to_owned(), new.to_string());
        place(observed, new).insert(REPLACE_ORIGIN.to_owned(), id.to_string());
    }
}

fn pvc(id: usize, template: &Value) -> Pvc {
    let labels = [
        ("app", NAME),
        (keys::CONTROL, keys::CONTROL_VALUE),
        (keys::INSTANCE_ID, &id.to_string()),
        (keys::PVC_TEMPLATE_NAME, "data"),
        (keys::PVC_TEMPLATE_HASH, &hash_template(template)),
    ];
    Pvc {
        name: pvc_name(id),
        uid: format!("uid-{}", pvc_name(id)),
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        controller: Some(UID.to_owned()),
        ..Pvc::default()
    }
}

/// Records which Pod mounts which PVC.
fn mount(observed: &mut ObservedSet) {
    for pod in &observed.pods {
        for pvc in &pod.spec.pvcs {
            let mounting = observed.mounts.entry(pvc.clone()).or_default();
            mounting.push(Arc::clone(pod));
        }
    }
}
