//! Creations of Pods: names, refusals, and Pods that already exist.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::api::Refusal;
use tokio::time::Instant;

use super::{
    Fixture, PODS, SET, apply_often, mounting_spec, pause_after, pod_creation_plan, pod_json,
    put_pod, refusal,
};
use crate::api::keys::{self, Family};
use crate::cluster::objects::CollaSetObject;
use crate::controllers::collaset::apply::ApplyOutcome;
use crate::controllers::collaset::names::NameSlot;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::plan::{PodChange, PodPatch, SetPlan};

#[tokio::test(start_paused = true)]
async fn creation_with_lost_answer_is_repeated_under_same_name() {
    let fixture = Fixture::new();
    let post = "POST /api/v1/namespaces/n/pods";
    let lost = refusal(post, 504).map(|r| Refusal { done: true, ..r });
    fixture.api.refuse(lost);
    let failed = ApplyOutcome::All(Some(BACKOFF_RANGE.0));
    assert_eq!(fixture.apply(pod_creation_plan(0..1)).await, failed);
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    fixture.api.refuse(None);
    assert_eq!(
        fixture.apply(pod_creation_plan(0..1)).await,
        ApplyOutcome::All(None)
    );
    let names: Vec<_> = fixture.api.bodies(post);
    assert_eq!(names.len(), 2);
    assert_eq!(names[0]["metadata"]["name"], names[1]["metadata"]["name"]);
    assert_eq!(names[0]["metadata"]["generateName"], "web-");
    // The next Pod of this ID gets another name.
    assert_eq!(
        fixture.apply(pod_creation_plan(0..1)).await,
        ApplyOutcome::All(None)
    );
    assert_ne!(
        fixture.api.bodies(post)[2]["metadata"]["name"],
        names[0]["metadata"]["name"]
    );
}

#[tokio::test]
async fn name_of_foreign_pod_is_not_reused() {
    let fixture = Fixture::new();
    let name = fixture.state.choose_name(&NameSlot::Pod(0), "web-");
    fixture
        .api
        .put(&format!("{PODS}/{name}"), pod_json(0, "other"));
    assert_eq!(
        fixture.apply(pod_creation_plan(0..1)).await,
        ApplyOutcome::Moved
    );
    assert_eq!(
        fixture.apply(pod_creation_plan(0..1)).await,
        ApplyOutcome::All(None)
    );
    assert_eq!(fixture.condition("Scale"), Value::Null);

    let mut plan = pod_creation_plan(0..1);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        body["metadata"] = json!({ "name": name });
    }
    assert_eq!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let message = fixture.condition("Scale")["message"].to_string();
    assert!(
        message.contains("does not belong to this CollaSet"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_creations_give_one_event_and_stop_early() {
    let fixture = Fixture::new();
    fixture
        .api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let first = ApplyOutcome::All(Some(BACKOFF_RANGE.0));
    assert_eq!(fixture.apply(pod_creation_plan(0..40)).await, first);
    let status = format!("PATCH {SET}/status");
    let post = format!("POST {PODS}");
    let requests = [post.clone(), post.clone(), post, status.clone()];
    assert_eq!(fixture.api.requests(), requests);
    let condition = fixture.condition("Scale");
    assert_eq!(condition["reason"], "ScaleOutFailed");
    let message = condition["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("creation of Pod web-") && message.ends_with(": exceeded quota"));

    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = ApplyOutcome::All(Some(BACKOFF_RANGE.0 * 2));
    assert_eq!(fixture.apply(pod_creation_plan(0..40)).await, second);
    assert_eq!(
        fixture.api.bodies(&status).len(),
        1,
        "the same failure again"
    );
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["reason"], "ScaleOutFailed");
    assert_eq!(events[0]["involvedObject"]["name"], "web");
}

#[tokio::test]
async fn pod_is_not_created_on_pvc_of_uncached_pod() {
    let fixture = Fixture::new();
    put_pod(&fixture, "debug", mounting_spec("data"));
    let mut plan = pod_creation_plan(0..2);
    if let PodChange::Create { body, .. } = &mut plan.pods[0] {
        json_patch::merge(body, &mounting_spec("data"));
    }
    assert_eq!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let message = fixture.condition("Ready")["message"].to_string();
    assert!(
        message.contains("Pod debug, which still mounts PVC data"),
        "{message}"
    );
    assert_eq!(
        fixture.api.bodies(&format!("POST {PODS}")).len(),
        1,
        "the other Pod is created"
    );
}

#[tokio::test]
async fn missing_control_label_is_restored_instead_of_second_pod() {
    let fixture = Fixture::new();
    let mut lost = pod_json(0, "set");
    lost["metadata"]["name"] = json!("web-a");
    lost["metadata"]["labels"][keys::CONTROL] = json!("taken");
    put_pod(&fixture, "web-a", lost);
    let mut plan = pod_creation_plan(0..2);
    for change in &mut plan.pods {
        if let PodChange::Create { body, .. } = change {
            body["metadata"]["labels"][keys::COMPLETING] = json!("1");
        }
    }
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::All(None));
    let patch = &fixture.api.bodies(&format!("PATCH {PODS}/web-a"))[0]["metadata"];
    assert_eq!(patch["labels"], json!({ (keys::CONTROL): "true" }));
    assert_eq!(fixture.api.bodies(&format!("POST {PODS}")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_stripped_of_labels_by_webhook_is_not_recreated() {
    let removals: [fn(&mut Value); 3] = [
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
    for remove in removals {
        let fixture = Fixture::new();
        fixture.api.0.lock().mutation = Some(remove);
        let template = json!({ "spec": { "selector": { "matchLabels": { "app": "web" } } } });
        let mut set = fixture.api.0.lock().objects[SET].clone();
        json_patch::merge(&mut set, &template);
        fixture.api.put(SET, set);
        fixture.cache_object::<CollaSetObject>(SET);
        let plan = || {
            let mut plan = pod_creation_plan(0..1);
            if let PodChange::Create { body, .. } = &mut plan.pods[0] {
                body["metadata"]["labels"]["app"] = json!("web");
            }
            plan
        };
        apply_often(&fixture, 20, plan).await;
        assert_eq!(fixture.stored("/pods/").len(), 1);
        let message = fixture.condition("Scale")["message"].to_string();
        let expected = "the API server stored another object than the one that was written";
        assert!(message.contains(expected), "{message}");
        // The webhook is fixed, and the Pod is deleted as the message says.
        fixture.api.0.lock().mutation = None;
        fixture
            .api
            .0
            .lock()
            .objects
            .retain(|path, _| !path.contains("/pods/"));
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&fixture, 1, plan).await;
        let pods = fixture.stored("/pods/");
        let [pod] = &pods[..] else { panic!("{pods:?}") };
        let mut labels = pod_json(0, "set")["metadata"]["labels"].clone();
        labels["app"] = json!("web");
        assert_eq!(pod["metadata"]["labels"], labels);
    }
}

#[tokio::test(start_paused = true)]
async fn altered_pod_of_other_instance_is_left_alone() {
    let fixture = Fixture::new();
    fixture.api.0.lock().mutation = Some(|pod| {
        let labels = pod["metadata"]["labels"].as_object_mut();
        labels.map(|labels| labels.remove(keys::INSTANCE_ID));
    });
    apply_often(&fixture, 1, || pod_creation_plan(0..1)).await;
    fixture.api.0.lock().mutation = None;
    let mut pod = fixture.stored("/pods/").remove(0);
    pod["metadata"]["labels"][keys::INSTANCE_ID] = json!("1");
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    fixture.api.put(&format!("{PODS}/{name}"), pod);
    apply_often(&fixture, 2, || pod_creation_plan(0..1)).await;
    assert_eq!(
        fixture.stored("/pods/").len(),
        2,
        "the new Pod has another name"
    );
}

#[tokio::test(start_paused = true)]
async fn control_label_of_given_name_pod_is_restored_or_awaited() {
    for terminates in [false, true] {
        let fixture = Fixture::new();
        let mut existing = pod_json(0, "set");
        existing["metadata"]["name"] = json!("web-000");
        existing["metadata"]["labels"][keys::CONTROL] = json!("taken");
        existing["status"]["phase"] = json!("Failed");
        if terminates {
            existing["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        fixture.api.put(&format!("{PODS}/web-000"), existing);
        let plan = || SetPlan {
            pods: vec![named_pod_creation(0)],
            ..SetPlan::default()
        };
        let outcome = fixture.apply(plan()).await;
        let patches = fixture.api.bodies(&format!("PATCH {PODS}/web-000"));
        assert_eq!(patches.len(), usize::from(!terminates));
        if terminates {
            assert!(
                matches!(outcome, ApplyOutcome::All(Some(_))),
                "no event reports the end of the Pod"
            );
            let message = fixture.condition("Scale")["message"].to_string();
            assert!(
                message.contains("waiting for the terminating Pod web-000, which lacks"),
                "{message}"
            );
        }
    }
}

fn named_pod_creation(id: i64) -> PodChange {
    let mut body = pod_json(id, "set");
    body["metadata"] =
        json!({ "name": format!("web-{id:03}"), "labels": body["metadata"]["labels"] });
    PodChange::Create { id, body }
}

/// How many Pods of these instance IDs exist.
fn count_pods(fixture: &Fixture, ids: std::ops::Range<i64>) -> usize {
    let objects = &fixture.api.0.lock().objects;
    ids.filter(|id| objects.contains_key(&format!("{PODS}/web-{id:03}")))
        .count()
}

#[tokio::test(start_paused = true)]
async fn taken_names_block_no_other_pod() {
    for (taken, rounds) in [(3, 5), (10, 10), (120, 100)] {
        let fixture = Fixture::new();
        for id in 0..taken {
            fixture.pod(&format!("web-{id:03}"));
        }
        let wanted = taken + 5;
        apply_often(&fixture, rounds, || {
            let missing =
                (0..wanted).filter(|id| *id < taken || count_pods(&fixture, *id..*id + 1) == 0);
            SetPlan {
                pods: missing.map(named_pod_creation).collect(),
                ..SetPlan::default()
            }
        })
        .await;
        assert_eq!(count_pods(&fixture, taken..wanted), 5, "{taken}");
        let message = fixture.condition("Scale")["message"].to_string();
        assert!(
            message.contains("Pod web-000 has the name of instance ID"),
            "{message}"
        );
        let status_writes = fixture.api.bodies(&format!("PATCH {SET}/status")).len();
        assert_eq!(status_writes, 1, "the message stays the same");
    }
}

#[tokio::test(start_paused = true)]
async fn exhausted_quota_is_tried_by_few_in_turn() {
    let fixture = Fixture::new();
    fixture
        .api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let post = format!("POST {PODS}");
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < Duration::from_secs(300) {
        let outcome = fixture.apply(pod_creation_plan(0..40)).await;
        let now = fixture.api.bodies(&post).len();
        assert!(now - sent <= 3, "{}", now - sent);
        sent = now;
        tokio::time::advance(pause_after(outcome)).await;
    }
    assert!((60..160).contains(&sent), "{sent} in 300 s");
    let bodies = fixture.api.bodies(&post).into_iter();
    let ids = bodies.map(|body| body["metadata"]["labels"][keys::INSTANCE_ID].to_string());
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), 40);
}

/// Nothing is read for a refused write before the write is tried again.
#[tokio::test(start_paused = true)]
async fn refused_creation_does_not_block_updates_with_slow_reads() {
    let fixture = Fixture::new();
    fixture.api.0.lock().reading = Duration::from_secs(6);
    fixture
        .api
        .refuse(refusal("POST /api/v1/namespaces/n/pods", 403));
    let pod = fixture.pod("web-a");
    let plan = || {
        let mut patch = PodPatch {
            pod: pod.clone(),
            ..PodPatch::default()
        };
        let operating = Family::Operating.key("collaset");
        patch.labels.0.insert(operating, Some("1".into()));
        let mut body = pod_json(3, "set");
        let pvc = json!({ "persistentVolumeClaim": { "claimName": "c" } });
        body["spec"] = json!({ "volumes": [pvc] });
        let create = PodChange::Create { id: 3, body };
        SetPlan {
            pods: vec![PodChange::Patch(patch), create],
            ..SetPlan::default()
        }
    };
    for _ in 0..20 {
        let outcome = fixture.apply(plan()).await;
        tokio::time::advance(pause_after(outcome)).await;
    }
    let requests = fixture.api.requests();
    let count = |prefix: &str| requests.iter().filter(|r| r.starts_with(prefix)).count();
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

/// API Priority and Fairness answers 429 if there are too many requests.
#[tokio::test]
async fn creations_answered_429_stop_early_and_are_reported() {
    let fixture = Fixture::new();
    let pods = "POST /api/v1/namespaces/n/pods";
    fixture.api.refuse(refusal(pods, 429));
    let outcome = fixture.apply(pod_creation_plan(0..200)).await;
    assert!(matches!(outcome, ApplyOutcome::All(_)), "{outcome:?}");
    assert!(fixture.api.bodies(pods).len() <= 16);
    let scale = fixture.condition("Scale");
    assert_eq!(scale["status"], "False");
    assert!(
        scale["message"].to_string().contains("exceeded quota"),
        "{scale}"
    );
}
