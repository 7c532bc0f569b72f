//! Writes of PVCs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Fixture, PODS, SET, apply_often, mounting_spec, pause_after, pod_creation_plan, put_pod, pvc,
    pvc_creation_plan, pvc_json,
};
use crate::api::keys;
use crate::cluster::objects::{CollaSetObject, PvcObject};
use crate::controllers::collaset::apply::ApplyOutcome;
use crate::controllers::collaset::observe::observe_collaset;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::controllers::decoration_board::DecorationBoard;
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::plan::{OwnershipChange, PodChange, PvcChange, SetPlan};
use crate::domain::lifecycle::LabelPatch;

#[tokio::test(start_paused = true)]
async fn pvc_mounted_by_uncached_pod_is_not_deleted() {
    let fixture = Fixture::new();
    put_pod(&fixture, "debug", mounting_spec("data"));
    let plan = || SetPlan {
        pvcs: vec![PvcChange::Delete(pvc())],
        ..SetPlan::default()
    };
    assert!(matches!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    assert!(matches!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    let list = format!("GET {PODS}");
    assert_eq!(
        fixture.api.requests(),
        std::slice::from_ref(&list),
        "the Pods are not listed again at once"
    );
    let events = |fixture: &Fixture| fixture.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events(&fixture), [Value::Null; 0]);
    fixture
        .api
        .0
        .lock()
        .objects
        .remove(&format!("{PODS}/debug"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    fixture.apply(plan()).await;
    let delete = "DELETE /api/v1/namespaces/n/persistentvolumeclaims/data".to_owned();
    assert_eq!(fixture.api.requests(), [list.clone(), list, delete]);
}

#[tokio::test(start_paused = true)]
async fn mounted_pvc_gets_version_unknown_to_earlier_deletions() {
    let fixture = Fixture::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    let mut stored = pvc_json(0);
    json_patch::merge(
        &mut stored,
        &json!({ "metadata": { "name": "data", "uid": "c" } }),
    );
    fixture.api.put(path, stored);
    fixture.cache_object::<PvcObject>(path);
    fixture.context.index.replace_pods(Vec::new(), 1);
    let plan = || {
        let mut plan = pod_creation_plan(0..1);
        if let PodChange::Create { body, .. } = &mut plan.pods[0] {
            json_patch::merge(body, &mounting_spec("data"));
        }
        plan
    };
    let (patch, post) = (format!("PATCH {path}"), format!("POST {PODS}"));
    let writes = || {
        let mut writes = fixture.api.requests();
        writes.retain(|request| !request.starts_with("GET") && !request.ends_with("/status"));
        writes
    };
    fixture.apply(plan()).await;
    assert_eq!(writes(), [patch.clone(), post.clone()]);
    assert!(fixture.api.bodies(&patch)[0]["metadata"]["uid"] == "c");
    // The next Pod does not need the write again, unless a deletion has been sent.
    fixture
        .api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    fixture.apply(plan()).await;
    assert_eq!(writes().len(), 3);
    fixture.state.unfence_pvc("c");
    fixture
        .api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    // The clock does not move, so the annotation stays the same, as if a webhook restored the old value.
    fixture.apply(plan()).await;
    assert_eq!(writes().len(), 4, "the version is not new");
    let message = fixture.condition("Scale")["message"].to_string();
    assert!(
        message.contains("the API server stored another object than the one that was written"),
        "{message}"
    );
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.api.0.lock().mutation =
        Some(|pvc| pvc["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    fixture
        .api
        .0
        .lock()
        .objects
        .retain(|path, _| !path.contains("/pods/"));
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::Moved);
    assert_eq!(writes().pop(), Some(patch), "the deletion came first");
}

#[tokio::test(start_paused = true)]
async fn pvc_changed_by_webhook_is_not_recreated() {
    for taken in [
        keys::INSTANCE_ID,
        keys::PVC_TEMPLATE_NAME,
        keys::CONTROL,
        "owner",
    ] {
        let fixture = Fixture::new();
        fixture.api.0.lock().mutation = match taken {
            keys::INSTANCE_ID => Some(|pvc| {
                let labels = pvc["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::INSTANCE_ID));
            }),
            keys::CONTROL => Some(|pvc| {
                let labels = pvc["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::CONTROL));
            }),
            "owner" => Some(|pvc| {
                let metadata = pvc["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("ownerReferences"));
            }),
            _ => Some(|pvc| pvc["metadata"]["labels"][keys::PVC_TEMPLATE_NAME] = json!("x")),
        };
        let index = &fixture.context.index;
        index.replace_pods(Vec::new(), 1);
        index.mark_all_listed();
        for _ in 0..20 {
            let set = fixture.observed().set;
            let observed = observe_collaset(
                &fixture.context,
                &DecorationBoard::default(),
                &set,
                &fixture.state,
            )
            .await;
            assert!(observed.is_ok());
            apply_often(&fixture, 1, || pvc_creation_plan(0)).await;
        }
        assert_eq!(
            fixture.stored("/persistentvolumeclaims/").len(),
            1,
            "{taken}"
        );
        let message = fixture.condition("Scale")["message"].to_string();
        assert!(
            message.contains("the API server stored another object than the one that was written"),
            "{message}"
        );
        // The webhook is fixed, and the PVC is deleted as the message says.
        fixture.api.0.lock().mutation = None;
        let is_pvc = |path: &str| path.contains("/persistentvolumeclaims/");
        fixture.api.0.lock().objects.retain(|path, _| !is_pvc(path));
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&fixture, 1, || pvc_creation_plan(0)).await;
        let pvcs = fixture.stored("/persistentvolumeclaims/");
        let [pvc] = &pvcs[..] else {
            panic!("{taken}: {pvcs:?}")
        };
        let pvc = &pvc["metadata"];
        let wanted = &pvc_json(0)["metadata"];
        assert_eq!(pvc["labels"], wanted["labels"], "{taken}");
        assert_eq!(pvc["ownerReferences"], wanted["ownerReferences"]);
    }
}

#[tokio::test(start_paused = true)]
async fn unmanaged_pvc_of_given_name_is_reported_with_remedy() {
    let fixture = Fixture::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/web-data-a";
    fixture.api.put(
        path,
        json!({ "metadata": { "namespace": "n", "name": "web-data-a" } }),
    );
    let plan = || {
        let mut plan = pvc_creation_plan(0);
        if let PvcChange::Create { body, .. } = &mut plan.pvcs[0] {
            body["metadata"]["name"] = json!("web-data-a");
        }
        plan
    };
    apply_often(&fixture, 20, plan).await;
    let message = fixture.condition("Scale")["message"].to_string();
    let remedy = "`kubectl label pvc web-data-a -n n kusionstack.io/control=true collaset.kusionstack.io/instance-id=0 \
                  collaset.kusionstack.io/pvc-template-name=data --overwrite`";
    assert!(message.contains(remedy), "{message}");
    assert!(!message.contains("  "), "{message}");
    assert_eq!(pause_after(fixture.apply(plan()).await), BACKOFF_RANGE.1);
}

#[tokio::test(start_paused = true)]
async fn pvc_with_reverted_change_is_not_written_repeatedly() {
    let fixture = Fixture::new();
    let path = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    fixture.api.put(path, json!({ "metadata": { "namespace": "n", "name": "data", "labels": { (keys::CONTROL): "true" } } }));
    fixture.api.0.lock().mutation = Some(|pvc| {
        let labels = pvc["metadata"]["labels"].as_object_mut();
        labels.map(|labels| labels.remove("x"));
    });
    let plan = || {
        let mut labels = LabelPatch::default();
        labels.0.insert("x".into(), Some("1".into()));
        let pvc = Pvc {
            resource_version: fixture.api.0.lock().version.to_string(),
            ..(*pvc()).clone()
        };
        SetPlan {
            pvcs: vec![PvcChange::Patch {
                pvc: pvc.into(),
                labels,
                ownership: OwnershipChange::Keep,
            }],
            ..SetPlan::default()
        }
    };
    apply_often(&fixture, 20, plan).await;
    assert_eq!(pause_after(fixture.apply(plan()).await), BACKOFF_RANGE.1);
}

#[tokio::test(start_paused = true)]
async fn deleted_set_releases_spared_pvc() {
    let fixture = Fixture::new();
    put_pod(&fixture, "debug", mounting_spec("data"));
    fixture.api.put(
        "/api/v1/namespaces/n/persistentvolumeclaims/data",
        json!({ "metadata": {
            "namespace": "n", "name": "data", "uid": "pvc", "labels": { (keys::CONTROL): "true" },
            "ownerReferences": [{ "uid": "set", "controller": true }],
        } }),
    );
    let plan = || SetPlan {
        pvcs: vec![PvcChange::Delete(Arc::new(Pvc {
            resource_version: "3".into(),
            ..(*pvc()).clone()
        }))],
        ..SetPlan::default()
    };
    fixture.apply(plan()).await;
    let mut set = fixture.api.0.lock().objects[SET].clone();
    set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    fixture.api.put(SET, set);
    fixture.cache_object::<CollaSetObject>(SET);
    fixture.apply(plan()).await;
    let patch = "PATCH /api/v1/namespaces/n/persistentvolumeclaims/data";
    assert_eq!(
        fixture.api.bodies(patch).len(),
        1,
        "{:?}",
        fixture.api.requests()
    );
}
