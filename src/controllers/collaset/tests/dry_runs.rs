//! Dry runs of updates, and refusals after a dry run.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::api::Refusal;
use tokio::time::Instant;

use super::{Fixture, PODS, apply_often, put_pod, recreation, refusal, refusals_of};
use crate::api::keys::{self, Family};
use crate::controllers::collaset::apply::ApplyOutcome;
use crate::controllers::collaset::reconcile_state::MIN_RECONCILE_INTERVAL;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::SetOperation;
use crate::domain::collaset::plan::{DryRunChange, PodChange, PodPatch, SetPlan};
use crate::domain::pod::Pod;

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
        let fixture = Fixture::new();
        let pod = fixture.pod("web-a");
        fixture.api.refuse(refused_resize(code, message));
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
        let outcome = fixture.apply(plan).await;
        let path = format!("PATCH {PODS}/web-a");
        assert!(
            !fixture.api.requests().contains(&path),
            "nothing is written without the resize"
        );
        let none = || std::iter::empty();
        let facts = fixture
            .state
            .plan_refusals([&*pod].into_iter(), none(), Instant::now(), 0);
        let denied = [quota, policy, webhook].contains(&message);
        assert_eq!(
            facts.resize_refusal(&pod, "web-2").is_some(),
            !denied,
            "{code}"
        );
        assert_eq!(facts.refuses_change(&pod, "web-2"), denied, "{code}");
        assert_eq!(
            outcome,
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
    let mut dry_run_change = DryRunChange {
        revision: "web-2".into(),
        ..DryRunChange::default()
    };
    dry_run_change.labels.0.insert("y".into(), Some("1".into()));
    begin.dry_run_change = Some(Arc::new(dry_run_change));
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
    let fixture = Fixture::new();
    let pod = |name: &str| -> Arc<Pod> {
        put_pod(
            &fixture,
            name,
            json!({ "metadata": { "name": name, "uid": name } }),
        );
        let object = fixture.api.0.lock().objects[&format!("{PODS}/{name}")].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let patch = format!("PATCH {PODS}/web-a");
    let begins = || updates_and_dry_runs(&fixture, "web-a").0;
    // For this Pod the dry run passes each time and the change is refused. For the other Pod nothing is refused.
    let mut tries = 0;
    for _ in 0..60 {
        let before = begins();
        fixture.apply(update(&pod("web-a"))[0].clone()).await;
        if begins() > before {
            tries += 1;
            fixture
                .api
                .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-a", 403));
            fixture.apply(update(&pod("web-a"))[1].clone()).await;
            fixture.api.refuse(None);
        }
        fixture.apply(update(&pod("web-b"))[1].clone()).await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert!((8..20).contains(&tries), "{tries} tries in five minutes");
    fixture.state.clear_late_refusals();
    let sent = fixture.api.bodies(&patch).len();
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.apply(update(&pod("web-a"))[0].clone()).await;
    assert!(
        fixture.api.bodies(&patch).len() > sent,
        "a command ends the backoff"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_deletion_is_dry_run_before_next_pod() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.pod("web-a"), fixture.pod("web-b"));
    let delete = |pod: &Pod| format!("DELETE {PODS}/{}", pod.metadata.name);
    let [begin, _] = recreation(&b);
    fixture.apply(begin).await;
    assert!(
        !fixture.api.requests().contains(&delete(&b)),
        "no deletion was refused yet"
    );
    fixture
        .api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods", 403));
    fixture.apply(recreation(&a)[1].clone()).await;
    let preconditions = &fixture.api.bodies(&delete(&a))[0]["preconditions"];
    let version = a.metadata.resource_version.to_string();
    assert_eq!(preconditions["resourceVersion"], json!(version));
    assert!(
        refusals_of(&fixture, &a)
            .deletions
            .contains(&a.metadata.uid)
    );
    let patches = |fixture: &Fixture| fixture.api.bodies(&format!("PATCH {PODS}/web-b")).len();
    let before = patches(&fixture);
    let b = Arc::new(
        serde_json::from_value(fixture.api.0.lock().objects[&format!("{PODS}/web-b")].clone())
            .unwrap(),
    );
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&fixture), before, "the Pod stays on traffic");
    assert_eq!(
        fixture.api.bodies(&delete(&b)).len(),
        1,
        "a dry run was sent"
    );
    fixture.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.apply(recreation(&b)[0].clone()).await;
    assert_eq!(patches(&fixture), before + 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_change_failure_counts_as_refusal() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-a");
    fixture.state.record_accepted_change("another", "web-2");
    fixture
        .api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods", 500));
    fixture.apply(update(&pod)[1].clone()).await;
    assert!(
        !refusals_of(&fixture, &pod).refuses_change(&pod, "web-2"),
        "the failure may be temporary"
    );
    apply_often(&fixture, 6, || update(&pod)[1].clone()).await;
    let facts = refusals_of(&fixture, &pod);
    assert!(facts.refuses_change(&pod, "web-2"));
    assert!(
        !facts.accepted.contains("web-2"),
        "other Pods need a dry run"
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_dry_run_failure_frees_update_slot() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-a");
    let change = "PATCH /api/v1/namespaces/n/pods/web-a";
    let resize = "PATCH /api/v1/namespaces/n/pods/web-a/resize";
    for (at, spec) in [(change, None), (resize, Some(json!({ "containers": [] })))] {
        let begin = || {
            let mut begin = update(&pod)[0].clone();
            if let [PodChange::Patch(patch)] = &mut begin.pods[..] {
                let dry_run_change = Arc::make_mut(patch.dry_run_change.as_mut().unwrap());
                dry_run_change.revision = at.into();
                dry_run_change.resize.clone_from(&spec);
            }
            begin
        };
        fixture.api.refuse(refusal(at, 500));
        fixture.apply(begin()).await;
        assert!(
            !refusals_of(&fixture, &pod).refuses_change(&pod, at),
            "the failure may be temporary"
        );
        apply_often(&fixture, 6, begin).await;
        assert!(refusals_of(&fixture, &pod).refuses_change(&pod, at), "{at}");
        fixture.api.refuse(None);
        apply_often(&fixture, 1, begin).await;
    }
}

/// Begins the updates of all these Pods in one plan. Returns how many have begun.
async fn begin_updates(
    fixture: &Fixture,
    pods: &[Arc<Pod>],
    plans: fn(&Arc<Pod>) -> [SetPlan; 2],
) -> usize {
    let begin = SetPlan {
        pods: pods
            .iter()
            .flat_map(|pod| plans(pod)[0].pods.clone())
            .collect(),
        ..SetPlan::default()
    };
    fixture.apply(begin).await;
    let begun = pods.iter().filter(|pod| {
        let path = format!("{PODS}/{}", pod.metadata.name);
        fixture.api.0.lock().objects[&path]["metadata"]["labels"]["x"] == "1"
    });
    begun.count()
}

#[tokio::test(start_paused = true)]
async fn after_late_refusal_pods_update_one_by_one() {
    let fixture = Fixture::new();
    let pods: Vec<_> = (0..5).map(|n| fixture.pod(&format!("web-{n}"))).collect();
    fixture
        .api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-0", 403));
    fixture.apply(update(&pods[0])[1].clone()).await;
    fixture.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    assert_eq!(begin_updates(&fixture, &pods, update).await, 1);
}

#[tokio::test(start_paused = true)]
async fn after_late_deletion_refusal_pods_go_one_by_one() {
    let fixture = Fixture::new();
    let pods: Vec<_> = (0..5).map(|n| fixture.pod(&format!("web-{n}"))).collect();
    fixture
        .api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods", 403));
    for pod in &pods {
        let mut pod = Pod::clone(pod);
        let begun = SetOperation::Update.begin_labels(&pod, true, 1);
        begun.apply(&mut pod.metadata.labels);
        fixture.apply(recreation(&pod.into())[1].clone()).await;
    }
    fixture.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    assert_eq!(begin_updates(&fixture, &pods, recreation).await, 1);
}

#[tokio::test(start_paused = true)]
async fn refused_scale_in_deletion_delays_no_dry_run() {
    let fixture = Fixture::new();
    let (scaled_in, other) = (fixture.pod("web-a"), fixture.pod("web-b"));
    fixture
        .api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods/web-a", 403));
    for _ in 0..12 {
        fixture.apply(recreation(&scaled_in)[1].clone()).await;
        tokio::time::advance(BACKOFF_RANGE.1).await;
    }
    assert_eq!(begin_updates(&fixture, &[other], recreation).await, 1);
}

/// Answers the next dry run of a Pod whose change was refused with 429 and this message. Returns whether the change
/// still counts as refused.
async fn refused_after_429(message: &'static str) -> bool {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    let patch = "PATCH /api/v1/namespaces/n/pods/web-0";
    fixture.api.refuse(refusal(patch, 403));
    fixture.apply(update(&pod)[0].clone()).await;
    assert!(refusals_of(&fixture, &pod).refuses_change(&pod, "web-2"));
    let answer = refusal(patch, 429).map(|refusal| Refusal { message, ..refusal });
    fixture.api.refuse(answer);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.apply(update(&pod)[0].clone()).await;
    refusals_of(&fixture, &pod).refuses_change(&pod, "web-2")
}

#[tokio::test(start_paused = true)]
async fn dry_run_denied_by_rules_is_no_refusal() {
    let rules = "admission webhook \"pods.apps.kusionstack.io\" denied the request: held";
    assert!(
        !refused_after_429(rules).await,
        "otherwise the Pod would return to traffic whenever it waits for its rules"
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_answered_429_by_api_server_is_inconclusive() {
    assert!(refused_after_429("Too many requests, please try again later.").await);
}

#[tokio::test(start_paused = true)]
async fn update_that_cannot_begin_frees_its_slot() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    let mut begin = update(&pod)[0].clone();
    let PodChange::Patch(patch) = &mut begin.pods[0] else {
        unreachable!()
    };
    let operating = Family::Operating.key("collaset");
    patch.labels.0.insert(operating, Some("1".into()));
    let status = "PATCH /api/v1/namespaces/n/pods/web-0/status";
    fixture.api.refuse(refusal(status, 403));
    fixture.apply(begin.clone()).await;
    assert!(refusals_of(&fixture, &pod).pods.contains(&pod.metadata.uid));
    fixture.api.refuse(None);
    tokio::time::advance(BACKOFF_RANGE.1).await;
    fixture.apply(begin).await;
    assert!(refusals_of(&fixture, &pod).pods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_with_slow_dry_run_waits_for_newer_plan() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    fixture.api.0.lock().trial = Duration::from_secs(2);
    let begin = || update(&pod)[0].clone();
    assert_eq!(
        fixture.apply(begin()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let patch = format!("PATCH {PODS}/web-0");
    assert_eq!(fixture.api.bodies(&patch).len(), 1, "the dry run alone");
    fixture.state.distrust_revision("web-2"); // a change of another Pod was refused
    fixture.apply(begin()).await;
    let bodies = fixture.api.bodies(&patch);
    assert_eq!(bodies.len(), 2, "no other dry run: it would take as long");
    assert_eq!(bodies[1]["metadata"]["labels"]["x"], "1");
}

/// How often the update of a Pod has begun, and how many dry runs were sent.
fn updates_and_dry_runs(fixture: &Fixture, name: &str) -> (usize, usize) {
    let bodies = fixture.api.bodies(&format!("PATCH {PODS}/{name}"));
    let is_dry = |body: &&Value| body["metadata"]["labels"]["x"].is_null();
    let begins = |body: &&Value| !is_dry(body) && body["metadata"]["labels"]["y"].is_null();
    let begun = bodies.iter().filter(begins).count();
    (begun, bodies.iter().filter(is_dry).count())
}

#[tokio::test(start_paused = true)]
async fn passed_slow_dry_run_counts_for_its_revision_only() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    fixture.api.0.lock().trial = Duration::from_secs(2);
    fixture.apply(update(&pod)[0].clone()).await;
    assert_eq!(updates_and_dry_runs(&fixture, "web-0"), (0, 1));
    let mut other = update(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut other.pods[..] {
        Arc::make_mut(patch.dry_run_change.as_mut().unwrap()).revision = "web-3".into();
    }
    fixture.apply(other).await;
    assert_eq!(updates_and_dry_runs(&fixture, "web-0"), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn late_refusal_backoff_grows_with_slow_dry_runs() {
    let fixture = Fixture::new();
    fixture.pod("web-0");
    let pod = || -> Arc<Pod> {
        let object = fixture.api.0.lock().objects[&format!("{PODS}/web-0")].clone();
        Arc::new(serde_json::from_value(object).unwrap())
    };
    fixture.api.0.lock().trial = Duration::from_secs(2);
    for _ in 0..60 {
        let before = updates_and_dry_runs(&fixture, "web-0").0;
        fixture.apply(update(&pod())[0].clone()).await;
        if updates_and_dry_runs(&fixture, "web-0").0 > before {
            fixture
                .api
                .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-0", 403));
            fixture.apply(update(&pod())[1].clone()).await;
            fixture.api.refuse(None);
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let (begun, _) = updates_and_dry_runs(&fixture, "web-0");
    assert!((2..20).contains(&begun), "{begun} times in a minute");
}

#[tokio::test(start_paused = true)]
async fn dry_run_only_update_begins_with_next_plan() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    for begin in [update(&pod)[0].clone(), recreation(&pod)[0].clone()] {
        let dry_run_only = begin.pods.iter().map(|change| match change {
            PodChange::Patch(patch) => PodChange::Patch(PodPatch {
                dry_run_only: true,
                ..patch.clone()
            }),
            other => other.clone(),
        });
        let dry_run_only = SetPlan {
            pods: dry_run_only.collect(),
            ..SetPlan::default()
        };
        let begins = || updates_and_dry_runs(&fixture, "web-0").0;
        let (before, requests) = (begins(), fixture.api.requests().len());
        fixture.apply(dry_run_only).await;
        assert_eq!(begins(), before);
        assert_eq!(fixture.api.requests().len(), requests + 1, "a dry run");
        fixture.apply(begin).await;
        assert_eq!(
            (begins(), fixture.api.requests().len()),
            (before + 1, requests + 2)
        );
    }
}
