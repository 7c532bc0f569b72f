#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod dry_runs;
mod events;
mod observe;
mod plans;
mod pod_creations;
mod pod_writes;
mod pvcs;
mod revisions;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};
use tokio::time::Instant;

use crate::api::keys;
use crate::cluster::objects::{CachedKind, CollaSetObject};
use crate::controllers::ControllerContext;
use crate::controllers::collaset::apply::{ApplyOutcome, PlanExecution, apply_plan};
use crate::controllers::collaset::reconcile_state::ReconcileState;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::observed::{ObservedSet, Pvc};
use crate::domain::collaset::plan::{PodChange, PodPatch, PvcChange, SetEvent, SetPlan};
use crate::domain::pod::Pod;

const SET: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web";
const POOL: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts/web";
const PODS: &str = "/api/v1/namespaces/n/pods";

/// A CollaSet, an API server that stores it, and the state of the controller.
struct Fixture {
    api: FakeApi,
    context: Arc<ControllerContext>,
    state: ReconcileState,
}

impl Fixture {
    fn new() -> Fixture {
        let api = FakeApi::default();
        let context = ControllerContext::at_epoch(api.client());
        api.put(
            SET,
            json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" } }),
        );
        context.index.decision_watches.trust_for_a_year();
        let fixture = Fixture {
            api,
            context,
            state: ReconcileState::new("set"),
        };
        fixture.cache_object::<CollaSetObject>(SET);
        fixture
    }

    /// Puts an object of the API server into its cache, as the watch does.
    fn cache_object<W: CachedKind>(&self, path: &str) {
        let object = self.api.0.lock().objects[path].to_string();
        let object: W = serde_json::from_str(&object).unwrap();
        W::object_cache(&self.context.objects).apply(object.object_key(), object.into_cached());
    }

    fn observed(&self) -> ObservedSet {
        let objects = &self.context.objects;
        ObservedSet {
            set: objects.sets.get("n", "web").unwrap(),
            revisions: Vec::new(),
            pods: Vec::new(),
            pods_to_include: Vec::new(),
            unmanaged: Default::default(),
            orphans: Vec::new(),
            mounts: Default::default(),
            pvcs: Vec::new(),
            decorations: Vec::new(),
            pool: objects.pools.get("n", "web"),
            pool_bytes: usize::MAX,
            refused: ApiRefusals::default(),
            ended_until: Default::default(),
            held: Default::default(),
            now_nanos: 0,
        }
    }

    async fn apply(&self, plan: SetPlan) -> ApplyOutcome {
        let observed = self.observed();
        apply_plan(
            &PlanExecution::new(&self.context, &observed, &self.state),
            plan,
        )
        .await
    }

    /// A Pod that the API server stores.
    fn pod(&self, name: &str) -> Arc<Pod> {
        let path = format!("{PODS}/{name}");
        self.api.put(
            &path,
            json!({ "metadata": { "namespace": "n", "name": name } }),
        );
        let object = self.api.0.lock().objects[&path].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// The objects of the API server whose path contains `part`.
    fn stored(&self, part: &str) -> Vec<Value> {
        let state = self.api.0.lock();
        let stored = state.objects.iter().filter(|(path, _)| path.contains(part));
        stored.map(|(_, object)| object.clone()).collect()
    }

    fn condition(&self, type_: &str) -> Value {
        let set = &self.api.0.lock().objects[SET];
        let all = set["status"]["conditions"].as_array();
        let found = all.into_iter().flatten().find(|c| c["type"] == type_);
        found.cloned().unwrap_or_default()
    }
}

fn pod_json(id: i64, controller: &str) -> Value {
    json!({ "metadata": {
        "generateName": "web-", "namespace": "n",
        "labels": { (keys::CONTROL): "true", (keys::INSTANCE_ID): id.to_string() },
        "ownerReferences": [{ "kind": "CollaSet", "uid": controller, "controller": true }],
    } })
}

fn pvc_json(id: i64) -> Value {
    json!({ "metadata": {
        "generateName": "web-data-", "namespace": "n",
        "labels": {
            (keys::CONTROL): "true", (keys::INSTANCE_ID): id.to_string(), (keys::PVC_TEMPLATE_NAME): "data",
        },
        "ownerReferences": [{
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "set", "controller": true,
        }],
    } })
}

/// A plan that creates the PVC of an instance ID.
fn pvc_creation_plan(id: i64) -> SetPlan {
    SetPlan {
        pvcs: vec![PvcChange::Create {
            id,
            template: "data".into(),
            body: pvc_json(id),
        }],
        ..SetPlan::default()
    }
}

fn pod_creation_plan(ids: std::ops::Range<i64>) -> SetPlan {
    let create = |id| PodChange::Create {
        id,
        body: pod_json(id, "set"),
    };
    SetPlan {
        pods: ids.map(create).collect(),
        ..SetPlan::default()
    }
}

/// A deletion that is reported by an Event.
fn announced_deletion(pod: Arc<Pod>) -> PodChange {
    let event = SetEvent {
        warning: false,
        reason: "TargetDeleted",
        message: format!("Pod {} is deleted", pod.metadata.name),
    };
    PodChange::Delete(pod, Some(Box::new(event)))
}

fn refusal(of: &'static str, code: u16) -> Option<Refusal> {
    Some(Refusal {
        of,
        code,
        message: "exceeded quota",
        done: false,
    })
}

/// A plan that begins an update which deletes the Pod, and a plan that deletes the Pod.
fn recreation(pod: &Arc<Pod>) -> [SetPlan; 2] {
    let mut begin = PodPatch {
        pod: Arc::clone(pod),
        deletes: true,
        ..PodPatch::default()
    };
    begin.labels.0.insert("x".into(), Some("1".into()));
    let changes = [PodChange::Patch(begin), announced_deletion(Arc::clone(pod))];
    changes.map(|change| SetPlan {
        pods: vec![change],
        ..SetPlan::default()
    })
}

fn refusals_of(fixture: &Fixture, pod: &Pod) -> ApiRefusals {
    let none = || std::iter::empty();
    fixture
        .state
        .plan_refusals([pod].into_iter(), none(), Instant::now(), 0)
}

fn put_pod(fixture: &Fixture, name: &str, part: Value) {
    let mut pod = json!({ "metadata": { "namespace": "n", "name": name } });
    json_patch::merge(&mut pod, &part);
    fixture.api.put(&format!("{PODS}/{name}"), pod);
}

fn mounting_spec(pvc: &str) -> Value {
    json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": pvc } }] } })
}

fn pvc() -> Arc<Pvc> {
    Arc::new(Pvc {
        name: "data".into(),
        uid: "pvc".into(),
        resource_version: "1".into(),
        ..Pvc::default()
    })
}

/// The time until the next run at the latest.
fn pause_after(outcome: ApplyOutcome) -> Duration {
    match outcome {
        ApplyOutcome::All(Some(pause)) => pause,
        _ => BACKOFF_RANGE.1,
    }
}

/// Applies a plan several times, each time when the outcome asks for it.
async fn apply_often(fixture: &Fixture, times: usize, plan: impl Fn() -> SetPlan) {
    for _ in 0..times {
        let outcome = fixture.apply(plan()).await;
        tokio::time::advance(pause_after(outcome)).await;
    }
}
