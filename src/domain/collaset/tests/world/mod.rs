//! The objects of a test, and the effects of plans on them.
//!
//! | File | Part that it plays |
//! |---|---|
//! | `api` | the API server: makes the writes of a plan, except for the faults in [`InjectedFaults`] |
//! | `decorations` | the controller of PodDecorations |
//! | `jobs` | the controller of OperationJobs |
//! | `environment` | the lifecycle and the kubelet in a few lines, enough for most tests |
//! | `control_plane` | step by step: admission, the lifecycle controllers, the kubelet, the garbage collector |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::operationjob::OperationJob;
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::has_name_of_set;
use crate::domain::collaset::headroom;
use crate::domain::collaset::observed::{InstancePool, ObservedSet, Pvc, Revision};
use crate::domain::collaset::planner::plan_set;
use crate::domain::collaset::status::{self, CanaryWatch};
use crate::domain::pod::Pod;

mod api;
mod control_plane;
mod decorations;
mod environment;
mod jobs;

pub use api::{InjectedFaults, WriteKind};
pub use control_plane::{Kubelet, Resizing};
pub use decorations::Decorations;
pub use jobs::is_job_over;

pub const UID: &str = "set-uid";

/// Nanoseconds from the deletion of a Pod to its deletion timestamp.
const GRACE: u64 = 30_000_000_000;

/// The objects of one CollaSet.
#[derive(Clone, Debug)]
pub struct World {
    pub set: CollaSet,
    pub pods: BTreeMap<String, Pod>,
    pub revisions: BTreeMap<String, Revision>,
    pub pvcs: BTreeMap<String, Pvc>,
    pub pool: Option<InstancePool>,
    pub decorations: Decorations,
    pub jobs: BTreeMap<String, OperationJob>,
    pub is_deleted: bool,
    /// Time until which the set leaves a finished Pod as it is, by UID.
    pub ended_until: BTreeMap<String, u64>,
    /// Rules for which Pods wait, by UID.
    pub held: BTreeMap<String, Vec<String>>,
    /// The writes that the API server has refused.
    pub refused: ApiRefusals,
    /// Images of which the API server creates no Pod.
    pub forbidden: BTreeSet<String>,
    /// Largest allowed size of the entries of the pool in bytes.
    pub pool_bytes: usize,
    /// Further faults of the API server and its webhooks.
    pub faults: InjectedFaults,
    /// Properties of kubelets, by the UID of their Pods.
    pub kubelets: BTreeMap<String, Kubelet>,
    /// Whether the lifecycle and the kubelet are simulated step by step, see [`World::run_pods`].
    pub on_plane: bool,
    /// Times at which creations were refused, and the time at which the revision was.
    noted: (BTreeMap<i64, u64>, u64),
    /// Times at which changes were refused, by UID of the Pod or name of the PVC.
    noted_changes: BTreeMap<String, u64>,
    /// Events about the set: reason and message.
    pub events: Vec<(&'static str, String)>,
    /// What the controller remembers of the canaries of a pause.
    canaries: CanaryWatch,
    /// UIDs of deleted sets, and whether they were deleted without their Pods.
    dead: BTreeMap<String, bool>,
    clock: u64,
}

impl World {
    /// Creates a set of `replicas` with an image and no Pods, and merges `spec` into its spec.
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
            pvcs: BTreeMap::new(),
            pool: None,
            decorations: Decorations::default(),
            jobs: BTreeMap::new(),
            is_deleted: false,
            ended_until: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: ApiRefusals::default(),
            forbidden: BTreeSet::new(),
            pool_bytes: headroom::MAX_POOL_BYTES,
            faults: InjectedFaults::default(),
            kubelets: BTreeMap::new(),
            on_plane: false,
            noted: (BTreeMap::new(), 0),
            noted_changes: BTreeMap::new(),
            events: Vec::new(),
            canaries: CanaryWatch::default(),
            dead: BTreeMap::new(),
            clock: 1_700_000_000_000_000_000,
        }
    }

    /// Like `new`, with lifecycle and kubelet played step by step.
    pub fn on_plane(replicas: i32, spec: Value) -> World {
        World {
            on_plane: true,
            ..World::new(replicas, spec)
        }
    }

    /// Merges a patch into the spec.
    pub fn edit(&mut self, patch: Value) {
        let mut raw = serde_json::to_value(&self.set.spec).unwrap();
        json_patch::merge(&mut raw, &patch);
        self.set.spec = serde_json::from_value(raw).unwrap();
        *self.set.metadata.generation.as_mut().unwrap() += 1;
    }

    /// Sets the annotation by which users command a rollout.
    pub fn command(&mut self, command: &str) {
        let annotations = self.set.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::ROLLOUT.to_owned(), command.to_owned());
    }

    /// Advances the clock by this many seconds.
    pub fn wait(&mut self, seconds: u64) {
        self.clock += seconds * 1_000_000_000;
    }

    /// Sets the image of the only container.
    pub fn image(&mut self, image: &str) {
        self.edit(json!({ "template": { "spec": { "containers": [{ "name": "app", "image": image }] } } }));
    }

    pub fn uid(&self) -> &str {
        self.set.metadata.uid.as_deref().unwrap()
    }

    /// Whether the set controls a Pod.
    pub fn owns(&self, pod: &Pod) -> bool {
        pod.controller().is_some_and(|o| o.uid == self.uid())
    }

    pub fn observe(&self) -> ObservedSet {
        let scale = self.set.spec.scale_strategy.clone().unwrap_or_default();
        let include = scale.pod_to_include;
        let is_orphan = |p: &&Pod| {
            p.controller().is_none()
                && (p.label(keys::INSTANCE_ID).is_some() || !p.spec.pvcs.is_empty())
                && p.label(keys::ORPHANED).is_none()
                && has_name_of_set("web", &p.metadata.name)
        };
        let uid = self.set.metadata.uid.as_deref();
        let all = |keep: &dyn Fn(&&Pod) -> bool| {
            let managed = self.pods.values().filter(|p| p.is_managed());
            managed.filter(keep).cloned().map(Arc::new).collect()
        };
        ObservedSet {
            set: Arc::new(self.set.clone()),
            revisions: self.revisions.values().cloned().map(Arc::new).collect(),
            pods: all(&|p| self.owns(p)),
            pods_to_include: all(&|p| !self.owns(p) && include.contains(&p.metadata.name)),
            unmanaged: {
                let is_asked_for = |p: &&Pod| include.contains(&p.metadata.name);
                let unmanaged = self.pods.values().filter(is_asked_for);
                let unmanaged = unmanaged.filter(|p| !p.is_managed() && !p.is_terminating());
                unmanaged.cloned().map(Arc::new).collect()
            },
            orphans: all(&is_orphan),
            mounts: self.mounts(Pod::is_managed),
            pvcs: self
                .pvcs
                .values()
                .filter(|c| c.controller.is_none() || c.controller.as_deref() == uid)
                .cloned()
                .map(Arc::new)
                .collect(),
            decorations: self.decorations.board.values().cloned().collect(),
            pool: self.pool.clone().map(Arc::new),
            pool_bytes: self.pool_bytes,
            refused: ApiRefusals {
                undeleted: {
                    let pods = self
                        .pods
                        .values()
                        .filter(|pod| self.is_deletion_refused(pod));
                    let uids = pods.map(|pod| pod.metadata.uid.clone());
                    uids.map(|uid| (uid, "policy".to_owned())).collect()
                },
                ..self.refused.clone()
            },
            ended_until: self.ended_until.clone(),
            held: self.held.clone(),
            now_nanos: self.clock,
        }
    }

    fn mounts(&self, keep: impl Fn(&Pod) -> bool) -> BTreeMap<String, Vec<Arc<Pod>>> {
        let mut mounts = BTreeMap::<String, Vec<Arc<Pod>>>::new();
        for pod in self.pods.values().filter(|pod| keep(pod)) {
            for pvc_name in &pod.spec.pvcs {
                mounts
                    .entry(pvc_name.clone())
                    .or_default()
                    .push(Arc::new(pod.clone()));
            }
        }
        mounts
    }

    pub fn tick(&mut self) -> u64 {
        self.advance_time(1)
    }

    /// Plans and lets everything around the set react, this many times.
    pub fn run_rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.run_plan();
            self.run_pods(u8::MAX);
        }
    }

    /// Advances the clock by this many seconds and returns its new value in nanoseconds.
    pub fn advance_time(&mut self, seconds: u64) -> u64 {
        self.clock += seconds * 1_000_000_000;
        self.clock
    }

    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Plans and carries out the plan. Returns false if the plan was empty or every write was refused.
    pub fn run_plan(&mut self) -> bool {
        if self.is_deleted {
            return false;
        }
        let decorated = self.run_decorations();
        let plan = plan_set(&self.observe());
        let canary_events = self.canaries.observe_pause(plan.pause.as_ref());
        let events = plan.events.iter().chain(&canary_events);
        let events = events.map(|e| (e.reason, e.message.clone()));
        self.events.extend(events);
        let written = self.apply_plan(plan, usize::MAX).written > 0;
        written || decorated || self.run_decorations()
    }

    /// Repeats plans until there is nothing to do, while nobody else does anything. Panics if that takes too long.
    pub fn run_until_idle(&mut self) {
        if !(0..20).any(|_| !self.run_plan()) {
            panic!("one plan after the other: {:#?}", plan_set(&self.observe()));
        }
    }

    /// Repeats plans, steps of the lifecycle and of the kubelet until nothing changes. Panics if that takes too long.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            let busy = self.run_plan();
            if !self.step_surroundings() && !busy {
                return;
            }
        }
        panic!("never at rest: {:#?}", plan_set(&self.observe()));
    }

    /// Marks a Pod as terminating.
    pub fn delete(&mut self, name: &str) {
        let due = self.describe_due();
        let pod = self.pods.get_mut(name).expect("is there");
        pod.metadata.deletion_timestamp.get_or_insert(due);
    }

    /// The deletion timestamp of a Pod that is deleted now: the end of its grace period.
    pub fn describe_due(&self) -> String {
        status::condition_time(self.clock + GRACE).to_string()
    }

    /// Pods that are not terminating, by instance ID.
    pub fn members(&self) -> BTreeMap<i64, &Pod> {
        let pods = self.pods.values();
        let pods = pods.filter(|p| !p.is_terminating() && p.is_managed() && self.owns(p));
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
