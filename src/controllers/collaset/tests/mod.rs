#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};
use tokio::time::Instant;

use super::CollaSetController;
use super::apply::{ApplyOutcome, PlanExecution, apply_plan};
use super::observe::observe_collaset;
use super::reconcile_state::{HELD_BACKOFF, MIN_RECONCILE_INTERVAL, ReconcileState};
use super::refusals::{BACKOFF_RANGE, RefusalKey};
use crate::api::keys::{self, Family};
use crate::api::resourcecontext::ContextDetail;
use crate::cluster::leadership::Leadership;
use crate::cluster::objects::{CachedKind, CollaSetObject, PvcObject, ResourceContextObject};
use crate::cluster::work_queue::ReconcileOutcome;
use crate::controllers::ControllerContext;
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::api_refusals::ApiRefusals;
use crate::domain::collaset::observed::{ObservedSet, Pvc, Revision};
use crate::domain::collaset::plan::{
    DryRunChange, OwnershipChange, PodChange, PodPatch, PvcChange, RevisionChange, SetEvent,
    SetPlan,
};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

const SET: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web";
const POOL: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts/web";
const PODS: &str = "/api/v1/namespaces/n/pods";

/// A CollaSet, an API server that stores it, and the state of the controller.
struct Bed {
    api: FakeApi,
    context: Arc<ControllerContext>,
    memory: ReconcileState,
}

impl Bed {
    fn new() -> Bed {
        let api = FakeApi::default();
        let context = ControllerContext::at_epoch(api.client());
        api.put(
            SET,
            json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" } }),
        );
        context.index.decision_watches.trust_for_a_year();
        let bed = Bed {
            api,
            context,
            memory: ReconcileState::new("set"),
        };
        bed.learn::<CollaSetObject>(SET);
        bed
    }

    /// Puts an object of the API server into its cache, as the watch does.
    fn learn<W: CachedKind>(&self, path: &str) {
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
            &PlanExecution::new(&self.context, &observed, &self.memory),
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

fn pod_of(id: i64, controller: &str) -> Value {
    json!({ "metadata": {
        "generateName": "web-", "namespace": "n",
        "labels": { (keys::CONTROL): "true", (keys::INSTANCE_ID): id.to_string() },
        "ownerReferences": [{ "kind": "CollaSet", "uid": controller, "controller": true }],
    } })
}

fn claim_of(id: i64) -> Value {
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
fn creates_claim(id: i64) -> SetPlan {
    SetPlan {
        pvcs: vec![PvcChange::Create {
            id,
            template: "data".into(),
            body: claim_of(id),
        }],
        ..SetPlan::default()
    }
}

fn creates(ids: std::ops::Range<i64>) -> SetPlan {
    let create = |id| PodChange::Create {
        id,
        body: pod_of(id, "set"),
    };
    SetPlan {
        pods: ids.map(create).collect(),
        ..SetPlan::default()
    }
}

/// A deletion that is reported by an Event.
fn deletion(pod: Arc<Pod>) -> PodChange {
    let told = SetEvent {
        warning: false,
        reason: "TargetDeleted",
        message: format!("Pod {} is deleted", pod.metadata.name),
    };
    PodChange::Delete(pod, Some(Box::new(told)))
}

fn refusal(of: &'static str, code: u16) -> Option<Refusal> {
    Some(Refusal {
        of,
        code,
        message: "exceeded quota",
        done: false,
    })
}

#[tokio::test]
async fn the_stages_come_in_order_and_nothing_is_asked_twice() {
    let bed = Bed::new();
    let (changed, deleted) = (bed.pod("web-old"), bed.pod("web-gone"));
    let mut patch = PodPatch {
        pod: changed,
        resize: Some(json!({ "containers": [] })),
        ..PodPatch::default()
    };
    patch.labels.0.insert("a".into(), Some("1".into()));
    let mut plan = creates(0..1);
    plan.add_finalizer = true;
    plan.revisions = vec![RevisionChange::Create(Arc::new(Revision {
        name: "web-1".into(),
        data: json!({}),
        ..Revision::default()
    }))];
    plan.pool = Some(vec![ContextDetail::default()]);
    plan.pvcs = vec![PvcChange::Create {
        id: 0,
        template: "data".into(),
        body: claim_of(0),
    }];
    plan.pods.push(PodChange::Patch(patch));
    plan.pods.push(deletion(deleted));
    plan.status = Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap());

    assert_eq!(
        bed.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let mut requests = bed.api.requests();
    requests[5..8].sort(); // concurrent: the resize and the deletion, then the patch
    assert_eq!(
        requests,
        [
            format!("PATCH {SET}"),
            "POST /apis/apps/v1/namespaces/n/controllerrevisions".into(),
            "GET /api/v1/namespaces/n/persistentvolumeclaims".into(),
            format!("POST {}", POOL.trim_end_matches("/web")),
            "POST /api/v1/namespaces/n/persistentvolumeclaims".into(),
            format!("DELETE {PODS}/web-gone"),
            format!("PATCH {PODS}/web-old"),
            format!("PATCH {PODS}/web-old/resize"),
            format!("POST {PODS}"),
            format!("PATCH {SET}/status"),
        ]
    );
    let observed = bed.observed();
    let finalizers = observed.set.metadata.finalizers.clone();
    assert_eq!(finalizers, Some(vec![keys::PRE_RECLAIM_FINALIZER.into()]));
    assert_eq!(observed.set.status.as_ref().unwrap().replicas, 1);
    assert_eq!(observed.pool.unwrap().contexts.len(), 1);
    let objects = &bed.context.objects;
    assert_eq!(objects.revisions.controlled_by("n", "set").len(), 1);
    assert_eq!(objects.claims.names_where("n", |_| true).len(), 1);
    // The Pod cache must reach the last write of a Pod.
    assert_eq!(
        bed.memory.required_pod_version(),
        bed.api.0.lock().version - 1
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_is_not_done_twice() {
    let bed = Bed::new();
    let post = "POST /api/v1/namespaces/n/pods";
    let lost = refusal(post, 504).map(|r| Refusal { done: true, ..r });
    bed.api.refuse(lost);
    let failed = ApplyOutcome::All(Some(BACKOFF_RANGE.0));
    assert_eq!(bed.apply(creates(0..1)).await, failed);
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    bed.api.refuse(None);
    assert_eq!(bed.apply(creates(0..1)).await, ApplyOutcome::All(None));
    let names: Vec<_> = bed.api.bodies(post);
    assert_eq!(names.len(), 2);
    assert_eq!(names[0]["metadata"]["name"], names[1]["metadata"]["name"]);
    assert_eq!(names[0]["metadata"]["generateName"], "web-");
    // The next Pod of this ID gets another name.
    assert_eq!(bed.apply(creates(0..1)).await, ApplyOutcome::All(None));
    assert_ne!(
        bed.api.bodies(post)[2]["metadata"]["name"],
        names[0]["metadata"]["name"]
    );
}

#[tokio::test]
async fn a_name_that_another_has_is_left_to_it() {
    let bed = Bed::new();
    let name = bed
        .memory
        .choose_name(&super::names::NameSlot::Pod(0), "web-");
    bed.api.put(&format!("{PODS}/{name}"), pod_of(0, "other"));
    assert_eq!(bed.apply(creates(0..1)).await, ApplyOutcome::Moved);
    assert_eq!(bed.apply(creates(0..1)).await, ApplyOutcome::All(None));
    assert_eq!(bed.condition("Scale"), Value::Null);

    let mut plan = creates(0..1);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        body["metadata"] = json!({ "name": name });
    }
    assert_eq!(
        bed.apply(plan).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let message = bed.condition("Scale")["message"].to_string();
    assert!(
        message.contains("does not belong to this CollaSet"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_creations_give_one_event_and_stop_early() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let first = ApplyOutcome::All(Some(BACKOFF_RANGE.0));
    assert_eq!(bed.apply(creates(0..40)).await, first);
    let status = format!("PATCH {SET}/status");
    let post = format!("POST {PODS}");
    let requests = [post.clone(), post.clone(), post, status.clone()];
    assert_eq!(bed.api.requests(), requests);
    let condition = bed.condition("Scale");
    assert_eq!(condition["reason"], "ScaleOutFailed");
    let message = condition["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("creation of Pod web-") && message.ends_with(": exceeded quota"));

    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = ApplyOutcome::All(Some(BACKOFF_RANGE.0 * 2));
    assert_eq!(bed.apply(creates(0..40)).await, second);
    assert_eq!(bed.api.bodies(&status).len(), 1, "the same failure again");
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reason"], "ScaleOutFailed");
    assert_eq!(events[0]["involvedObject"]["name"], "web");
}

#[tokio::test(start_paused = true)]
async fn refused_write_backs_off_without_blocking_others() {
    let bed = Bed::new();
    let (one, other) = (bed.pod("web-a"), bed.pod("web-b"));
    bed.api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods/web-a", 403));
    let plan = || {
        let mut plan = creates(0..1);
        let deletions = [one.clone(), other.clone()].map(deletion);
        plan.pods.extend(deletions);
        plan
    };
    let refused = format!("DELETE {PODS}/web-a");
    assert_eq!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let requests = bed.api.requests();
    assert!(requests.contains(&format!("DELETE {PODS}/web-b")));
    assert!(requests.contains(&format!("POST {PODS}")));
    assert!(matches!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    let asked = |bed: &Bed| bed.api.bodies(&refused).len();
    assert_eq!(asked(&bed), 1, "not again so soon");
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    bed.apply(plan()).await;
    assert_eq!(asked(&bed), 2);
}

/// Applies a plan with this change of Pod web-a, while the API server refuses this request.
async fn told_of(request: &'static str, status: Value, change: fn(Arc<Pod>) -> PodChange) -> Bed {
    let bed = Bed::new();
    let path = format!("{PODS}/web-a");
    let pod = json!({ "metadata": { "namespace": "n", "name": "web-a" }, "status": status });
    bed.api.put(&path, pod);
    let object = bed.api.0.lock().objects[&path].clone();
    let pod = Arc::new(serde_json::from_value(object).unwrap());
    bed.api.refuse(refusal(request, 403));
    let plan = SetPlan {
        pods: vec![change(pod)],
        ..SetPlan::default()
    };
    bed.apply(plan).await;
    bed
}

#[tokio::test(start_paused = true)]
async fn refusal_says_what_was_to_be_done() {
    let delete = "DELETE /api/v1/namespaces/n/pods/web-a";
    let bed = told_of(delete, json!({}), deletion).await;
    let told = "deletion of Pod web-a: exceeded quota";
    assert_eq!(bed.condition("Update")["message"], told);
    assert_eq!(bed.condition("Ready")["reason"], "UpdateFailed");
    let patch = |pod| {
        let mut patch = PodPatch {
            pod,
            ..PodPatch::default()
        };
        patch.labels.0.insert("a".into(), Some("1".into()));
        PodChange::Patch(patch)
    };
    let bed = told_of("PATCH /api/v1/namespaces/n/pods/web-a", json!({}), patch).await;
    let told = "change of Pod web-a: exceeded quota";
    assert_eq!(bed.condition("Update")["message"], told);
}

#[tokio::test(start_paused = true)]
async fn undeletable_leftover_pod_is_no_failed_update() {
    let delete = "DELETE /api/v1/namespaces/n/pods/web-a";
    let failed = json!({ "phase": "Failed" });
    let bed = told_of(delete, failed, deletion).await;
    assert_eq!(bed.condition("Update"), Value::Null);
    for type_ in ["Scale", "Ready"] {
        assert_eq!(bed.condition(type_)["reason"], "ScaleInFailed");
    }
}

#[tokio::test]
async fn refused_revision_ends_plan_and_is_known_to_next() {
    let bed = Bed::new();
    bed.api.refuse(refusal(
        "POST /apis/apps/v1/namespaces/n/controllerrevisions",
        403,
    ));
    let mut plan = creates(0..1);
    plan.revisions = vec![RevisionChange::Create(Arc::new(Revision {
        name: "web-1".into(),
        data: json!({}),
        ..Revision::default()
    }))];
    assert!(matches!(bed.apply(plan).await, ApplyOutcome::All(Some(_))));
    assert_eq!(
        bed.api.requests(),
        ["POST /apis/apps/v1/namespaces/n/controllerrevisions"]
    );
    let none = || std::iter::empty();
    let facts = bed
        .memory
        .plan_refusals(std::iter::empty(), none(), Instant::now(), 0);
    let why = facts.revision.unwrap();
    assert!(why.contains("exceeded quota"), "{why}");
}

/// The time after which a plan without its revision is repeated, if the backoff of the revision ends `left` after the
/// plan was made.
async fn again_without_revision(left: Duration) -> Option<Duration> {
    let bed = Bed::new();
    let pause =
        bed.memory
            .record_refusal(RefusalKey::Revision, "no more of them", Instant::now(), 0);
    let mut observed = bed.observed();
    observed.refused.revision = Some("no more of them".to_owned());
    tokio::time::advance(pause - left).await;
    let work = PlanExecution::new(&bed.context, &observed, &bed.memory);
    tokio::time::advance(left).await;
    match apply_plan(&work, SetPlan::default()).await {
        ApplyOutcome::All(again) => again,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn revision_is_retried_if_backoff_ends_during_plan() {
    let again = again_without_revision(Duration::from_millis(1)).await;
    assert_eq!(again, Some(MIN_RECONCILE_INTERVAL));
}

/// A refusal of a resize by the API server, because of the Pod, its node, or the amount.
fn refused_resize(code: u16, message: &'static str) -> Option<Refusal> {
    Some(Refusal {
        of: "PATCH /api/v1/namespaces/n/pods/web-a/resize",
        code,
        message,
        done: false,
    })
}

#[tokio::test]
async fn refused_resize_is_known_to_next_plan() {
    let node = "pods \"web-a\" is forbidden: pod update requires features X which are not available on node \"a\"";
    let quota = "pods \"web-a\" is forbidden: exceeded quota: few, requested: cpu=1";
    let policy = "pods \"web-a\" is invalid: ValidatingAdmissionPolicy 'a' with binding 'a' denied request: no";
    let webhook = "admission webhook \"a.b\" denied the request: no";
    for (code, message) in [
        (422, ""),
        (405, ""),
        (404, ""),
        (403, node),
        (403, quota),
        (422, policy),
        (400, webhook),
        (409, webhook),
        (429, webhook),
    ] {
        let bed = Bed::new();
        let pod = bed.pod("web-a");
        bed.api.refuse(refused_resize(code, message));
        let mut patch = PodPatch {
            pod: pod.clone(),
            resize: Some(json!({ "containers": [] })),
            in_place_target: Some("web-2".into()),
            ..PodPatch::default()
        };
        patch
            .labels
            .0
            .insert(keys::REVISION.into(), Some("web-2".into()));
        let plan = SetPlan {
            pods: vec![PodChange::Patch(patch)],
            ..SetPlan::default()
        };
        let done = bed.apply(plan).await;
        let path = format!("PATCH {PODS}/web-a");
        assert!(!bed.api.requests().contains(&path), "the rest goes with it");
        let none = || std::iter::empty();
        let facts = bed
            .memory
            .plan_refusals([&*pod].into_iter(), none(), Instant::now(), 0);
        let denied = [quota, policy, webhook].contains(&message);
        assert_eq!(
            facts.resize_refusal(&pod, "web-2").is_some(),
            !denied,
            "{code}"
        );
        assert_eq!(facts.refuses_change(&pod, "web-2"), denied, "{code}");
        assert_eq!(
            done,
            ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL)),
            "{code}"
        );
        assert_eq!(facts.resize_refusal(&pod, "web-3"), None);
    }
}

/// A plan that begins the update of a Pod, and a plan that makes its change.
fn update(pod: &Arc<Pod>) -> [SetPlan; 2] {
    let mut begin = PodPatch {
        pod: Arc::clone(pod),
        ..PodPatch::default()
    };
    begin.labels.0.insert("x".into(), Some("1".into()));
    let mut ahead = DryRunChange {
        revision: "web-2".into(),
        ..DryRunChange::default()
    };
    ahead.labels.0.insert("y".into(), Some("1".into()));
    begin.dry_run_change = Some(Arc::new(ahead));
    let mut change = PodPatch {
        dry_run_change: None,
        in_place_target: Some("web-2".into()),
        ..begin.clone()
    };
    change.labels.0.insert("y".into(), Some("1".into()));
    [begin, change].map(|patch| SetPlan {
        pods: vec![PodChange::Patch(patch)],
        ..SetPlan::default()
    })
}

#[tokio::test(start_paused = true)]
async fn late_refused_pod_backs_off_while_others_change() {
    let bed = Bed::new();
    let pod = |name: &str| -> Arc<Pod> {
        put_pod(
            &bed,
            name,
            json!({ "metadata": { "name": name, "uid": name } }),
        );
        let object = bed.api.0.lock().objects[&format!("{PODS}/{name}")].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let patch = format!("PATCH {PODS}/web-a");
    let begins = || begun_and_tried(&bed, "web-a").0;
    // For this Pod the dry run passes each time and the change is refused. For the other Pod nothing is refused.
    let mut tries = 0;
    for _ in 0..60 {
        let before = begins();
        bed.apply(update(&pod("web-a"))[0].clone()).await;
        if begins() > before {
            tries += 1;
            bed.api
                .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-a", 403));
            bed.apply(update(&pod("web-a"))[1].clone()).await;
            bed.api.refuse(None);
        }
        bed.apply(update(&pod("web-b"))[1].clone()).await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert!((8..20).contains(&tries), "{tries} tries in five minutes");
    bed.memory.clear_late_refusals();
    let tried = bed.api.bodies(&patch).len();
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.apply(update(&pod("web-a"))[0].clone()).await;
    assert!(bed.api.bodies(&patch).len() > tried, "a command ends that");
}

/// A plan that begins an update which deletes the Pod, and a plan that deletes the Pod.
fn recreation(pod: &Arc<Pod>) -> [SetPlan; 2] {
    let mut begin = PodPatch {
        pod: Arc::clone(pod),
        deletes: true,
        ..PodPatch::default()
    };
    begin.labels.0.insert("x".into(), Some("1".into()));
    let changes = [PodChange::Patch(begin), deletion(Arc::clone(pod))];
    changes.map(|change| SetPlan {
        pods: vec![change],
        ..SetPlan::default()
    })
}

fn facts_of(bed: &Bed, pod: &Pod) -> ApiRefusals {
    let none = || std::iter::empty();
    bed.memory
        .plan_refusals([pod].into_iter(), none(), Instant::now(), 0)
}

#[tokio::test(start_paused = true)]
async fn refused_deletion_is_dry_run_before_next_pod() {
    let bed = Bed::new();
    let (a, b) = (bed.pod("web-a"), bed.pod("web-b"));
    let delete = |pod: &Pod| format!("DELETE {PODS}/{}", pod.metadata.name);
    let [begin, _] = recreation(&b);
    bed.apply(begin).await;
    assert!(
        !bed.api.requests().contains(&delete(&b)),
        "nothing is in doubt"
    );
    bed.api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods", 403));
    bed.apply(recreation(&a)[1].clone()).await;
    let asked = &bed.api.bodies(&delete(&a))[0]["preconditions"];
    let version = a.metadata.resource_version.to_string();
    assert_eq!(asked["resourceVersion"], json!(version));
    assert!(facts_of(&bed, &a).deletions.contains(&a.metadata.uid));
    let patches = |bed: &Bed| bed.api.bodies(&format!("PATCH {PODS}/web-b")).len();
    let before = patches(&bed);
    let b = Arc::new(
        serde_json::from_value(bed.api.0.lock().objects[&format!("{PODS}/web-b")].clone()).unwrap(),
    );
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&bed), before, "it stays on traffic");
    assert_eq!(bed.api.bodies(&delete(&b)).len(), 1, "tried by a dry run");
    bed.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&bed), before + 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_change_failure_counts_as_refusal() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    bed.memory.record_accepted_change("another", "web-2");
    bed.api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods", 500));
    bed.apply(update(&pod)[1].clone()).await;
    assert!(
        !facts_of(&bed, &pod).refuses_change(&pod, "web-2"),
        "it may be a blip"
    );
    apply_often(&bed, 6, || update(&pod)[1].clone()).await;
    let facts = facts_of(&bed, &pod);
    assert!(facts.refuses_change(&pod, "web-2"));
    assert!(!facts.accepted.contains("web-2"), "others are tried first");
}

#[tokio::test(start_paused = true)]
async fn repeated_dry_run_failure_frees_update_slot() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    let change = "PATCH /api/v1/namespaces/n/pods/web-a";
    let resize = "PATCH /api/v1/namespaces/n/pods/web-a/resize";
    for (at, spec) in [(change, None), (resize, Some(json!({ "containers": [] })))] {
        let begin = || {
            let mut begin = update(&pod)[0].clone();
            if let [PodChange::Patch(patch)] = &mut begin.pods[..] {
                let ahead = Arc::make_mut(patch.dry_run_change.as_mut().unwrap());
                ahead.revision = at.into();
                ahead.resize.clone_from(&spec);
            }
            begin
        };
        bed.api.refuse(refusal(at, 500));
        bed.apply(begin()).await;
        assert!(!facts_of(&bed, &pod).refuses_change(&pod, at), "a blip");
        apply_often(&bed, 6, begin).await;
        assert!(facts_of(&bed, &pod).refuses_change(&pod, at), "{at}");
        bed.api.refuse(None);
        apply_often(&bed, 1, begin).await;
    }
}

/// Begins the updates of all these Pods in one plan. Returns how many have begun.
async fn begun(bed: &Bed, pods: &[Arc<Pod>], plans: fn(&Arc<Pod>) -> [SetPlan; 2]) -> usize {
    let begin = SetPlan {
        pods: pods
            .iter()
            .flat_map(|pod| plans(pod)[0].pods.clone())
            .collect(),
        ..SetPlan::default()
    };
    bed.apply(begin).await;
    let begun = pods.iter().filter(|pod| {
        let path = format!("{PODS}/{}", pod.metadata.name);
        bed.api.0.lock().objects[&path]["metadata"]["labels"]["x"] == "1"
    });
    begun.count()
}

#[tokio::test(start_paused = true)]
async fn after_late_refusal_pods_update_one_by_one() {
    let bed = Bed::new();
    let pods: Vec<_> = (0..5).map(|n| bed.pod(&format!("web-{n}"))).collect();
    bed.api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-0", 403));
    bed.apply(update(&pods[0])[1].clone()).await;
    bed.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    assert_eq!(begun(&bed, &pods, update).await, 1);
}

#[tokio::test(start_paused = true)]
async fn after_late_deletion_refusal_pods_go_one_by_one() {
    let bed = Bed::new();
    let pods: Vec<_> = (0..5).map(|n| bed.pod(&format!("web-{n}"))).collect();
    bed.api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods", 403));
    for pod in &pods {
        let mut pod = Pod::clone(pod);
        let begun = SetOperation::Update.begin_labels(&pod, true, 1);
        begun.apply(&mut pod.metadata.labels);
        bed.apply(recreation(&pod.into())[1].clone()).await;
    }
    bed.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    assert_eq!(begun(&bed, &pods, recreation).await, 1);
}

#[tokio::test(start_paused = true)]
async fn refused_deletion_of_a_scale_in_holds_up_no_trial() {
    let bed = Bed::new();
    let (gone, other) = (bed.pod("web-a"), bed.pod("web-b"));
    bed.api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods/web-a", 403));
    for _ in 0..12 {
        bed.apply(recreation(&gone)[1].clone()).await;
        tokio::time::advance(BACKOFF_RANGE.1).await;
    }
    assert_eq!(begun(&bed, &[other], recreation).await, 1);
}

/// Takes a Pod whose change was refused, and answers its next dry run with 429 and this message. Returns whether the
/// change still counts as refused.
async fn refused_after_429(message: &'static str) -> bool {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    let patch = "PATCH /api/v1/namespaces/n/pods/web-0";
    bed.api.refuse(refusal(patch, 403));
    bed.apply(update(&pod)[0].clone()).await;
    assert!(facts_of(&bed, &pod).refuses_change(&pod, "web-2"));
    let answer = refusal(patch, 429).map(|refusal| Refusal { message, ..refusal });
    bed.api.refuse(answer);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.apply(update(&pod)[0].clone()).await;
    facts_of(&bed, &pod).refuses_change(&pod, "web-2")
}

#[tokio::test(start_paused = true)]
async fn dry_run_that_the_rules_hold_is_no_refusal() {
    let rules = "admission webhook \"pods.apps.kusionstack.io\" denied the request: held";
    assert!(
        !refused_after_429(rules).await,
        "the Pod would be called back as soon as it waits for its rules, without end"
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_answered_429_by_api_server_is_inconclusive() {
    assert!(refused_after_429("Too many requests, please try again later.").await);
}

#[tokio::test(start_paused = true)]
async fn update_that_can_not_begin_frees_its_slot() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    let mut begin = update(&pod)[0].clone();
    let PodChange::Patch(patch) = &mut begin.pods[0] else {
        unreachable!()
    };
    let operating = Family::Operating.key("collaset");
    patch.labels.0.insert(operating, Some("1".into()));
    let status = "PATCH /api/v1/namespaces/n/pods/web-0/status";
    bed.api.refuse(refusal(status, 403));
    bed.apply(begin.clone()).await;
    assert!(facts_of(&bed, &pod).pods.contains(&pod.metadata.uid));
    bed.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.apply(begin).await;
    assert!(facts_of(&bed, &pod).pods.is_empty());
}

#[tokio::test]
async fn refused_pool_write_blocks_dependent_writes() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 500));
    let mut plan = creates(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    plan.remove_finalizer = true;
    assert_eq!(bed.apply(plan).await, ApplyOutcome::Failed);
    assert_eq!(
        bed.api.requests(),
        [
            format!("POST {}", POOL.trim_end_matches("/web")),
            "GET /api/v1/namespaces/n/persistentvolumeclaims".to_owned(),
            format!("PATCH {SET}/status")
        ]
    );
}

#[tokio::test]
async fn pool_write_requires_planned_resource_version() {
    let bed = Bed::new();
    bed.api.put(
        POOL,
        json!({ "metadata": { "namespace": "n", "name": "web" } }),
    );
    bed.learn::<ResourceContextObject>(POOL);
    let observed = bed.observed();
    // Another set that shares the pool has written in the meantime.
    let other = bed.api.0.lock().objects[POOL].clone();
    bed.api.put(POOL, other);
    bed.learn::<ResourceContextObject>(POOL);
    let plan = SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    let work = PlanExecution::new(&bed.context, &observed, &bed.memory);
    assert_eq!(apply_plan(&work, plan.clone()).await, ApplyOutcome::Moved);
    assert_eq!(
        bed.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let emptied = SetPlan {
        pool: Some(Vec::new()),
        ..SetPlan::default()
    };
    bed.apply(emptied).await;
    assert!(bed.observed().pool.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_admission_holds_is_no_failure_and_waits() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    bed.api.refuse(refusal("DELETE", 429));
    let plan = SetPlan {
        pods: vec![deletion(pod)],
        ..SetPlan::default()
    };
    assert_eq!(
        bed.apply(plan.clone()).await,
        ApplyOutcome::All(Some(HELD_BACKOFF))
    );
    assert!(matches!(
        bed.apply(plan.clone()).await,
        ApplyOutcome::All(Some(_))
    ));
    assert_eq!(bed.api.requests(), [format!("DELETE {PODS}/web-a")]);
    let told = || bed.api.bodies("POST /api/v1/namespaces/n/events").len();
    assert_eq!(told(), 0, "it is not deleted");
    tokio::time::sleep(HELD_BACKOFF).await;
    bed.api.refuse(None);
    assert_eq!(bed.apply(plan).await, ApplyOutcome::All(None));
    tokio::time::sleep(MIN_RECONCILE_INTERVAL).await;
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn pod_conflict_is_no_failure() {
    let bed = Bed::new();
    let seen = bed.pod("web-a");
    bed.pod("web-a");
    let mut patch = PodPatch {
        pod: seen,
        ..PodPatch::default()
    };
    patch.labels.0.insert("a".into(), Some("1".into()));
    let plan = SetPlan {
        pods: vec![PodChange::Patch(patch)],
        ..SetPlan::default()
    };
    assert_eq!(bed.apply(plan).await, ApplyOutcome::Moved);
    assert_eq!(bed.api.requests(), [format!("PATCH {PODS}/web-a")]);
}

#[tokio::test]
async fn a_revision_of_other_data_raises_the_collision_count() {
    let bed = Bed::new();
    let path = "/apis/apps/v1/namespaces/n/controllerrevisions/web-1";
    let of = |data: Value| {
        json!({
            "metadata": {
                "namespace": "n", "name": "web-1",
                "ownerReferences": [{
                    "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "uid": "set", "controller": true,
                }],
            },
            "data": data,
        })
    };
    bed.api.put(path, of(json!({ "other": true })));
    let plan = || SetPlan {
        revisions: vec![RevisionChange::Create(Arc::new(Revision {
            name: "web-1".into(),
            data: json!({}),
            ..Revision::default()
        }))],
        ..SetPlan::default()
    };
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::Moved);
    let status = bed.observed().set.status.clone().unwrap();
    assert_eq!(status.collision_count, Some(1));

    bed.api.put(path, of(json!({})));
    assert_eq!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(bed.observed().set.status.as_ref(), Some(&status));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_planned_before_cache_shows_own_write() {
    let bed = Bed::new();
    let index = &bed.context.index;
    let set = bed.observed().set;
    let early = observe_collaset(&bed.context, &set, &bed.memory).await;
    assert!(
        matches!(early, Err(ReconcileOutcome::After(_))),
        "nothing is listed yet"
    );
    index.replace_pods(Vec::new(), 5);
    index.mark_all_listed();
    bed.memory.record_pod_write(7);
    let trailing = observe_collaset(&bed.context, &set, &bed.memory).await;
    assert!(matches!(trailing, Err(ReconcileOutcome::Retry)));
    index.bookmark_pods(7);
    assert!(
        observe_collaset(&bed.context, &set, &bed.memory)
            .await
            .is_ok()
    );
    index.decision_watches.pods.end_trust();
    let silent = observe_collaset(&bed.context, &set, &bed.memory).await;
    assert!(matches!(silent, Err(ReconcileOutcome::Retry)));
}

#[tokio::test(start_paused = true)]
async fn plan_waits_for_uncached_pod_to_include() {
    let bed = Bed::new();
    let index = &bed.context.index;
    index.replace_pods(Vec::new(), 1);
    index.mark_all_listed();
    let labels = json!({ keys::CONTROL: keys::CONTROL_VALUE });
    let pod = json!({ "metadata": { "namespace": "n", "name": "web-0", "labels": labels } });
    bed.api.put(&format!("{PODS}/web-0"), pod);
    let included = json!({ "podToInclude": ["web-0"] });
    bed.api.put(
        SET,
        json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "set" },
            "spec": { "scaleStrategy": included },
        }),
    );
    bed.learn::<CollaSetObject>(SET);
    let set = bed.observed().set;
    let trailing = observe_collaset(&bed.context, &set, &bed.memory).await;
    assert!(matches!(trailing, Err(ReconcileOutcome::Retry)));
    index.bookmark_pods(bed.api.0.lock().version);
    assert!(
        observe_collaset(&bed.context, &set, &bed.memory)
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn new_leader_waits_for_cache_to_show_former_leaders_writes() {
    let bed = Bed::new();
    let index = &bed.context.index;
    index.replace_pods(Vec::new(), 1);
    index.mark_all_listed();
    bed.pod("web-of-the-former-leader");
    let written = bed.api.0.lock().version;
    let leader = CollaSetController::new(Arc::clone(&bed.context));
    let look = || leader.reconcile(("n".into(), "web".into()));
    assert!(matches!(look().await, ReconcileOutcome::Retry));
    tokio::time::advance(MIN_RECONCILE_INTERVAL).await;
    index.bookmark_pods(written - 1);
    assert!(matches!(look().await, ReconcileOutcome::Retry));
    tokio::time::advance(MIN_RECONCILE_INTERVAL).await;
    index.bookmark_pods(written);
    assert!(!matches!(look().await, ReconcileOutcome::Retry));
    let status = || bed.api.0.lock().objects[SET]["status"].clone();
    assert_ne!(status(), Value::Null, "it has planned");
}

#[tokio::test(start_paused = true)]
async fn former_leader_writes_nothing() {
    let mut bed = Bed::new();
    let pod = bed.pod("web-0");
    Arc::get_mut(&mut bed.context).unwrap().leadership = Leadership::default();
    let mut plan = recreation(&pod)[1].clone();
    plan.pvcs.push(PvcChange::Delete(claim()));
    plan.pods.extend(creates(1..3).pods);
    plan.status = Some(Default::default());
    assert_eq!(bed.apply(plan).await, ApplyOutcome::Moved);
    assert_eq!(bed.api.requests(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pod_with_slow_dry_run_waits_for_newer_plan() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    bed.api.0.lock().trial = Duration::from_secs(2);
    let begin = || update(&pod)[0].clone();
    assert_eq!(
        bed.apply(begin()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let patch = format!("PATCH {PODS}/web-0");
    assert_eq!(bed.api.bodies(&patch).len(), 1, "the dry run alone");
    bed.memory.distrust_revision("web-2"); // a change of another Pod was refused
    bed.apply(begin()).await;
    let bodies = bed.api.bodies(&patch);
    assert_eq!(bodies.len(), 2, "no other dry run: it would take as long");
    assert_eq!(bodies[1]["metadata"]["labels"]["x"], "1");
}

/// How often the update of a Pod has begun, and how many dry runs were sent.
fn begun_and_tried(bed: &Bed, name: &str) -> (usize, usize) {
    let bodies = bed.api.bodies(&format!("PATCH {PODS}/{name}"));
    let is_dry = |body: &&Value| body["metadata"]["labels"]["x"].is_null();
    let begins = |body: &&Value| !is_dry(body) && body["metadata"]["labels"]["y"].is_null();
    let begun = bodies.iter().filter(begins).count();
    (begun, bodies.iter().filter(is_dry).count())
}

#[tokio::test(start_paused = true)]
async fn passed_slow_dry_run_counts_for_its_revision_only() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    bed.api.0.lock().trial = Duration::from_secs(2);
    bed.apply(update(&pod)[0].clone()).await;
    assert_eq!(begun_and_tried(&bed, "web-0"), (0, 1));
    let mut other = update(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut other.pods[..] {
        Arc::make_mut(patch.dry_run_change.as_mut().unwrap()).revision = "web-3".into();
    }
    bed.apply(other).await;
    assert_eq!(begun_and_tried(&bed, "web-0"), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn late_refusal_backoff_grows_with_slow_dry_runs() {
    let bed = Bed::new();
    bed.pod("web-0");
    let pod = || -> Arc<Pod> {
        let object = bed.api.0.lock().objects[&format!("{PODS}/web-0")].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    };
    bed.api.0.lock().trial = Duration::from_secs(2);
    for _ in 0..60 {
        let before = begun_and_tried(&bed, "web-0").0;
        bed.apply(update(&pod())[0].clone()).await;
        if begun_and_tried(&bed, "web-0").0 > before {
            bed.api
                .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-0", 403));
            bed.apply(update(&pod())[1].clone()).await;
            bed.api.refuse(None);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let (begun, _) = begun_and_tried(&bed, "web-0");
    assert!((2..20).contains(&begun), "{begun} times in a minute");
}

#[tokio::test(start_paused = true)]
async fn old_plan_takes_no_pod_off_traffic() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    let mut plan = recreation(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut plan.pods[..] {
        let operating = Family::Operating.key("collaset");
        patch.labels.0.insert(operating, Some("1".into()));
    }
    let observed = bed.observed();
    let work = PlanExecution::new(&bed.context, &observed, &bed.memory);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(
        apply_plan(&work, plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(bed.api.requests(), Vec::<String>::new());
}

/// Gives the set a selector, so that its orphans can be found.
fn selecting(bed: &Bed, metadata: Value) {
    let mut set = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "set" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
    });
    json_patch::merge(&mut set["metadata"], &metadata);
    bed.api.put(SET, set);
}

fn put_pod(bed: &Bed, name: &str, part: Value) {
    let mut pod = json!({ "metadata": { "namespace": "n", "name": name } });
    json_patch::merge(&mut pod, &part);
    bed.api.put(&format!("{PODS}/{name}"), pod);
}

fn mounting(claim: &str) -> Value {
    json!({ "spec": { "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": claim } }] } })
}

fn claim() -> Arc<Pvc> {
    Arc::new(Pvc {
        name: "data".into(),
        uid: "claim".into(),
        resource_version: "1".into(),
        ..Pvc::default()
    })
}

#[tokio::test(start_paused = true)]
async fn pvc_mounted_by_uncached_pod_is_not_deleted() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    let plan = || SetPlan {
        pvcs: vec![PvcChange::Delete(claim())],
        ..SetPlan::default()
    };
    assert!(matches!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    assert!(matches!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    let list = format!("GET {PODS}");
    assert_eq!(
        bed.api.requests(),
        std::slice::from_ref(&list),
        "and not asked for at once again"
    );
    let events = |bed: &Bed| bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events(&bed), [Value::Null; 0]);
    bed.api.0.lock().objects.remove(&format!("{PODS}/debug"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    bed.apply(plan()).await;
    let delete = "DELETE /api/v1/namespaces/n/persistentvolumeclaims/data".to_owned();
    assert_eq!(bed.api.requests(), [list.clone(), list, delete]);
}

#[tokio::test(start_paused = true)]
async fn mounted_pvc_gets_version_unknown_to_earlier_deletions() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    let mut stored = claim_of(0);
    json_patch::merge(
        &mut stored,
        &json!({ "metadata": { "name": "data", "uid": "c" } }),
    );
    bed.api.put(path, stored);
    bed.learn::<PvcObject>(path);
    bed.context.index.replace_pods(Vec::new(), 1);
    let plan = || {
        let mut plan = creates(0..1);
        if let PodChange::Create { body, .. } = &mut plan.pods[0] {
            json_patch::merge(body, &mounting("data"));
        }
        plan
    };
    let (patch, post) = (format!("PATCH {path}"), format!("POST {PODS}"));
    let writes = || {
        let mut writes = bed.api.requests();
        writes.retain(|request| !request.starts_with("GET") && !request.ends_with("/status"));
        writes
    };
    bed.apply(plan()).await;
    assert_eq!(writes(), [patch.clone(), post.clone()]);
    assert!(bed.api.bodies(&patch)[0]["metadata"]["uid"] == "c");
    // The next Pod does not need the write again, unless a deletion has been sent.
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    bed.apply(plan()).await;
    assert_eq!(writes().len(), 3);
    bed.memory.unfence_pvc("c");
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    // The clock does not move, so the annotation stays the same, as if a webhook restored the old value.
    bed.apply(plan()).await;
    assert_eq!(writes().len(), 4, "the version is the one that was there");
    let told = bed.condition("Scale")["message"].to_string();
    assert!(told.contains("it is not as it was written"), "{told}");
    tokio::time::advance(BACKOFF_RANGE.1).await;
    bed.api.0.lock().mutation =
        Some(|claim| claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::Moved);
    assert_eq!(writes().pop(), Some(patch), "the deletion came first");
}

#[tokio::test(start_paused = true)]
async fn pvc_deletion_is_announced_unless_refused() {
    let bed = Bed::new();
    let named = |name: &str| {
        let claim = Pvc {
            name: name.into(),
            uid: name.into(),
            ..(*claim()).clone()
        };
        PvcChange::Delete(Arc::new(claim))
    };
    const CLAIMS: &str = "/api/v1/namespaces/n/persistentvolumeclaims";
    for name in ["a", "b", "c"] {
        bed.api.put(
            &format!("{CLAIMS}/{name}"),
            json!({ "metadata": { "namespace": "n", "name": name, "uid": name } }),
        );
    }
    bed.api.refuse(refusal(
        "DELETE /api/v1/namespaces/n/persistentvolumeclaims/c",
        403,
    ));
    let plan = SetPlan {
        pvcs: ["b", "c", "a"].map(named).into(),
        ..SetPlan::default()
    };
    bed.apply(plan).await;
    let deletion = &bed.api.bodies(&format!("DELETE {CLAIMS}/a"))[0];
    assert_eq!(
        deletion["preconditions"],
        json!({ "uid": "a", "resourceVersion": "1" }),
        "one that has left the set by now stays"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    let told: Vec<_> = events
        .iter()
        .filter(|event| event["reason"] == "ClaimDeleted")
        .collect();
    let [event] = &told[..] else {
        panic!("{events:?}")
    };
    assert_eq!(event["type"], "Normal");
    let message = "deleted PVCs that no Pod of the CollaSet needs any more: a, b";
    assert_eq!(event["message"], message);
    let reasons: BTreeSet<_> = events.iter().map(|e| e["reason"].as_str()).collect();
    assert_eq!(reasons, ["ClaimDeleted", "ScaleInFailed"].map(Some).into());
}

#[tokio::test(start_paused = true)]
async fn former_leader_announces_its_writes() {
    let mut bed = Bed::new();
    let tenure = Leadership::default();
    tenure.extend_leadership(Instant::now(), Duration::from_secs(1));
    Arc::get_mut(&mut bed.context).unwrap().leadership = tenure;
    let said_by_the_next = SetEvent {
        warning: false,
        reason: "RolloutStarted",
        message: String::new(),
    };
    let plan = SetPlan {
        pods: vec![deletion(bed.pod("web-a"))],
        events: vec![said_by_the_next],
        ..SetPlan::default()
    };
    bed.api.0.lock().writing = Duration::from_secs(2);
    assert_eq!(bed.apply(plan).await, ApplyOutcome::Moved);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    let reasons: Vec<_> = events.iter().map(|event| &event["reason"]).collect();
    assert_eq!(reasons, ["TargetDeleted"]);
}

#[tokio::test(start_paused = true)]
async fn refused_event_is_written_again() {
    for (code, written) in [(500, true), (429, true), (403, false)] {
        let bed = Bed::new();
        bed.api
            .refuse(refusal("POST /api/v1/namespaces/n/events", code));
        bed.apply(creates(0..1)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        bed.api.refuse(None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let requests = bed.api.bodies("POST /api/v1/namespaces/n/events").len();
        assert_eq!(requests, if written { 2 } else { 1 }, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_refused_in_one_namespace_block_no_other() {
    let bed = Bed::new();
    let refused = "POST /api/v1/namespaces/full/events";
    bed.api.refuse(refusal(refused, 429));
    let about = |namespace: &str, name: &str| ObjectReference {
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..ObjectReference::default()
    };
    let events = &bed.context.events;
    for n in 0..20 {
        events.record_event(&about("full", &n.to_string()), false, "Told", "");
    }
    events.record_event(&about("n", "web"), false, "Told", "");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let other = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(other.len(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.api.bodies(refused).len(), 20 * 4, "dropped after that");
}

#[tokio::test]
async fn pod_is_not_created_on_pvc_of_uncached_pod() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    let mut plan = creates(0..2);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        json_patch::merge(body, &mounting("data"));
    }
    assert_eq!(
        bed.apply(plan).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let message = bed.condition("Ready")["message"].to_string();
    assert!(
        message.contains("Pod debug, which still mounts PVC data"),
        "{message}"
    );
    assert_eq!(
        bed.api.bodies(&format!("POST {PODS}")).len(),
        1,
        "the other is made"
    );
}

#[tokio::test]
async fn deleted_set_adopts_nothing() {
    let bed = Bed::new();
    let plan = || {
        let patch = PodPatch {
            pod: bed.pod("web-a"),
            ownership: OwnershipChange::Adopt,
            ..PodPatch::default()
        };
        SetPlan {
            pods: vec![PodChange::Patch(patch)],
            ..SetPlan::default()
        }
    };
    selecting(&bed, json!({}));
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::All(None));
    selecting(&bed, json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::Moved);
    selecting(&bed, json!({ "uid": "another" }));
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::Moved);
}

#[tokio::test]
async fn set_without_pool_waits_for_cached_orphans() {
    let bed = Bed::new();
    selecting(&bed, json!({}));
    bed.learn::<CollaSetObject>(SET);
    put_pod(
        &bed,
        "web-a",
        json!({ "metadata": { "labels": { (keys::CONTROL): "true" } } }),
    );
    let mut plan = creates(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    assert_eq!(bed.apply(plan.clone()).await, ApplyOutcome::Moved);
    assert_eq!(bed.memory.required_pod_version(), bed.api.0.lock().version);
    assert_eq!(bed.api.requests(), [format!("GET {PODS}")]);
    bed.api.0.lock().objects.remove(&format!("{PODS}/web-a"));
    assert_eq!(
        bed.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
}

#[tokio::test]
async fn missing_control_label_is_restored_instead_of_second_pod() {
    let bed = Bed::new();
    let mut lost = pod_of(0, "set");
    lost["metadata"]["name"] = json!("web-a");
    lost["metadata"]["labels"][keys::CONTROL] = json!("taken");
    put_pod(&bed, "web-a", lost);
    let mut plan = creates(0..2);
    for change in &mut plan.pods {
        if let PodChange::Create { body, .. } = change {
            body["metadata"]["labels"][keys::COMPLETING] = json!("1");
        }
    }
    assert_eq!(bed.apply(plan).await, ApplyOutcome::All(None));
    let patch = &bed.api.bodies(&format!("PATCH {PODS}/web-a"))[0]["metadata"];
    assert_eq!(patch["labels"], json!({ (keys::CONTROL): "true" }));
    assert_eq!(bed.api.bodies(&format!("POST {PODS}")).len(), 1);
}

/// The time until the next run at the latest.
fn pause_after(done: ApplyOutcome) -> Duration {
    match done {
        ApplyOutcome::All(Some(pause)) => pause,
        _ => BACKOFF_RANGE.1,
    }
}

/// Applies a plan several times, each time when the outcome asks for it.
async fn apply_often(bed: &Bed, times: usize, plan: impl Fn() -> SetPlan) {
    for _ in 0..times {
        let done = bed.apply(plan()).await;
        tokio::time::advance(pause_after(done)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn backed_off_write_causes_no_reconcile_loop() {
    let claim = || creates_claim(0);
    let pool = || SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    for (of, plan) in [
        (
            "POST /api/v1/namespaces/n/persistentvolumeclaims",
            claim as fn() -> SetPlan,
        ),
        (
            "POST /apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts",
            pool,
        ),
    ] {
        let bed = Bed::new();
        bed.api.refuse(refusal(of, 403));
        apply_often(&bed, 20, plan).await;
        assert_eq!(
            pause_after(bed.apply(plan()).await),
            BACKOFF_RANGE.1,
            "{of}"
        );
        let sent = bed.api.requests();
        let sent = sent.iter().filter(|request| request.starts_with(of));
        assert_eq!(sent.count(), 21, "each look tries it: {of}");
    }
}

#[tokio::test(start_paused = true)]
async fn rollout_position_counts_once_stored() {
    let bed = Bed::new();
    let plan = |step: i32| SetPlan {
        status: Some(
            serde_json::from_value(json!({ "rollout": { "revision": "r", "step": step } }))
                .unwrap(),
        ),
        ..SetPlan::default()
    };
    let status = "PATCH /apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web/status";
    bed.api.refuse(refusal(status, 403));
    apply_often(&bed, 30, || plan(1)).await;
    let pause = pause_after(bed.apply(plan(1)).await);
    assert!(pause > Duration::from_secs(1), "{pause:?}");
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events[0]["reason"], "StatusNotWritten");
    bed.api.refuse(None);
    tokio::time::advance(pause).await;
    assert_eq!(
        bed.apply(plan(1)).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let body = bed.api.bodies(status).pop().unwrap();
    let version = &body["metadata"]["resourceVersion"];
    assert!(version.is_string(), "one that arrives late is of no use");
}

#[tokio::test(start_paused = true)]
async fn pvc_changed_by_webhook_is_not_recreated() {
    for taken in [
        keys::INSTANCE_ID,
        keys::PVC_TEMPLATE_NAME,
        keys::CONTROL,
        "owner",
    ] {
        let bed = Bed::new();
        bed.api.0.lock().mutation = match taken {
            keys::INSTANCE_ID => Some(|claim| {
                let labels = claim["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::INSTANCE_ID));
            }),
            keys::CONTROL => Some(|claim| {
                let labels = claim["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::CONTROL));
            }),
            "owner" => Some(|claim| {
                let metadata = claim["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("ownerReferences"));
            }),
            _ => Some(|claim| claim["metadata"]["labels"][keys::PVC_TEMPLATE_NAME] = json!("x")),
        };
        let index = &bed.context.index;
        index.replace_pods(Vec::new(), 1);
        index.mark_all_listed();
        for _ in 0..20 {
            let set = bed.observed().set;
            let observed = observe_collaset(&bed.context, &set, &bed.memory).await;
            assert!(observed.is_ok());
            apply_often(&bed, 1, || creates_claim(0)).await;
        }
        assert_eq!(bed.stored("/persistentvolumeclaims/").len(), 1, "{taken}");
        let message = bed.condition("Scale")["message"].to_string();
        assert!(message.contains("it is not as it was written"), "{message}");
        // The webhook is fixed, and the PVC is deleted as the message says.
        bed.api.0.lock().mutation = None;
        let of_claims = |path: &str| path.contains("/persistentvolumeclaims/");
        bed.api.0.lock().objects.retain(|path, _| !of_claims(path));
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&bed, 1, || creates_claim(0)).await;
        let claims = bed.stored("/persistentvolumeclaims/");
        let [claim] = &claims[..] else {
            panic!("{taken}: {claims:?}")
        };
        let claim = &claim["metadata"];
        let wanted = &claim_of(0)["metadata"];
        assert_eq!(claim["labels"], wanted["labels"], "{taken}");
        assert_eq!(claim["ownerReferences"], wanted["ownerReferences"]);
    }
}

#[tokio::test(start_paused = true)]
async fn name_of_other_instance_is_kept_after_refusal() {
    let bed = Bed::new();
    type Creation = (&'static str, fn() -> SetPlan, fn() -> Value);
    let plans: [Creation; 2] = [
        ("pods", || creates(0..1), || pod_of(1, "set")),
        (
            "persistentvolumeclaims",
            || creates_claim(0),
            || claim_of(1),
        ),
    ];
    for (plural, plan, of_another) in plans {
        let all = format!("/api/v1/namespaces/n/{plural}");
        bed.api.refuse(refusal("POST /api/v1/namespaces/n/", 403));
        apply_often(&bed, 1, plan).await;
        bed.api.refuse(None);
        let post = format!("POST {all}");
        let name = bed.api.bodies(&post).pop().unwrap()["metadata"]["name"].clone();
        let name = name.as_str().unwrap();
        bed.api.put(&format!("{all}/{name}"), of_another());
        apply_often(&bed, 3, plan).await;
        let last = bed.api.bodies(&post).pop().unwrap();
        assert_ne!(last["metadata"]["name"], name, "{plural}");
    }
}

#[tokio::test(start_paused = true)]
async fn revision_changed_by_webhook_is_not_recreated() {
    let takes: [fn(&mut Value); 2] = [
        |revision| {
            let metadata = revision["metadata"].as_object_mut();
            metadata.map(|metadata| metadata.remove("ownerReferences"));
        },
        |revision| {
            let metadata = revision["metadata"].as_object_mut();
            metadata.map(|metadata| metadata.remove("labels"));
        },
    ];
    for take in takes {
        let bed = Bed::new();
        bed.api.0.lock().mutation = Some(take);
        let plan = || SetPlan {
            revisions: vec![RevisionChange::Create(Arc::new(Revision {
                name: "web-1".into(),
                data: json!({ "spec": 1 }),
                labels: [("app".to_owned(), "web".to_owned())].into(),
                ..Revision::default()
            }))],
            ..SetPlan::default()
        };
        apply_often(&bed, 20, plan).await;
        let set = bed.api.0.lock().objects[SET].clone();
        assert_eq!(set["status"]["collisionCount"], Value::Null);
        let told = facts_of(&bed, &Pod::default()).revision.unwrap();
        assert!(told.contains("it is not as it was written"), "{told}");
        bed.api.0.lock().mutation = None;
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&bed, 1, plan).await;
        let path = "/apis/apps/v1/namespaces/n/controllerrevisions/web-1";
        let revision = &bed.api.0.lock().objects[path]["metadata"];
        assert_eq!(revision["labels"], json!({ "app": "web" }));
        assert_eq!(revision["ownerReferences"][0]["uid"], "set");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_change_reverted_by_webhook_is_reported_and_backs_off() {
    type Change = (fn(&mut Value), fn(&mut PodPatch));
    let changes: [Change; 3] = [
        (
            |pod| {
                let metadata = pod["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("ownerReferences"));
            },
            |change| change.ownership = OwnershipChange::Adopt,
        ),
        (
            |pod| {
                pod["metadata"]["ownerReferences"] =
                    pod_of(0, "set")["metadata"]["ownerReferences"].clone()
            },
            |change| change.ownership = OwnershipChange::Release,
        ),
        (
            |pod| {
                let labels = pod["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::TO_DELETE));
            },
            |change| {
                let told = Some("1".to_owned());
                change.labels.0.insert(keys::TO_DELETE.into(), told);
            },
        ),
    ];
    for (take, change) in changes {
        let bed = Bed::new();
        let pod = bed.pod("web-a");
        bed.api.0.lock().mutation = Some(take);
        let plan = || {
            let mut patch = PodPatch {
                pod: Arc::clone(&pod),
                ..PodPatch::default()
            };
            change(&mut patch);
            SetPlan {
                pods: vec![PodChange::Patch(patch)],
                ..SetPlan::default()
            }
        };
        apply_often(&bed, 20, plan).await;
        assert_eq!(pause_after(bed.apply(plan()).await), BACKOFF_RANGE.1);
        let message = bed.condition("Ready")["message"].to_string();
        assert!(message.contains("it is not as it was written"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn edit_seen_in_status_response_is_reconciled() {
    let edits: [fn(&mut Value); 3] = [
        |set| set["metadata"]["generation"] = json!(9),
        |set| set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        |set| set["metadata"]["annotations"] = json!({ (keys::ROLLOUT): "promote" }),
    ];
    let plan = || SetPlan {
        status: Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap()),
        ..SetPlan::default()
    };
    let bed = Bed::new();
    assert_eq!(bed.apply(plan()).await, ApplyOutcome::All(None));
    for edit in edits {
        let bed = Bed::new();
        bed.api.0.lock().mutation = Some(edit);
        assert_eq!(
            bed.apply(plan()).await,
            ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unmanaged_pvc_of_given_name_is_reported_with_remedy() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/web-data-a";
    bed.api.put(
        path,
        json!({ "metadata": { "namespace": "n", "name": "web-data-a" } }),
    );
    let plan = || {
        let mut plan = creates_claim(0);
        if let PvcChange::Create { body, .. } = &mut plan.pvcs[0] {
            body["metadata"]["name"] = json!("web-data-a");
        }
        plan
    };
    apply_often(&bed, 20, plan).await;
    let message = bed.condition("Scale")["message"].to_string();
    let remedy = "`kubectl label pvc web-data-a -n n kusionstack.io/control=true collaset.kusionstack.io/instance-id=0 \
                  collaset.kusionstack.io/pvc-template-name=data --overwrite`";
    assert!(message.contains(remedy), "{message}");
    assert!(!message.contains("  "), "{message}");
    assert_eq!(pause_after(bed.apply(plan()).await), BACKOFF_RANGE.1);
}

#[tokio::test(start_paused = true)]
async fn pod_stripped_of_labels_by_webhook_is_not_recreated() {
    let takes: [fn(&mut Value); 3] = [
        |pod| {
            let labels = pod["metadata"]["labels"].as_object_mut();
            labels.map(|labels| labels.remove(keys::CONTROL));
        },
        |pod| {
            let metadata = pod["metadata"].as_object_mut();
            metadata.map(|metadata| metadata.remove("labels"));
        },
        |pod| pod["metadata"]["ownerReferences"] = json!([]),
    ];
    for take in takes {
        let bed = Bed::new();
        bed.api.0.lock().mutation = Some(take);
        let template = json!({ "spec": { "selector": { "matchLabels": { "app": "web" } } } });
        let mut set = bed.api.0.lock().objects[SET].clone();
        json_patch::merge(&mut set, &template);
        bed.api.put(SET, set);
        bed.learn::<CollaSetObject>(SET);
        let plan = || {
            let mut plan = creates(0..1);
            if let PodChange::Create { body, .. } = &mut plan.pods[0] {
                body["metadata"]["labels"]["app"] = json!("web");
            }
            plan
        };
        apply_often(&bed, 20, plan).await;
        assert_eq!(bed.stored("/pods/").len(), 1);
        let message = bed.condition("Scale")["message"].to_string();
        let told = "it is not as it was written";
        assert!(message.contains(told), "{message}");
        // The webhook is fixed, and the Pod is deleted as the message says.
        bed.api.0.lock().mutation = None;
        bed.api
            .0
            .lock()
            .objects
            .retain(|path, _| !path.contains("/pods/"));
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&bed, 1, plan).await;
        let pods = bed.stored("/pods/");
        let [pod] = &pods[..] else { panic!("{pods:?}") };
        let mut labels = pod_of(0, "set")["metadata"]["labels"].clone();
        labels["app"] = json!("web");
        assert_eq!(pod["metadata"]["labels"], labels);
    }
}

#[tokio::test(start_paused = true)]
async fn altered_pod_of_other_instance_is_left_alone() {
    let bed = Bed::new();
    bed.api.0.lock().mutation = Some(|pod| {
        let labels = pod["metadata"]["labels"].as_object_mut();
        labels.map(|labels| labels.remove(keys::INSTANCE_ID));
    });
    apply_often(&bed, 1, || creates(0..1)).await;
    bed.api.0.lock().mutation = None;
    let mut pod = bed.stored("/pods/").remove(0);
    pod["metadata"]["labels"][keys::INSTANCE_ID] = json!("1");
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    bed.api.put(&format!("{PODS}/{name}"), pod);
    apply_often(&bed, 2, || creates(0..1)).await;
    assert_eq!(bed.stored("/pods/").len(), 2, "another has another name");
}

#[tokio::test(start_paused = true)]
async fn finalizer_removed_by_webhook_is_not_added_repeatedly() {
    let bed = Bed::new();
    bed.api.0.lock().mutation = Some(|set| {
        let metadata = set["metadata"].as_object_mut();
        metadata.map(|metadata| metadata.remove("finalizers"));
    });
    let plan = SetPlan {
        add_finalizer: true,
        ..SetPlan::default()
    };
    assert_eq!(bed.apply(plan).await, ApplyOutcome::Failed);
    let message = bed.condition("Ready")["message"].to_string();
    let told = "the finalizer of CollaSet web: it is not as it was written";
    assert!(message.contains(told), "{message}");
}

#[tokio::test(start_paused = true)]
async fn pvc_with_reverted_change_is_not_written_repeatedly() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    bed.api.put(path, json!({ "metadata": { "namespace": "n", "name": "data", "labels": { (keys::CONTROL): "true" } } }));
    bed.api.0.lock().mutation = Some(|claim| {
        let labels = claim["metadata"]["labels"].as_object_mut();
        labels.map(|labels| labels.remove("x"));
    });
    let plan = || {
        let mut labels = LabelPatch::default();
        labels.0.insert("x".into(), Some("1".into()));
        let claim = Pvc {
            resource_version: bed.api.0.lock().version.to_string(),
            ..(*claim()).clone()
        };
        SetPlan {
            pvcs: vec![PvcChange::Patch {
                pvc: claim.into(),
                labels,
                ownership: OwnershipChange::Keep,
            }],
            ..SetPlan::default()
        }
    };
    apply_often(&bed, 20, plan).await;
    assert_eq!(pause_after(bed.apply(plan()).await), BACKOFF_RANGE.1);
}

#[tokio::test(start_paused = true)]
async fn deleted_set_releases_spared_pvc() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    bed.api.put(
        "/api/v1/namespaces/n/persistentvolumeclaims/data",
        json!({ "metadata": {
            "namespace": "n", "name": "data", "uid": "claim", "labels": { (keys::CONTROL): "true" },
            "ownerReferences": [{ "uid": "set", "controller": true }],
        } }),
    );
    let plan = || SetPlan {
        pvcs: vec![PvcChange::Delete(Arc::new(Pvc {
            resource_version: "3".into(),
            ..(*claim()).clone()
        }))],
        ..SetPlan::default()
    };
    bed.apply(plan()).await;
    let mut set = bed.api.0.lock().objects[SET].clone();
    set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    bed.api.put(SET, set);
    bed.learn::<CollaSetObject>(SET);
    bed.apply(plan()).await;
    let patch = "PATCH /api/v1/namespaces/n/persistentvolumeclaims/data";
    assert_eq!(bed.api.bodies(patch).len(), 1, "{:?}", bed.api.requests());
}

#[tokio::test(start_paused = true)]
async fn control_label_of_given_name_pod_is_restored_or_awaited() {
    for terminates in [false, true] {
        let bed = Bed::new();
        let mut there = pod_of(0, "set");
        there["metadata"]["name"] = json!("web-000");
        there["metadata"]["labels"][keys::CONTROL] = json!("taken");
        there["status"]["phase"] = json!("Failed");
        if terminates {
            there["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        bed.api.put(&format!("{PODS}/web-000"), there);
        let plan = || SetPlan {
            pods: vec![named_create(0)],
            ..SetPlan::default()
        };
        let done = bed.apply(plan()).await;
        let patches = bed.api.bodies(&format!("PATCH {PODS}/web-000"));
        assert_eq!(patches.len(), usize::from(!terminates));
        if terminates {
            assert!(
                matches!(done, ApplyOutcome::All(Some(_))),
                "nothing tells of its end"
            );
            let told = bed.condition("Scale")["message"].to_string();
            assert!(told.contains("waiting for Pod web-000 to end"), "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_are_not_listed_during_pool_backoff() {
    let bed = Bed::new();
    selecting(&bed, json!({}));
    bed.learn::<CollaSetObject>(SET);
    bed.api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 403));
    let plan = || SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    apply_often(&bed, 10, plan).await;
    let before = bed.api.requests().len();
    for _ in 0..10 {
        bed.apply(plan()).await;
    }
    let again = bed.api.requests().len() - before;
    assert!(again <= 2, "{again} requests");
}

fn named_create(id: i64) -> PodChange {
    let mut body = pod_of(id, "set");
    body["metadata"] =
        json!({ "name": format!("web-{id:03}"), "labels": body["metadata"]["labels"] });
    PodChange::Create { id, body }
}

/// How many Pods of these instance IDs exist.
fn made(bed: &Bed, ids: std::ops::Range<i64>) -> usize {
    let objects = &bed.api.0.lock().objects;
    ids.filter(|id| objects.contains_key(&format!("{PODS}/web-{id:03}")))
        .count()
}

#[tokio::test(start_paused = true)]
async fn taken_names_block_no_other_pod() {
    for (taken, rounds) in [(3, 5), (10, 10), (120, 100)] {
        let bed = Bed::new();
        for id in 0..taken {
            bed.pod(&format!("web-{id:03}"));
        }
        let wanted = taken + 5;
        apply_often(&bed, rounds, || {
            let missing = (0..wanted).filter(|id| *id < taken || made(&bed, *id..*id + 1) == 0);
            SetPlan {
                pods: missing.map(named_create).collect(),
                ..SetPlan::default()
            }
        })
        .await;
        assert_eq!(made(&bed, taken..wanted), 5, "{taken}");
        let message = bed.condition("Scale")["message"].to_string();
        assert!(message.contains("Pod web-000 is there"), "{message}");
        let told = bed.api.bodies(&format!("PATCH {SET}/status")).len();
        assert_eq!(told, 1, "the same words as long as it lasts");
    }
}

#[tokio::test(start_paused = true)]
async fn many_refused_changes_block_no_other_pod() {
    let bed = Bed::new();
    let pods = |prefix: &str, n| -> Vec<Arc<Pod>> {
        (0..n)
            .map(|n| bed.pod(&format!("{prefix}-{n:02}")))
            .collect()
    };
    let (refused, free) = (pods("a", 45), pods("b", 15));
    bed.api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/a", 403));
    let change = |pod: &Arc<Pod>| {
        let mut patch = PodPatch {
            pod: Arc::clone(pod),
            ..PodPatch::default()
        };
        patch.labels.0.insert("x".into(), Some("1".into()));
        PodChange::Patch(patch)
    };
    let plan = || SetPlan {
        pods: refused.iter().chain(&free).map(change).collect(),
        ..SetPlan::default()
    };
    apply_often(&bed, 4, plan).await;
    let requests = bed.api.requests();
    for pod in &free {
        let patch = format!("PATCH {PODS}/{}", pod.metadata.name);
        assert!(requests.contains(&patch), "{patch}");
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_quota_is_tried_by_few_in_turn() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let post = format!("POST {PODS}");
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < Duration::from_secs(300) {
        let done = bed.apply(creates(0..40)).await;
        let now = bed.api.bodies(&post).len();
        assert!(now - asked <= 3, "{}", now - asked);
        asked = now;
        tokio::time::advance(pause_after(done)).await;
    }
    assert!((60..160).contains(&asked), "{asked} in 300 s");
    let bodies = bed.api.bodies(&post).into_iter();
    let ids = bodies.map(|body| body["metadata"]["labels"][keys::INSTANCE_ID].to_string());
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), 40);
}

#[tokio::test(start_paused = true)]
async fn failed_command_removal_is_reported_and_backs_off() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("PATCH /apis/apps.kusionstack.io", 403));
    let plan = || SetPlan {
        clear_command: true,
        ..SetPlan::default()
    };
    let patch = format!("PATCH {SET}");
    assert_eq!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    bed.apply(plan()).await;
    assert_eq!(bed.api.bodies(&patch).len(), 1, "not again so soon");
    tokio::time::sleep(BACKOFF_RANGE.1).await;
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events[0]["reason"], "RolloutCommandNotRemoved");
    let message = events[0]["message"].to_string();
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(
        bed.condition("Update"),
        Value::Null,
        "the set is none the worse"
    );
    bed.api.refuse(None);
    assert_eq!(
        bed.apply(plan()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(bed.api.bodies(&patch).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn different_failure_within_minute_gets_own_event() {
    let bed = Bed::new();
    for message in ["exceeded quota", "denied by a policy"] {
        let refused = refusal("POST /api/v1/namespaces/n/pods", 403);
        bed.api.refuse(refused.map(|r| Refusal { message, ..r }));
        bed.apply(creates(0..1)).await;
        tokio::time::sleep(BACKOFF_RANGE.0 * 4).await;
    }
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    let told: Vec<_> = events
        .iter()
        .filter_map(|e| e["message"].as_str())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].ends_with("denied by a policy"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn patch_events_are_sent_after_write() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    let plan = |id: i64| {
        let told = SetEvent {
            warning: false,
            reason: "IncludeTarget",
            message: format!("under instance ID {id}"),
        };
        let mut patch = PodPatch {
            pod: pod.clone(),
            success_event: Some(Box::new(told)),
            ..PodPatch::default()
        };
        patch.labels.0.insert("a".into(), Some(id.to_string()));
        SetPlan {
            pods: vec![PodChange::Patch(patch)],
            ..SetPlan::default()
        }
    };
    let told = |bed: &Bed| {
        let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
        let included = events
            .into_iter()
            .filter(|e| e["reason"] == "IncludeTarget");
        included.map(|e| e["message"].clone()).collect::<Vec<_>>()
    };
    bed.api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-a", 403));
    bed.apply(plan(1)).await;
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    assert_eq!(told(&bed), [Value::Null; 0]);
    bed.api.refuse(None);
    bed.apply(plan(2)).await;
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    assert_eq!(told(&bed), ["under instance ID 2"]);
}

/// Nothing is read for a refused write before the write is tried again.
#[tokio::test(start_paused = true)]
async fn refused_creation_does_not_block_updates_with_slow_reads() {
    let bed = Bed::new();
    bed.api.0.lock().reading = Duration::from_secs(6);
    bed.api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let pod = bed.pod("web-a");
    let plan = || {
        let mut patch = PodPatch {
            pod: pod.clone(),
            ..PodPatch::default()
        };
        let operating = Family::Operating.key("collaset");
        patch.labels.0.insert(operating, Some("1".into()));
        let mut body = pod_of(3, "set");
        let claim = json!({ "persistentVolumeClaim": { "claimName": "c" } });
        body["spec"] = json!({ "volumes": [claim] });
        let create = PodChange::Create { id: 3, body };
        SetPlan {
            pods: vec![PodChange::Patch(patch), create],
            ..SetPlan::default()
        }
    };
    for _ in 0..20 {
        let done = bed.apply(plan()).await;
        tokio::time::advance(pause_after(done)).await;
    }
    let requests = bed.api.requests();
    let count = |what: &str| requests.iter().filter(|r| r.starts_with(what)).count();
    assert!(
        count("PATCH /api/v1/namespaces/n/pods/web-a") > 0,
        "{requests:?}"
    );
    let (lists, creations) = (count("GET /api/v1/namespaces/n/pods"), count("POST"));
    assert!(
        lists <= creations,
        "{lists} lists for {creations} creations"
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_only_update_begins_with_next_plan() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    for begin in [update(&pod)[0].clone(), recreation(&pod)[0].clone()] {
        let only_tried = begin.pods.iter().map(|change| match change {
            PodChange::Patch(patch) => PodChange::Patch(PodPatch {
                dry_run_only: true,
                ..patch.clone()
            }),
            other => other.clone(),
        });
        let only_tried = SetPlan {
            pods: only_tried.collect(),
            ..SetPlan::default()
        };
        let begins = || begun_and_tried(&bed, "web-0").0;
        let (before, requests) = (begins(), bed.api.requests().len());
        bed.apply(only_tried).await;
        assert_eq!(begins(), before);
        assert_eq!(bed.api.requests().len(), requests + 1, "a dry run");
        bed.apply(begin).await;
        assert_eq!(
            (begins(), bed.api.requests().len()),
            (before + 1, requests + 2)
        );
    }
}

/// API Priority and Fairness answers 429 if there are too many requests.
#[tokio::test]
async fn creations_answered_429_stop_early_and_are_told() {
    let bed = Bed::new();
    let pods = "POST /api/v1/namespaces/n/pods";
    bed.api.refuse(refusal(pods, 429));
    let done = bed.apply(creates(0..200)).await;
    assert!(matches!(done, ApplyOutcome::All(_)), "{done:?}");
    assert!(bed.api.bodies(pods).len() <= 16);
    let scale = bed.condition("Scale");
    assert_eq!(scale["status"], "False");
    assert!(
        scale["message"].to_string().contains("exceeded quota"),
        "{scale}"
    );
}
