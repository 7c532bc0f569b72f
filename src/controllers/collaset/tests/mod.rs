#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};
use tokio::time::Instant;

use super::CollaSets;
use super::apply::{Done, Work, apply};
use super::memory::{HELD, Memory, SPACING};
use super::observe::observe;
use super::refusals::{Key, PAUSES};
use crate::api::keys::{self, Family};
use crate::api::resourcecontext::ContextDetail;
use crate::cluster::queue::Outcome;
use crate::cluster::tenure::Tenure;
use crate::cluster::workloads::{ClaimObject, KINDS, PoolObject, SetObject, Wire};
use crate::controllers::Context;
use crate::domain::collaset::Operation;
use crate::domain::collaset::observed::{Claim, Observed, Revision};
use crate::domain::collaset::plan::{
    Ahead, ClaimChange, Event, Ownership, Plan, PodChange, PodPatch, RevisionChange,
};
use crate::domain::collaset::refused::Refused;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

const SET: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web";
const POOL: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts/web";
const PODS: &str = "/api/v1/namespaces/n/pods";

/// A CollaSet, an API server that holds it, and what the controller knows.
struct Bed {
    api: FakeApi,
    context: Arc<Context>,
    memory: Memory,
}

impl Bed {
    fn new() -> Bed {
        let api = FakeApi::default();
        let context = Context::at_epoch(api.client());
        api.put(
            SET,
            json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" } }),
        );
        context.index.following.trust();
        let bed = Bed {
            api,
            context,
            memory: Memory::new("set"),
        };
        bed.learn::<SetObject>(SET);
        bed
    }

    /// Puts an object of the API server into its cache, as the watch does.
    fn learn<W: Wire>(&self, path: &str) {
        let object = self.api.0.lock().objects[path].to_string();
        let object: W = serde_json::from_str(&object).unwrap();
        W::store(&self.context.index.objects).apply(object.key(), object.keep());
    }

    fn observed(&self) -> Observed {
        let objects = &self.context.index.objects;
        Observed {
            set: objects.sets.get("n", "web").unwrap(),
            revisions: Vec::new(),
            pods: Vec::new(),
            strangers: Vec::new(),
            unmanaged: Default::default(),
            orphans: Vec::new(),
            mounts: Default::default(),
            claims: Vec::new(),
            pool: objects.pools.get("n", "web"),
            pool_bytes: usize::MAX,
            refused: Refused::default(),
            ended_until: Default::default(),
            held: Default::default(),
            now_nanos: 0,
        }
    }

    async fn apply(&self, plan: Plan) -> Done {
        let observed = self.observed();
        apply(&Work::new(&self.context, &observed, &self.memory), plan).await
    }

    /// A Pod that the API server holds.
    fn pod(&self, name: &str) -> Arc<Pod> {
        let path = format!("{PODS}/{name}");
        self.api.put(
            &path,
            json!({ "metadata": { "namespace": "n", "name": name } }),
        );
        let object = self.api.0.lock().objects[&path].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// The objects of the API server whose path has this part.
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

/// A plan that creates the claim of an instance ID.
fn creates_claim(id: i64) -> Plan {
    Plan {
        claims: vec![ClaimChange::Create {
            id,
            template: "data".into(),
            body: claim_of(id),
        }],
        ..Plan::default()
    }
}

fn creates(ids: std::ops::Range<i64>) -> Plan {
    let create = |id| PodChange::Create {
        id,
        body: pod_of(id, "set"),
    };
    Plan {
        pods: ids.map(create).collect(),
        ..Plan::default()
    }
}

/// A deletion that is told of by an Event.
fn deletion(pod: Arc<Pod>) -> PodChange {
    let told = Event {
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
    plan.claims = vec![ClaimChange::Create {
        id: 0,
        template: "data".into(),
        body: claim_of(0),
    }];
    plan.pods.push(PodChange::Patch(patch));
    plan.pods.push(deletion(deleted));
    plan.status = Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap());

    assert_eq!(bed.apply(plan).await, Done::All(Some(SPACING)));
    let mut requests = bed.api.requests();
    requests[5..8].sort(); // at once: the resize and the deletion, then the patch
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
    let objects = &bed.context.index.objects;
    assert_eq!(objects.revisions.controlled_by("n", "set").len(), 1);
    assert_eq!(objects.claims.names_where("n", |_| true).len(), 1);
    // What the Pod cache has to reach is the last write of a Pod.
    assert_eq!(bed.memory.position(), bed.api.0.lock().version - 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_is_not_done_twice() {
    let bed = Bed::new();
    let post = "POST /api/v1/namespaces/n/pods";
    let lost = refusal(post, 504).map(|r| Refusal { done: true, ..r });
    bed.api.refuse(lost);
    let failed = Done::All(Some(PAUSES.0));
    assert_eq!(bed.apply(creates(0..1)).await, failed);
    tokio::time::sleep(PAUSES.0).await;
    bed.api.refuse(None);
    assert_eq!(bed.apply(creates(0..1)).await, Done::All(None));
    let names: Vec<_> = bed.api.bodies(post);
    assert_eq!(names.len(), 2);
    assert_eq!(names[0]["metadata"]["name"], names[1]["metadata"]["name"]);
    assert_eq!(names[0]["metadata"]["generateName"], "web-");
    // The next Pod of this ID is another.
    assert_eq!(bed.apply(creates(0..1)).await, Done::All(None));
    assert_ne!(
        bed.api.bodies(post)[2]["metadata"]["name"],
        names[0]["metadata"]["name"]
    );
}

#[tokio::test]
async fn a_name_that_another_has_is_left_to_it() {
    let bed = Bed::new();
    let name = bed.memory.choose(&super::names::Slot::Pod(0), "web-");
    bed.api.put(&format!("{PODS}/{name}"), pod_of(0, "other"));
    assert_eq!(bed.apply(creates(0..1)).await, Done::Moved);
    assert_eq!(bed.apply(creates(0..1)).await, Done::All(None));
    assert_eq!(bed.condition("Scale"), Value::Null);

    let mut plan = creates(0..1);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        body["metadata"] = json!({ "name": name });
    }
    assert_eq!(bed.apply(plan).await, Done::All(Some(PAUSES.0)));
    let message = bed.condition("Scale")["message"].to_string();
    assert!(
        message.contains("does not belong to this CollaSet"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_told_once_and_not_asked_for_by_all() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let first = Done::All(Some(PAUSES.0));
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
    let second = Done::All(Some(PAUSES.0 * 2));
    assert_eq!(bed.apply(creates(0..40)).await, second);
    assert_eq!(bed.api.bodies(&status).len(), 1, "the same failure again");
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reason"], "ScaleOutFailed");
    assert_eq!(events[0]["involvedObject"]["name"], "web");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_left_alone_and_holds_up_nothing_else() {
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
    assert_eq!(bed.apply(plan()).await, Done::All(Some(PAUSES.0)));
    let requests = bed.api.requests();
    assert!(requests.contains(&format!("DELETE {PODS}/web-b")));
    assert!(requests.contains(&format!("POST {PODS}")));
    assert!(matches!(bed.apply(plan()).await, Done::All(Some(_))));
    let asked = |bed: &Bed| bed.api.bodies(&refused).len();
    assert_eq!(asked(&bed), 1, "not again so soon");
    tokio::time::sleep(PAUSES.0).await;
    bed.apply(plan()).await;
    assert_eq!(asked(&bed), 2);
}

/// What is told of a plan with this change of Pod web-a, of which this request is refused.
async fn told_of(request: &'static str, status: Value, change: fn(Arc<Pod>) -> PodChange) -> Bed {
    let bed = Bed::new();
    let path = format!("{PODS}/web-a");
    let pod = json!({ "metadata": { "namespace": "n", "name": "web-a" }, "status": status });
    bed.api.put(&path, pod);
    let object = bed.api.0.lock().objects[&path].clone();
    let pod = Arc::new(serde_json::from_value(object).unwrap());
    bed.api.refuse(refusal(request, 403));
    let plan = Plan {
        pods: vec![change(pod)],
        ..Plan::default()
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
async fn leftover_pod_that_can_not_be_deleted_is_no_failed_update() {
    let delete = "DELETE /api/v1/namespaces/n/pods/web-a";
    let failed = json!({ "phase": "Failed" });
    let bed = told_of(delete, failed, deletion).await;
    assert_eq!(bed.condition("Update"), Value::Null);
    for type_ in ["Scale", "Ready"] {
        assert_eq!(bed.condition(type_)["reason"], "ScaleInFailed");
    }
}

#[tokio::test]
async fn a_revision_that_is_refused_ends_the_plan_and_is_a_fact_of_the_next() {
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
    assert!(matches!(bed.apply(plan).await, Done::All(Some(_))));
    assert_eq!(
        bed.api.requests(),
        ["POST /apis/apps/v1/namespaces/n/controllerrevisions"]
    );
    let none = || std::iter::empty();
    let facts = bed
        .memory
        .facts(std::iter::empty(), none(), Instant::now(), 0);
    let why = facts.revision.unwrap();
    assert!(why.contains("exceeded quota"), "{why}");
}

/// When to look again after a plan that goes without its revision, whose pause ends so long after the plan was made.
async fn again_without_revision(left: Duration) -> Option<Duration> {
    let bed = Bed::new();
    let pause = bed
        .memory
        .refuse(Key::Revision, "no more of them", Instant::now(), 0);
    let mut observed = bed.observed();
    observed.refused.revision = Some("no more of them".to_owned());
    tokio::time::advance(pause - left).await;
    let work = Work::new(&bed.context, &observed, &bed.memory);
    tokio::time::advance(left).await;
    match apply(&work, Plan::default()).await {
        Done::All(again) => again,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn revision_is_tried_again_although_its_pause_ends_while_a_plan_without_it_is_carried_out() {
    let again = again_without_revision(Duration::from_millis(1)).await;
    assert_eq!(again, Some(SPACING));
}

/// A refusal of a resize, as the API server gives it for a reason of the Pod or of its node, or of the amount.
fn refused_resize(code: u16, message: &'static str) -> Option<Refusal> {
    Some(Refusal {
        of: "PATCH /api/v1/namespaces/n/pods/web-a/resize",
        code,
        message,
        done: false,
    })
}

#[tokio::test]
async fn a_resize_that_is_refused_is_a_fact_of_the_next_plan() {
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
            leads_to: Some("web-2".into()),
            ..PodPatch::default()
        };
        patch
            .labels
            .0
            .insert(keys::REVISION.into(), Some("web-2".into()));
        let plan = Plan {
            pods: vec![PodChange::Patch(patch)],
            ..Plan::default()
        };
        let done = bed.apply(plan).await;
        let path = format!("PATCH {PODS}/web-a");
        assert!(!bed.api.requests().contains(&path), "the rest goes with it");
        let none = || std::iter::empty();
        let facts = bed
            .memory
            .facts([&*pod].into_iter(), none(), Instant::now(), 0);
        let denied = [quota, policy, webhook].contains(&message);
        assert_eq!(facts.resize(&pod, "web-2").is_some(), !denied, "{code}");
        assert_eq!(facts.refuses_change(&pod, "web-2"), denied, "{code}");
        assert_eq!(done, Done::All(Some(SPACING)), "{code}");
        assert_eq!(facts.resize(&pod, "web-3"), None);
    }
}

/// A plan that begins the update of a Pod, and one that makes its change.
fn update(pod: &Arc<Pod>) -> [Plan; 2] {
    let mut begin = PodPatch {
        pod: Arc::clone(pod),
        ..PodPatch::default()
    };
    begin.labels.0.insert("x".into(), Some("1".into()));
    let mut ahead = Ahead {
        revision: "web-2".into(),
        ..Ahead::default()
    };
    ahead.labels.0.insert("y".into(), Some("1".into()));
    begin.ahead = Some(Arc::new(ahead));
    let mut change = PodPatch {
        ahead: None,
        leads_to: Some("web-2".into()),
        ..begin.clone()
    };
    change.labels.0.insert("y".into(), Some("1".into()));
    [begin, change].map(|patch| Plan {
        pods: vec![PodChange::Patch(patch)],
        ..Plan::default()
    })
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_refused_late_is_left_alone_although_others_are_changed() {
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
    // Its dry run passes each time and its change is refused, while the other's is not.
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
    bed.memory.forget_late_refusals();
    let tried = bed.api.bodies(&patch).len();
    tokio::time::advance(PAUSES.1).await;
    bed.apply(update(&pod("web-a"))[0].clone()).await;
    assert!(bed.api.bodies(&patch).len() > tried, "a command ends that");
}

/// A plan that begins an update which deletes the Pod, and one that deletes it.
fn recreation(pod: &Arc<Pod>) -> [Plan; 2] {
    let mut begin = PodPatch {
        pod: Arc::clone(pod),
        deletes: true,
        ..PodPatch::default()
    };
    begin.labels.0.insert("x".into(), Some("1".into()));
    let changes = [PodChange::Patch(begin), deletion(Arc::clone(pod))];
    changes.map(|change| Plan {
        pods: vec![change],
        ..Plan::default()
    })
}

fn facts_of(bed: &Bed, pod: &Pod) -> Refused {
    let none = || std::iter::empty();
    bed.memory
        .facts([pod].into_iter(), none(), Instant::now(), 0)
}

#[tokio::test(start_paused = true)]
async fn deletion_that_is_refused_is_tried_before_another_pod_goes_off_traffic() {
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
    tokio::time::advance(PAUSES.1).await;
    bed.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&bed), before, "it stays on traffic");
    assert_eq!(bed.api.bodies(&delete(&b)).len(), 1, "tried by a dry run");
    bed.api.refuse(None);
    tokio::time::advance(PAUSES.1).await;
    bed.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&bed), before + 1);
}

#[tokio::test(start_paused = true)]
async fn change_that_fails_several_times_in_a_row_is_taken_for_refused() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    bed.memory.accept_change("another", "web-2");
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
async fn pod_whose_dry_run_fails_several_times_takes_no_place_from_others() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    let change = "PATCH /api/v1/namespaces/n/pods/web-a";
    let resize = "PATCH /api/v1/namespaces/n/pods/web-a/resize";
    for (at, spec) in [(change, None), (resize, Some(json!({ "containers": [] })))] {
        let begin = || {
            let mut begin = update(&pod)[0].clone();
            if let [PodChange::Patch(patch)] = &mut begin.pods[..] {
                let ahead = Arc::make_mut(patch.ahead.as_mut().unwrap());
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

/// Begins the updates of all these Pods in one plan; how many have begun then.
async fn begun(bed: &Bed, pods: &[Arc<Pod>], plans: fn(&Arc<Pod>) -> [Plan; 2]) -> usize {
    let begin = Plan {
        pods: pods
            .iter()
            .flat_map(|pod| plans(pod)[0].pods.clone())
            .collect(),
        ..Plan::default()
    };
    bed.apply(begin).await;
    let begun = pods.iter().filter(|pod| {
        let path = format!("{PODS}/{}", pod.metadata.name);
        bed.api.0.lock().objects[&path]["metadata"]["labels"]["x"] == "1"
    });
    begun.count()
}

#[tokio::test(start_paused = true)]
async fn after_a_late_refusal_one_pod_at_a_time_goes_off_traffic() {
    let bed = Bed::new();
    let pods: Vec<_> = (0..5).map(|n| bed.pod(&format!("web-{n}"))).collect();
    bed.api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-0", 403));
    bed.apply(update(&pods[0])[1].clone()).await;
    bed.api.refuse(None);
    tokio::time::advance(PAUSES.1).await;
    assert_eq!(begun(&bed, &pods, update).await, 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_late_refusal_of_deletions_one_pod_at_a_time_goes_off_traffic() {
    let bed = Bed::new();
    let pods: Vec<_> = (0..5).map(|n| bed.pod(&format!("web-{n}"))).collect();
    bed.api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods", 403));
    for pod in &pods {
        let mut pod = Pod::clone(pod);
        let begun = Operation::Update.begin(&pod, true, 1);
        begun.apply(&mut pod.metadata.labels);
        bed.apply(recreation(&pod.into())[1].clone()).await;
    }
    bed.api.refuse(None);
    tokio::time::advance(PAUSES.1).await;
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
        tokio::time::advance(PAUSES.1).await;
    }
    assert_eq!(begun(&bed, &[other], recreation).await, 1);
}

/// A Pod whose change was refused, and another dry run of it that is answered by 429 with these words; whether its change counts as refused.
async fn refused_after_429(message: &'static str) -> bool {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    let patch = "PATCH /api/v1/namespaces/n/pods/web-0";
    bed.api.refuse(refusal(patch, 403));
    bed.apply(update(&pod)[0].clone()).await;
    assert!(facts_of(&bed, &pod).refuses_change(&pod, "web-2"));
    let answer = refusal(patch, 429).map(|refusal| Refusal { message, ..refusal });
    bed.api.refuse(answer);
    tokio::time::advance(PAUSES.1).await;
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
async fn dry_run_that_an_overloaded_api_server_turns_away_tells_nothing() {
    assert!(refused_after_429("Too many requests, please try again later.").await);
}

#[tokio::test(start_paused = true)]
async fn pod_whose_update_can_not_begin_although_its_dry_run_passes_keeps_no_place() {
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
    tokio::time::advance(PAUSES.1).await;
    bed.apply(begin).await;
    assert!(facts_of(&bed, &pod).pods.is_empty());
}

#[tokio::test]
async fn a_pool_that_is_refused_keeps_back_what_depends_on_it() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 500));
    let mut plan = creates(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    plan.remove_finalizer = true;
    assert_eq!(bed.apply(plan).await, Done::Failed);
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
async fn the_pool_is_written_on_condition_of_what_the_plan_saw() {
    let bed = Bed::new();
    bed.api.put(
        POOL,
        json!({ "metadata": { "namespace": "n", "name": "web" } }),
    );
    bed.learn::<PoolObject>(POOL);
    let observed = bed.observed();
    // Another set that shares it has written meanwhile.
    let other = bed.api.0.lock().objects[POOL].clone();
    bed.api.put(POOL, other);
    bed.learn::<PoolObject>(POOL);
    let plan = Plan {
        pool: Some(vec![ContextDetail::default()]),
        ..Plan::default()
    };
    let work = Work::new(&bed.context, &observed, &bed.memory);
    assert_eq!(apply(&work, plan.clone()).await, Done::Moved);
    assert_eq!(bed.apply(plan).await, Done::All(Some(SPACING)));
    let emptied = Plan {
        pool: Some(Vec::new()),
        ..Plan::default()
    };
    bed.apply(emptied).await;
    assert!(bed.observed().pool.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_admission_holds_is_no_failure_and_waits() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    bed.api.refuse(refusal("DELETE", 429));
    let plan = Plan {
        pods: vec![deletion(pod)],
        ..Plan::default()
    };
    assert_eq!(bed.apply(plan.clone()).await, Done::All(Some(HELD)));
    assert!(matches!(bed.apply(plan.clone()).await, Done::All(Some(_))));
    assert_eq!(bed.api.requests(), [format!("DELETE {PODS}/web-a")]);
    let told = || bed.api.bodies("POST /api/v1/namespaces/n/events").len();
    assert_eq!(told(), 0, "it is not deleted");
    tokio::time::sleep(HELD).await;
    bed.api.refuse(None);
    assert_eq!(bed.apply(plan).await, Done::All(None));
    tokio::time::sleep(SPACING).await;
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn a_pod_that_has_moved_on_is_no_failure() {
    let bed = Bed::new();
    let seen = bed.pod("web-a");
    bed.pod("web-a");
    let mut patch = PodPatch {
        pod: seen,
        ..PodPatch::default()
    };
    patch.labels.0.insert("a".into(), Some("1".into()));
    let plan = Plan {
        pods: vec![PodChange::Patch(patch)],
        ..Plan::default()
    };
    assert_eq!(bed.apply(plan).await, Done::Moved);
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
    let plan = || Plan {
        revisions: vec![RevisionChange::Create(Arc::new(Revision {
            name: "web-1".into(),
            data: json!({}),
            ..Revision::default()
        }))],
        ..Plan::default()
    };
    assert_eq!(bed.apply(plan()).await, Done::Moved);
    let status = bed.observed().set.status.clone().unwrap();
    assert_eq!(status.collision_count, Some(1));

    bed.api.put(path, of(json!({})));
    assert_eq!(bed.apply(plan()).await, Done::All(Some(SPACING)));
    assert_eq!(bed.observed().set.status.as_ref(), Some(&status));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_planned_from_a_cache_older_than_the_own_write() {
    let bed = Bed::new();
    let index = &bed.context.index;
    let set = bed.observed().set;
    let early = observe(&bed.context, &set, &bed.memory).await;
    assert!(
        matches!(early, Err(Outcome::After(_))),
        "nothing is listed yet"
    );
    index.replace_pods(Vec::new(), 5);
    for bit in 0..KINDS {
        index.mark(|s| s.objects |= 1 << bit);
    }
    bed.memory.wrote_pod(7);
    let trailing = observe(&bed.context, &set, &bed.memory).await;
    assert!(matches!(trailing, Err(Outcome::Retry)));
    index.bookmark_pods(7);
    assert!(observe(&bed.context, &set, &bed.memory).await.is_ok());
    index.following.pods.lose();
    let silent = observe(&bed.context, &set, &bed.memory).await;
    assert!(matches!(silent, Err(Outcome::Retry)));
}

#[tokio::test(start_paused = true)]
async fn pod_to_include_that_the_cache_has_yet_to_show_is_waited_for() {
    let bed = Bed::new();
    let index = &bed.context.index;
    index.replace_pods(Vec::new(), 1);
    for bit in 0..KINDS {
        index.mark(|s| s.objects |= 1 << bit);
    }
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
    bed.learn::<SetObject>(SET);
    let set = bed.observed().set;
    let trailing = observe(&bed.context, &set, &bed.memory).await;
    assert!(matches!(trailing, Err(Outcome::Retry)));
    index.bookmark_pods(bed.api.0.lock().version);
    assert!(observe(&bed.context, &set, &bed.memory).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn new_leader_plans_nothing_before_the_cache_has_what_the_former_one_wrote() {
    let bed = Bed::new();
    let index = &bed.context.index;
    index.replace_pods(Vec::new(), 1);
    for bit in 0..KINDS {
        index.mark(|s| s.objects |= 1 << bit);
    }
    bed.pod("web-of-the-former-leader");
    let written = bed.api.0.lock().version;
    let leader = CollaSets::new(Arc::clone(&bed.context));
    let look = || leader.reconcile(("n".into(), "web".into()));
    assert!(matches!(look().await, Outcome::Retry));
    tokio::time::advance(SPACING).await;
    index.bookmark_pods(written - 1);
    assert!(matches!(look().await, Outcome::Retry));
    tokio::time::advance(SPACING).await;
    index.bookmark_pods(written);
    assert!(!matches!(look().await, Outcome::Retry));
    let status = || bed.api.0.lock().objects[SET]["status"].clone();
    assert_ne!(status(), Value::Null, "it has planned");
}

#[tokio::test(start_paused = true)]
async fn process_that_stood_still_and_leads_no_more_writes_nothing() {
    let mut bed = Bed::new();
    let pod = bed.pod("web-0");
    Arc::get_mut(&mut bed.context).unwrap().tenure = Tenure::default();
    let mut plan = recreation(&pod)[1].clone();
    plan.claims.push(ClaimChange::Delete(claim()));
    plan.pods.extend(creates(1..3).pods);
    plan.status = Some(Default::default());
    assert_eq!(bed.apply(plan).await, Done::Moved);
    assert_eq!(bed.api.requests(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pod_whose_dry_run_took_long_goes_off_traffic_by_a_newer_plan() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    bed.api.0.lock().trial = Duration::from_secs(2);
    let begin = || update(&pod)[0].clone();
    assert_eq!(bed.apply(begin()).await, Done::All(Some(SPACING)));
    let patch = format!("PATCH {PODS}/web-0");
    assert_eq!(bed.api.bodies(&patch).len(), 1, "the dry run alone");
    bed.memory.doubt("web-2"); // by another Pod
    bed.apply(begin()).await;
    let bodies = bed.api.bodies(&patch);
    assert_eq!(bodies.len(), 2, "no other dry run: it would take as long");
    assert_eq!(bodies[1]["metadata"]["labels"]["x"], "1");
}

/// How often the update of a Pod has begun, and how often it was tried.
fn begun_and_tried(bed: &Bed, name: &str) -> (usize, usize) {
    let bodies = bed.api.bodies(&format!("PATCH {PODS}/{name}"));
    let is_dry = |body: &&Value| body["metadata"]["labels"]["x"].is_null();
    let begins = |body: &&Value| !is_dry(body) && body["metadata"]["labels"]["y"].is_null();
    let begun = bodies.iter().filter(begins).count();
    (begun, bodies.iter().filter(is_dry).count())
}

#[tokio::test(start_paused = true)]
async fn slow_dry_run_that_has_passed_is_of_its_revision() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    bed.api.0.lock().trial = Duration::from_secs(2);
    bed.apply(update(&pod)[0].clone()).await;
    assert_eq!(begun_and_tried(&bed, "web-0"), (0, 1));
    let mut other = update(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut other.pods[..] {
        Arc::make_mut(patch.ahead.as_mut().unwrap()).revision = "web-3".into();
    }
    bed.apply(other).await;
    assert_eq!(begun_and_tried(&bed, "web-0"), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn late_refusals_are_tried_less_and_less_where_dry_runs_are_slow() {
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
async fn nobody_goes_off_traffic_by_an_old_plan() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    let mut plan = recreation(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut plan.pods[..] {
        let operating = Family::Operating.key("collaset");
        patch.labels.0.insert(operating, Some("1".into()));
    }
    let observed = bed.observed();
    let work = Work::new(&bed.context, &observed, &bed.memory);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(apply(&work, plan).await, Done::All(Some(SPACING)));
    assert_eq!(bed.api.requests(), Vec::<String>::new());
}

/// A set with a selector, so that its orphans can be told.
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

fn claim() -> Arc<Claim> {
    Arc::new(Claim {
        name: "data".into(),
        uid: "claim".into(),
        resource_version: "1".into(),
        ..Claim::default()
    })
}

#[tokio::test(start_paused = true)]
async fn claim_that_an_unseen_pod_mounts_is_not_deleted() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    let plan = || Plan {
        claims: vec![ClaimChange::Delete(claim())],
        ..Plan::default()
    };
    assert!(matches!(bed.apply(plan()).await, Done::All(Some(_))));
    assert!(matches!(bed.apply(plan()).await, Done::All(Some(_))));
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
async fn claim_that_a_new_pod_mounts_gets_a_version_that_no_earlier_deletion_names() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    let mut stored = claim_of(0);
    json_patch::merge(
        &mut stored,
        &json!({ "metadata": { "name": "data", "uid": "c" } }),
    );
    bed.api.put(path, stored);
    bed.learn::<ClaimObject>(path);
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
    // The next Pod needs it no more, unless a deletion has been sent.
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    bed.apply(plan()).await;
    assert_eq!(writes().len(), 3);
    bed.memory.unfence("c");
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    // The clock stands still, so that the annotation stays the same, as where a webhook puts back what was there.
    bed.apply(plan()).await;
    assert_eq!(writes().len(), 4, "the version is the one that was there");
    let told = bed.condition("Scale")["message"].to_string();
    assert!(told.contains("it is not as it was written"), "{told}");
    tokio::time::advance(PAUSES.1).await;
    bed.api.0.lock().mutation =
        Some(|claim| claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    bed.api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    assert_eq!(bed.apply(plan()).await, Done::Moved);
    assert_eq!(writes().pop(), Some(patch), "the deletion came first");
}

#[tokio::test(start_paused = true)]
async fn deletion_of_claims_is_told_and_a_refused_one_is_not() {
    let bed = Bed::new();
    let named = |name: &str| {
        let claim = Claim {
            name: name.into(),
            uid: name.into(),
            ..(*claim()).clone()
        };
        ClaimChange::Delete(Arc::new(claim))
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
    let plan = Plan {
        claims: ["b", "c", "a"].map(named).into(),
        ..Plan::default()
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
    let message = "deleted claims that no Pod of the CollaSet needs any more: a, b";
    assert_eq!(event["message"], message);
    let reasons: BTreeSet<_> = events.iter().map(|e| e["reason"].as_str()).collect();
    assert_eq!(reasons, ["ClaimDeleted", "ScaleInFailed"].map(Some).into());
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_told_by_a_process_that_leads_no_more() {
    let mut bed = Bed::new();
    let tenure = Tenure::default();
    tenure.renew(Instant::now(), Duration::from_secs(1));
    Arc::get_mut(&mut bed.context).unwrap().tenure = tenure;
    let said_by_the_next = Event {
        warning: false,
        reason: "RolloutStarted",
        message: String::new(),
    };
    let plan = Plan {
        pods: vec![deletion(bed.pod("web-a"))],
        events: vec![said_by_the_next],
        ..Plan::default()
    };
    bed.api.0.lock().writing = Duration::from_secs(2);
    assert_eq!(bed.apply(plan).await, Done::Moved);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let events = bed.api.bodies("POST /api/v1/namespaces/n/events");
    let reasons: Vec<_> = events.iter().map(|event| &event["reason"]).collect();
    assert_eq!(reasons, ["TargetDeleted"]);
}

#[tokio::test(start_paused = true)]
async fn event_that_the_api_server_does_not_take_for_a_moment_is_written_again() {
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
async fn events_that_one_namespace_does_not_take_hold_up_no_other() {
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
        events.record(&about("full", &n.to_string()), false, "Told", "");
    }
    events.record(&about("n", "web"), false, "Told", "");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let other = bed.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(other.len(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bed.api.bodies(refused).len(), 20 * 4, "dropped after that");
}

#[tokio::test]
async fn pod_is_not_made_on_a_claim_that_an_unseen_pod_mounts() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    let mut plan = creates(0..2);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        json_patch::merge(body, &mounting("data"));
    }
    assert_eq!(bed.apply(plan).await, Done::All(Some(PAUSES.0)));
    let message = bed.condition("Ready")["message"].to_string();
    assert!(
        message.contains("Pod debug, which still mounts claim data"),
        "{message}"
    );
    assert_eq!(
        bed.api.bodies(&format!("POST {PODS}")).len(),
        1,
        "the other is made"
    );
}

#[tokio::test]
async fn nothing_is_adopted_for_a_set_that_is_being_deleted() {
    let bed = Bed::new();
    let plan = || {
        let patch = PodPatch {
            pod: bed.pod("web-a"),
            ownership: Ownership::Adopt,
            ..PodPatch::default()
        };
        Plan {
            pods: vec![PodChange::Patch(patch)],
            ..Plan::default()
        }
    };
    selecting(&bed, json!({}));
    assert_eq!(bed.apply(plan()).await, Done::All(None));
    selecting(&bed, json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
    assert_eq!(bed.apply(plan()).await, Done::Moved);
    selecting(&bed, json!({ "uid": "another" }));
    assert_eq!(bed.apply(plan()).await, Done::Moved);
}

#[tokio::test]
async fn set_without_a_pool_waits_for_the_cache_to_show_its_orphans() {
    let bed = Bed::new();
    selecting(&bed, json!({}));
    bed.learn::<SetObject>(SET);
    put_pod(
        &bed,
        "web-a",
        json!({ "metadata": { "labels": { (keys::CONTROL): "true" } } }),
    );
    let mut plan = creates(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    assert_eq!(bed.apply(plan.clone()).await, Done::Moved);
    assert_eq!(bed.memory.position(), bed.api.0.lock().version);
    assert_eq!(bed.api.requests(), [format!("GET {PODS}")]);
    bed.api.0.lock().objects.remove(&format!("{PODS}/web-a"));
    assert_eq!(bed.apply(plan).await, Done::All(Some(SPACING)));
}

#[tokio::test]
async fn pod_without_its_control_label_gets_it_back_instead_of_a_second_one() {
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
    assert_eq!(bed.apply(plan).await, Done::All(None));
    let patch = &bed.api.bodies(&format!("PATCH {PODS}/web-a"))[0]["metadata"];
    assert_eq!(patch["labels"], json!({ (keys::CONTROL): "true" }));
    assert_eq!(bed.api.bodies(&format!("POST {PODS}")).len(), 1);
}

/// When to look again at the latest.
fn pause_after(done: Done) -> Duration {
    match done {
        Done::All(Some(pause)) => pause,
        _ => PAUSES.1,
    }
}

/// Applies a plan again and again, each time when it asks for it.
async fn apply_often(bed: &Bed, times: usize, plan: impl Fn() -> Plan) {
    for _ in 0..times {
        let done = bed.apply(plan()).await;
        tokio::time::advance(pause_after(done)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_alone_is_not_looked_at_again_and_again() {
    let claim = || creates_claim(0);
    let pool = || Plan {
        pool: Some(vec![ContextDetail::default()]),
        ..Plan::default()
    };
    for (of, plan) in [
        (
            "POST /api/v1/namespaces/n/persistentvolumeclaims",
            claim as fn() -> Plan,
        ),
        (
            "POST /apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts",
            pool,
        ),
    ] {
        let bed = Bed::new();
        bed.api.refuse(refusal(of, 403));
        apply_often(&bed, 20, plan).await;
        assert_eq!(pause_after(bed.apply(plan()).await), PAUSES.1, "{of}");
        let sent = bed.api.requests();
        let sent = sent.iter().filter(|request| request.starts_with(of));
        assert_eq!(sent.count(), 21, "each look tries it: {of}");
    }
}

#[tokio::test(start_paused = true)]
async fn position_of_a_rollout_is_gone_by_once_it_is_stored() {
    let bed = Bed::new();
    let plan = |step: i32| Plan {
        status: Some(
            serde_json::from_value(json!({ "rollout": { "revision": "r", "step": step } }))
                .unwrap(),
        ),
        ..Plan::default()
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
    assert_eq!(bed.apply(plan(1)).await, Done::All(Some(SPACING)));
    let body = bed.api.bodies(status).pop().unwrap();
    let version = &body["metadata"]["resourceVersion"];
    assert!(version.is_string(), "one that arrives late is of no use");
}

#[tokio::test(start_paused = true)]
async fn claim_that_a_webhook_changes_is_not_made_again_and_again() {
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
        for bit in 0..KINDS {
            index.mark(|s| s.objects |= 1 << bit);
        }
        for _ in 0..20 {
            let set = bed.observed().set;
            let observed = observe(&bed.context, &set, &bed.memory).await;
            assert!(observed.is_ok());
            apply_often(&bed, 1, || creates_claim(0)).await;
        }
        assert_eq!(bed.stored("/persistentvolumeclaims/").len(), 1, "{taken}");
        let message = bed.condition("Scale")["message"].to_string();
        assert!(message.contains("it is not as it was written"), "{message}");
        // The webhook is mended, and the claim deleted as the message says.
        bed.api.0.lock().mutation = None;
        let of_claims = |path: &str| path.contains("/persistentvolumeclaims/");
        bed.api.0.lock().objects.retain(|path, _| !of_claims(path));
        tokio::time::advance(PAUSES.1).await;
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
async fn name_that_another_instance_has_is_left_to_it_after_a_refusal_too() {
    let bed = Bed::new();
    type Creation = (&'static str, fn() -> Plan, fn() -> Value);
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
async fn revision_that_a_webhook_changes_is_not_made_again_and_again() {
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
        let plan = || Plan {
            revisions: vec![RevisionChange::Create(Arc::new(Revision {
                name: "web-1".into(),
                data: json!({ "spec": 1 }),
                labels: [("app".to_owned(), "web".to_owned())].into(),
                ..Revision::default()
            }))],
            ..Plan::default()
        };
        apply_often(&bed, 20, plan).await;
        let set = bed.api.0.lock().objects[SET].clone();
        assert_eq!(set["status"]["collisionCount"], Value::Null);
        let told = facts_of(&bed, &Pod::default()).revision.unwrap();
        assert!(told.contains("it is not as it was written"), "{told}");
        bed.api.0.lock().mutation = None;
        tokio::time::advance(PAUSES.1).await;
        apply_often(&bed, 1, plan).await;
        let path = "/apis/apps/v1/namespaces/n/controllerrevisions/web-1";
        let revision = &bed.api.0.lock().objects[path]["metadata"];
        assert_eq!(revision["labels"], json!({ "app": "web" }));
        assert_eq!(revision["ownerReferences"][0]["uid"], "set");
    }
}

#[tokio::test(start_paused = true)]
async fn change_of_a_pod_that_a_webhook_takes_out_is_told_and_left_alone() {
    type Change = (fn(&mut Value), fn(&mut PodPatch));
    let changes: [Change; 3] = [
        (
            |pod| {
                let metadata = pod["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("ownerReferences"));
            },
            |change| change.ownership = Ownership::Adopt,
        ),
        (
            |pod| {
                pod["metadata"]["ownerReferences"] =
                    pod_of(0, "set")["metadata"]["ownerReferences"].clone()
            },
            |change| change.ownership = Ownership::Release,
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
            Plan {
                pods: vec![PodChange::Patch(patch)],
                ..Plan::default()
            }
        };
        apply_often(&bed, 20, plan).await;
        assert_eq!(pause_after(bed.apply(plan()).await), PAUSES.1);
        let message = bed.condition("Ready")["message"].to_string();
        assert!(message.contains("it is not as it was written"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn edit_that_the_answer_to_a_status_brings_is_looked_at() {
    let edits: [fn(&mut Value); 3] = [
        |set| set["metadata"]["generation"] = json!(9),
        |set| set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        |set| set["metadata"]["annotations"] = json!({ (keys::ROLLOUT): "promote" }),
    ];
    let plan = || Plan {
        status: Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap()),
        ..Plan::default()
    };
    let bed = Bed::new();
    assert_eq!(bed.apply(plan()).await, Done::All(None));
    for edit in edits {
        let bed = Bed::new();
        bed.api.0.lock().mutation = Some(edit);
        assert_eq!(bed.apply(plan()).await, Done::All(Some(SPACING)));
    }
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_given_name_that_is_not_managed_is_told_with_the_remedy() {
    let bed = Bed::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/web-data-a";
    bed.api.put(
        path,
        json!({ "metadata": { "namespace": "n", "name": "web-data-a" } }),
    );
    let plan = || {
        let mut plan = creates_claim(0);
        if let ClaimChange::Create { body, .. } = &mut plan.claims[0] {
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
    assert_eq!(pause_after(bed.apply(plan()).await), PAUSES.1);
}

#[tokio::test(start_paused = true)]
async fn pod_whose_labels_a_webhook_takes_is_not_made_again_and_again() {
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
        bed.learn::<SetObject>(SET);
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
        // The webhook is mended, and the Pod deleted as the message says.
        bed.api.0.lock().mutation = None;
        bed.api
            .0
            .lock()
            .objects
            .retain(|path, _| !path.contains("/pods/"));
        tokio::time::advance(PAUSES.1).await;
        apply_often(&bed, 1, plan).await;
        let pods = bed.stored("/pods/");
        let [pod] = &pods[..] else { panic!("{pods:?}") };
        let mut labels = pod_of(0, "set")["metadata"]["labels"].clone();
        labels["app"] = json!("web");
        assert_eq!(pod["metadata"]["labels"], labels);
    }
}

#[tokio::test(start_paused = true)]
async fn spoilt_pod_that_another_instance_has_got_is_left_to_it() {
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
async fn finalizer_that_a_webhook_takes_is_not_added_again_and_again() {
    let bed = Bed::new();
    bed.api.0.lock().mutation = Some(|set| {
        let metadata = set["metadata"].as_object_mut();
        metadata.map(|metadata| metadata.remove("finalizers"));
    });
    let plan = Plan {
        add_finalizer: true,
        ..Plan::default()
    };
    assert_eq!(bed.apply(plan).await, Done::Failed);
    let message = bed.condition("Ready")["message"].to_string();
    let told = "the finalizer of CollaSet web: it is not as it was written";
    assert!(message.contains(told), "{message}");
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_not_changed_as_asked_is_not_written_again_and_again() {
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
        let claim = Claim {
            resource_version: bed.api.0.lock().version.to_string(),
            ..(*claim()).clone()
        };
        Plan {
            claims: vec![ClaimChange::Patch {
                claim: claim.into(),
                labels,
                ownership: Ownership::Keep,
            }],
            ..Plan::default()
        }
    };
    apply_often(&bed, 20, plan).await;
    assert_eq!(pause_after(bed.apply(plan()).await), PAUSES.1);
}

#[tokio::test(start_paused = true)]
async fn set_that_is_deleted_lets_go_of_a_claim_that_was_spared() {
    let bed = Bed::new();
    put_pod(&bed, "debug", mounting("data"));
    bed.api.put(
        "/api/v1/namespaces/n/persistentvolumeclaims/data",
        json!({ "metadata": {
            "namespace": "n", "name": "data", "uid": "claim", "labels": { (keys::CONTROL): "true" },
            "ownerReferences": [{ "uid": "set", "controller": true }],
        } }),
    );
    let plan = || Plan {
        claims: vec![ClaimChange::Delete(Arc::new(Claim {
            resource_version: "3".into(),
            ..(*claim()).clone()
        }))],
        ..Plan::default()
    };
    bed.apply(plan()).await;
    let mut set = bed.api.0.lock().objects[SET].clone();
    set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    bed.api.put(SET, set);
    bed.learn::<SetObject>(SET);
    bed.apply(plan()).await;
    let patch = "PATCH /api/v1/namespaces/n/persistentvolumeclaims/data";
    assert_eq!(bed.api.bodies(patch).len(), 1, "{:?}", bed.api.requests());
}

#[tokio::test(start_paused = true)]
async fn pod_of_a_given_name_that_lacks_its_control_label_gets_it_back_or_is_waited_for() {
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
        let plan = || Plan {
            pods: vec![named_create(0)],
            ..Plan::default()
        };
        let done = bed.apply(plan()).await;
        let patches = bed.api.bodies(&format!("PATCH {PODS}/web-000"));
        assert_eq!(patches.len(), usize::from(!terminates));
        if terminates {
            assert!(
                matches!(done, Done::All(Some(_))),
                "nothing tells of its end"
            );
            let told = bed.condition("Scale")["message"].to_string();
            assert!(told.contains("waiting for Pod web-000 to end"), "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn orphans_are_not_looked_for_while_the_pool_is_left_alone() {
    let bed = Bed::new();
    selecting(&bed, json!({}));
    bed.learn::<SetObject>(SET);
    bed.api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 403));
    let plan = || Plan {
        pool: Some(vec![ContextDetail::default()]),
        ..Plan::default()
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

/// How many of the Pods of these instance IDs there are.
fn made(bed: &Bed, ids: std::ops::Range<i64>) -> usize {
    let objects = &bed.api.0.lock().objects;
    ids.filter(|id| objects.contains_key(&format!("{PODS}/web-{id:03}")))
        .count()
}

#[tokio::test(start_paused = true)]
async fn names_that_are_taken_hold_up_no_other_pod() {
    for (taken, rounds) in [(3, 5), (10, 10), (120, 100)] {
        let bed = Bed::new();
        for id in 0..taken {
            bed.pod(&format!("web-{id:03}"));
        }
        let wanted = taken + 5;
        apply_often(&bed, rounds, || {
            let missing = (0..wanted).filter(|id| *id < taken || made(&bed, *id..*id + 1) == 0);
            Plan {
                pods: missing.map(named_create).collect(),
                ..Plan::default()
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
async fn refused_changes_of_many_pods_hold_up_no_other() {
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
    let plan = || Plan {
        pods: refused.iter().chain(&free).map(change).collect(),
        ..Plan::default()
    };
    apply_often(&bed, 4, plan).await;
    let requests = bed.api.requests();
    for pod in &free {
        let patch = format!("PATCH {PODS}/{}", pod.metadata.name);
        assert!(requests.contains(&patch), "{patch}");
    }
}

#[tokio::test(start_paused = true)]
async fn quota_that_refuses_all_is_asked_by_few_in_turn() {
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
async fn command_that_can_not_be_removed_is_told_and_left_alone() {
    let bed = Bed::new();
    bed.api
        .refuse(refusal("PATCH /apis/apps.kusionstack.io", 403));
    let plan = || Plan {
        forget_command: true,
        ..Plan::default()
    };
    let patch = format!("PATCH {SET}");
    assert_eq!(bed.apply(plan()).await, Done::All(Some(PAUSES.0)));
    bed.apply(plan()).await;
    assert_eq!(bed.api.bodies(&patch).len(), 1, "not again so soon");
    tokio::time::sleep(PAUSES.1).await;
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
    assert_eq!(bed.apply(plan()).await, Done::All(Some(SPACING)));
    assert_eq!(bed.api.bodies(&patch).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn another_failure_within_a_minute_is_an_event_of_its_own() {
    let bed = Bed::new();
    for message in ["exceeded quota", "denied by a policy"] {
        let refused = refusal("POST /api/v1/namespaces/n/pods", 403);
        bed.api.refuse(refused.map(|r| Refusal { message, ..r }));
        bed.apply(creates(0..1)).await;
        tokio::time::sleep(PAUSES.0 * 4).await;
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
async fn what_a_patch_comes_to_is_told_once_it_is_written() {
    let bed = Bed::new();
    let pod = bed.pod("web-a");
    let plan = |id: i64| {
        let told = Event {
            warning: false,
            reason: "IncludeTarget",
            message: format!("under instance ID {id}"),
        };
        let mut patch = PodPatch {
            pod: pod.clone(),
            told: Some(Box::new(told)),
            ..PodPatch::default()
        };
        patch.labels.0.insert("a".into(), Some(id.to_string()));
        Plan {
            pods: vec![PodChange::Patch(patch)],
            ..Plan::default()
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
    tokio::time::sleep(PAUSES.0).await;
    assert_eq!(told(&bed), [Value::Null; 0]);
    bed.api.refuse(None);
    bed.apply(plan(2)).await;
    tokio::time::sleep(PAUSES.0).await;
    assert_eq!(told(&bed), ["under instance ID 2"]);
}

/// What is refused is not looked at before it is tried again.
#[tokio::test(start_paused = true)]
async fn updates_begin_beside_a_refused_creation_where_pods_are_read_slowly() {
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
        Plan {
            pods: vec![PodChange::Patch(patch), create],
            ..Plan::default()
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
async fn update_that_is_only_tried_begins_with_another_plan() {
    let bed = Bed::new();
    let pod = bed.pod("web-0");
    for begin in [update(&pod)[0].clone(), recreation(&pod)[0].clone()] {
        let only_tried = begin.pods.iter().map(|change| match change {
            PodChange::Patch(patch) => PodChange::Patch(PodPatch {
                only_tried: true,
                ..patch.clone()
            }),
            other => other.clone(),
        });
        let only_tried = Plan {
            pods: only_tried.collect(),
            ..Plan::default()
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

/// API Priority and Fairness answers 429 when it wants fewer requests.
#[tokio::test]
async fn creations_answered_429_stop_early_and_are_told() {
    let bed = Bed::new();
    let pods = "POST /api/v1/namespaces/n/pods";
    bed.api.refuse(refusal(pods, 429));
    let done = bed.apply(creates(0..200)).await;
    assert!(matches!(done, Done::All(_)), "{done:?}");
    assert!(bed.api.bodies(pods).len() <= 16);
    let scale = bed.condition("Scale");
    assert_eq!(scale["status"], "False");
    assert!(
        scale["message"].to_string().contains("exceeded quota"),
        "{scale}"
    );
}
