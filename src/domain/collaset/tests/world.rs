//! Objects, and what becomes of them when a plan is carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::collaset::CollaSet;
use crate::api::keys::{self, Family};
use crate::domain::collaset::observed::{Claim, Observed, Pool, Revision};
use crate::domain::collaset::plan::{ClaimChange, Ownership, Plan, PodChange, RevisionChange};
use crate::domain::collaset::planner::plan;
use crate::domain::collaset::refused::Refused;
use crate::domain::pod::Pod;

pub const UID: &str = "set-uid";

/// The objects of one CollaSet.
#[derive(Clone, Debug)]
pub struct World {
    pub set: CollaSet,
    pub pods: BTreeMap<String, Pod>,
    pub revisions: BTreeMap<String, Revision>,
    pub claims: BTreeMap<String, Claim>,
    pub pool: Option<Pool>,
    pub gone: bool,
    /// Until when Pods that have ended are left, by UID.
    pub ended_until: BTreeMap<String, u64>,
    /// Rules that cover Pods, by UID.
    pub rules: BTreeMap<String, Vec<String>>,
    /// What the API server has refused.
    pub refused: Refused,
    /// Images of which it creates no Pod.
    pub forbidden: BTreeSet<String>,
    clock: u64,
}

impl World {
    /// An empty set of `replicas` with an image, and more of a spec on top.
    pub fn new(replicas: i32, spec: Value) -> World {
        let mut set: CollaSet = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": UID, "generation": 1 },
            "spec": {
                "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
                },
            },
        }))
        .unwrap();
        let mut raw = serde_json::to_value(&set.spec).unwrap();
        json_patch::merge(&mut raw, &spec);
        set.spec = serde_json::from_value(raw).unwrap();
        set.spec.replicas = Some(replicas);
        World {
            set,
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            claims: BTreeMap::new(),
            pool: None,
            gone: false,
            ended_until: BTreeMap::new(),
            rules: BTreeMap::new(),
            refused: Refused::default(),
            forbidden: BTreeSet::new(),
            clock: 1_700_000_000_000_000_000,
        }
    }

    /// Merges into the spec.
    pub fn edit(&mut self, patch: Value) {
        let mut raw = serde_json::to_value(&self.set.spec).unwrap();
        json_patch::merge(&mut raw, &patch);
        self.set.spec = serde_json::from_value(raw).unwrap();
        *self.set.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Sets the image of the only container.
    pub fn image(&mut self, image: &str) {
        self.edit(json!({ "template": { "spec": { "containers": [{ "name": "app", "image": image }] } } }));
    }

    pub fn observe(&self) -> Observed {
        let owned = |p: &&Pod| p.controller().is_some_and(|o| o.uid == UID);
        let include = self
            .set
            .spec
            .scale_strategy
            .clone()
            .unwrap_or_default()
            .pod_to_include;
        Observed {
            set: Arc::new(self.set.clone()),
            revisions: self.revisions.values().cloned().map(Arc::new).collect(),
            pods: self
                .pods
                .values()
                .filter(owned)
                .cloned()
                .map(Arc::new)
                .collect(),
            strangers: self
                .pods
                .values()
                .filter(|p| !owned(p) && include.contains(&p.metadata.name))
                .cloned()
                .map(Arc::new)
                .collect(),
            orphans: self
                .pods
                .values()
                .filter(|p| p.controller().is_none())
                .cloned()
                .map(Arc::new)
                .collect(),
            mounts: self.mounts(),
            claims: self.claims.values().cloned().map(Arc::new).collect(),
            pool: self.pool.clone().map(Arc::new),
            refused: self.refused.clone(),
            ended_until: self.ended_until.clone(),
            held: BTreeMap::new(),
            rules: self.rules.clone(),
            now_nanos: self.clock,
        }
    }

    fn mounts(&self) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut mounts = BTreeMap::<String, Vec<Arc<Pod>>>::new();
        for pod in self.pods.values() {
            for claim in &pod.spec.claims {
                mounts
                    .entry(claim.clone())
                    .or_default()
                    .push(Arc::new(pod.clone()));
            }
        }
        mounts
    }

    pub fn tick(&mut self) -> u64 {
        self.clock += 1_000_000_000;
        self.clock
    }

    /// Plans and carries it out; false when there was nothing to do.
    pub fn step(&mut self) -> bool {
        if self.gone {
            return false;
        }
        let plan = plan(&self.observe());
        let refused = |change: &PodChange| match change {
            PodChange::Create { body, .. } => {
                let image = body["spec"]["containers"][0]["image"].as_str();
                self.forbidden.contains(image.unwrap())
            }
            _ => false,
        };
        let mut asked = plan.clone();
        asked.pods.retain(|change| !refused(change));
        let busy = !asked.is_empty();
        self.carry_out(plan);
        busy
    }

    /// Steps until there is nothing to do, while nobody else does anything. Panics if that takes too long.
    pub fn rest(&mut self) {
        if !(0..20).any(|_| !self.step()) {
            panic!("one plan after the other: {:#?}", plan(&self.observe()));
        }
    }

    /// Steps, grants and lets the kubelet run until nothing happens any more. Panics if that takes too long.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            let busy = self.step();
            if !self.surroundings() && !busy {
                return;
            }
        }
        panic!("never at rest: {:#?}", plan(&self.observe()));
    }

    pub fn carry_out(&mut self, plan: Plan) {
        self.tick();
        if plan.add_finalizer {
            let finalizers = self.set.metadata.finalizers.get_or_insert_default();
            finalizers.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
        }
        for change in plan.revisions {
            self.revision(change);
        }
        if let Some(contexts) = plan.pool {
            self.pool = (!contexts.is_empty()).then(|| Pool {
                name: "web".into(),
                contexts,
                ..Pool::default()
            });
        }
        for change in plan.claims {
            self.claim(change);
        }
        for change in plan.pods {
            self.pod(change);
        }
        if let Some(status) = plan.status {
            self.set.status = Some(status);
        }
        self.gone = plan.remove_finalizer;
    }

    fn revision(&mut self, change: RevisionChange) {
        match change {
            RevisionChange::Create(revision) => {
                let known = self.revisions.insert(
                    revision.name.clone(),
                    Revision {
                        uid: format!("uid-{}", revision.name),
                        controller: Some(UID.into()),
                        ..revision
                    },
                );
                assert_eq!(known, None, "created twice");
            }
            RevisionChange::Renumber(revision, number) => {
                self.revisions.get_mut(&revision.name).unwrap().revision = number;
            }
            RevisionChange::Adopt(revision) => {
                self.revisions.get_mut(&revision.name).unwrap().controller = Some(UID.into());
            }
            RevisionChange::Delete(revision) => {
                self.revisions.remove(&revision.name).expect("is there");
            }
        }
    }

    fn claim(&mut self, change: ClaimChange) {
        match change {
            ClaimChange::Create { template, body, .. } => {
                let name = format!("web-{template}-{}", self.tick());
                let labels = serde_json::from_value(body["metadata"]["labels"].clone()).unwrap();
                self.claims.insert(
                    name.clone(),
                    Claim {
                        uid: name.clone(),
                        name,
                        labels,
                        controller: Some(UID.into()),
                        ..Claim::default()
                    },
                );
            }
            ClaimChange::Patch {
                claim,
                labels,
                ownership,
            } => {
                let claim = self.claims.get_mut(&claim.name).unwrap();
                labels.apply(&mut claim.labels);
                match ownership {
                    Ownership::Keep => {}
                    Ownership::Adopt => claim.controller = Some(UID.into()),
                    Ownership::Release => claim.controller = None,
                }
            }
            ClaimChange::Delete(claim) => {
                let mounting = self.mounts().remove(&claim.name);
                assert!(mounting.is_none(), "{} is mounted and deleted", claim.name);
                self.claims.remove(&claim.name);
            }
        }
    }

    fn pod(&mut self, change: PodChange) {
        match change {
            PodChange::Create { body, id } => {
                let mut body = body;
                let now = self.tick();
                if let Some(prefix) = body["metadata"]["generateName"].as_str() {
                    body["metadata"]["name"] = format!("{prefix}{now}").into();
                }
                body["metadata"]["uid"] = format!("uid-{now}").into();
                body["metadata"]["creationTimestamp"] = now.to_string().into();
                let pod: Pod = serde_json::from_value(body).unwrap();
                let image = &pod.spec.containers[0].image;
                if self.forbidden.contains(image) {
                    self.refused.creations.insert(id, "a policy".into());
                    return;
                }
                self.refused.creations.remove(&id);
                let revision = pod.label(keys::REVISION).unwrap().to_owned();
                self.refused.proven.insert(revision);
                assert_eq!(pod.label(keys::INSTANCE_ID), Some(id.to_string().as_str()));
                for claim in &pod.spec.claims {
                    let mounting = self.mounts().remove(claim).unwrap_or_default();
                    let writer = mounting.iter().find(|p| !p.is_finished());
                    assert!(writer.is_none(), "{claim} is mounted by two Pods");
                }
                let known = self.pods.insert(pod.metadata.name.clone(), pod);
                assert!(known.is_none(), "created twice");
            }
            PodChange::Delete(pod) => self.delete(&pod.metadata.name),
            PodChange::Patch(patch) => {
                let pod = self.pods.get_mut(&patch.pod.metadata.name).unwrap();
                patch.labels.apply(&mut pod.metadata.labels);
                for (key, value) in patch.annotations {
                    match value {
                        Some(value) => pod.metadata.annotations.insert(key, value),
                        None => pod.metadata.annotations.remove(&key),
                    };
                }
                match patch.ownership {
                    Ownership::Keep => {}
                    Ownership::Release => pod.metadata.owner_references.clear(),
                    Ownership::Adopt => {
                        pod.metadata.owner_references = serde_json::from_value(
                            json!([{ "kind": "CollaSet", "name": "web", "uid": UID, "controller": true }]),
                        )
                        .unwrap();
                    }
                }
                for container in patch
                    .spec
                    .iter()
                    .flat_map(|s| s["containers"].as_array().unwrap())
                {
                    let of = pod.spec.containers.iter_mut();
                    let mut of = of.filter(|c| c.name == container["name"]);
                    of.next().unwrap().image = container["image"].as_str().unwrap().to_owned();
                }
            }
        }
    }

    /// Marks a Pod terminating.
    pub fn delete(&mut self, name: &str) {
        let now = self.clock.to_string();
        let pod = self.pods.get_mut(name).expect("is there");
        pod.metadata.deletion_timestamp.get_or_insert(now);
    }

    /// What the lifecycle, the kubelet and the garbage collector do; false when there was nothing.
    pub fn surroundings(&mut self) -> bool {
        let now = self.tick().to_string();
        let before = self.pods.clone();
        self.pods.retain(|_, pod| !pod.is_terminating());
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pods.get_mut(&name).unwrap();
            if pod.label(keys::TO_DELETE).is_some() {
                pod.metadata.deletion_timestamp = Some(now.clone());
                continue;
            }
            lifecycle(pod, &now);
            kubelet(pod, &now);
        }
        before != self.pods
    }

    /// Pods that are not on their way out, by instance ID.
    pub fn members(&self) -> BTreeMap<i64, &Pod> {
        let pods = self
            .pods
            .values()
            .filter(|p| !p.is_terminating() && p.controller().is_some_and(|o| o.uid == UID));
        let mut members = BTreeMap::new();
        for pod in pods {
            let id = pod.label(keys::INSTANCE_ID).unwrap().parse().unwrap();
            let other = members.insert(id, pod);
            assert!(other.is_none(), "two Pods with ID {id}");
        }
        members
    }

    pub fn images(&self) -> Vec<&str> {
        self.members()
            .values()
            .map(|p| p.spec.containers[0].image.as_str())
            .collect()
    }

    pub fn ids(&self) -> Vec<i64> {
        self.members().into_keys().collect()
    }
}

/// Grants at once; finishing and undoing leave no trace.
fn lifecycle(pod: &mut Pod, now: &str) {
    let labels = &mut pod.metadata.labels;
    let id = "collaset";
    let undone = labels.contains_key(&Family::UndoOperationType.key(id));
    let finished = labels.contains_key(&Family::Operate.key(id))
        && !labels.contains_key(&Family::Operating.key(id));
    if undone || finished {
        for family in Family::ALL {
            labels.remove(&family.key(id));
        }
        labels.insert(keys::SERVICE_AVAILABLE.to_owned(), now.to_owned());
    } else if labels.contains_key(&Family::Operating.key(id)) {
        let operate = labels.entry(Family::Operate.key(id));
        operate.or_insert_with(|| now.to_owned());
        labels.remove(keys::SERVICE_AVAILABLE);
    }
}

/// Runs what the spec says.
fn kubelet(pod: &mut Pod, now: &str) {
    let containers: Vec<Value> = pod
        .spec
        .containers
        .iter()
        .map(|c| {
            json!({ "name": c.name, "imageID": format!("id-of-{}", c.image), "ready": true,
                "containerID": format!("run-of-{}", c.image) })
        })
        .collect();
    pod.status.container_statuses = serde_json::from_value(containers.into()).unwrap();
    if !pod.is_ready() {
        pod.status.phase = "Running".into();
        pod.status.conditions = serde_json::from_value(
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": now }]),
        )
        .unwrap();
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::SERVICE_AVAILABLE.to_owned(), now.to_owned());
        labels.remove(keys::CREATING);
        labels.remove(keys::COMPLETING);
    }
}
