#![allow(clippy::unwrap_used)]
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::api::keys;

#[test]
fn refused_write_says_the_message_of_the_status_alone() {
    let message = "admission webhook \"x\" denied the request: no";
    let status = kube::core::Status::failure(message, "Forbidden").with_code(403);
    let said = to_write_error(Error::Api(Box::new(status))).to_string();
    assert_eq!(said, message);
}

/// The requests to the API server: method, and path with query.
type Asked = Arc<Mutex<Vec<(Method, String)>>>;

/// A store over an API server whose responses `answer` computes from method and body.
fn store(
    answer: impl Fn(&Method, Value) -> Value + Send + Sync + 'static,
) -> (Arc<RuleStore>, Asked) {
    let asked = Asked::default();
    let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        let (head, body) = request.into_parts();
        log.lock().push((head.method.clone(), head.uri.to_string()));
        async move {
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let answer = answer(&head.method, body).to_string();
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        }
    });
    let client = Client::new(service, "default");
    let store = RuleStore::new(client, Arc::default(), CatchUpSignal::default());
    (store, asked)
}

fn key() -> RuleKey {
    RuleKey {
        uid: "rule".into(),
        namespace: "n".to_owned(),
        name: "web".to_owned(),
    }
}

/// The rule object with this status.
fn rule(status: Value) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "8" },
        "spec": { "selector": {}, "rules": [] },
        "status": status,
    })
}

#[tokio::test]
async fn dry_run_tells_whether_the_claims_would_be_kept() {
    let (keeps, asked) = store(|_, patch| rule(patch["status"].clone()));
    let claims = Claims::default();
    assert!(keeps.dry_run_claims(&key(), &claims).await.unwrap());
    assert_eq!(keeps.is_ledger_kept(&key()), Some(true));
    assert!(asked.lock()[0].1.contains("dryRun=All"), "{asked:?}");
    let (drops, _) = store(|_, _| rule(json!({})));
    let known = serde_json::from_value(rule(json!({}))).unwrap();
    drops.index().apply_rule(known);
    assert!(!drops.dry_run_claims(&key(), &claims).await.unwrap());
    assert_eq!(drops.is_ledger_kept(&key()), Some(false));
    let (drops_in_part, _) = store(|_, mut patch| {
        let ledger = patch["status"]["ledger"].as_object_mut().unwrap();
        ledger.remove("attempts");
        rule(patch["status"].clone())
    });
    assert!(!drops_in_part.dry_run_claims(&key(), &claims).await.unwrap());
}

#[tokio::test]
async fn dropped_ledger_is_reported_until_a_write_is_kept() {
    let holds = Arc::new(AtomicBool::new(false));
    let keeps = Arc::clone(&holds);
    let (store, _) = store(move |_, patch| match keeps.load(Ordering::Relaxed) {
        true => rule(patch["status"].clone()),
        false => rule(json!({})),
    });
    let known = serde_json::from_value(rule(json!({}))).unwrap();
    let mut changes = store.index().changes().subscribe();
    store.index().apply_rule(known);
    let mut told = || {
        let told = std::iter::from_fn(|| changes.try_recv().ok());
        told.filter(|change| matches!(change, Change::Rule(..)))
            .count()
    };
    told();
    let base = store.cached_snapshot(&key()).unwrap();
    for (is_kept, news) in [(true, 0), (false, 1), (false, 0), (true, 1), (true, 0)] {
        holds.store(is_kept, Ordering::Relaxed);
        let written = store.compare_and_swap(&key(), &base, &base.claims).await;
        assert_eq!(written.is_ok(), is_kept);
        assert_eq!(store.count_unkept_ledgers(), usize::from(!is_kept));
        assert_eq!(told(), news);
    }
    holds.store(false, Ordering::Relaxed);
    assert!(
        store
            .compare_and_swap(&key(), &base, &base.claims)
            .await
            .is_err()
    );
    store.index().replace_rules(Vec::new());
    assert_eq!(store.count_unkept_ledgers(), 0, "the rule is gone");
}

#[tokio::test]
async fn position_is_read_consistently_and_by_one_name() {
    let (store, asked) =
        store(|_, _| json!({ "metadata": { "resourceVersion": "41" }, "items": [] }));
    assert_eq!(store.read_present_position("n").await.unwrap(), 41);
    let asked = asked.lock();
    let (path, query) = asked[0].1.split_once('?').unwrap();
    assert!(path.ends_with("/api/v1/namespaces/n/pods"), "{path}");
    // With a resourceVersion, the API server may answer from an older state. With a limit, it may not ask etcd for
    // progress.
    for no in ["resourceVersion", "limit", "continue"] {
        assert!(!query.contains(no), "{query}");
    }
    assert!(query.contains("fieldSelector=metadata.name%3D"), "{query}");
}

/// Whether the cache has the claim after each of these statuses, applied in this order. Each status has the UID of the
/// rule object.
fn claimed(statuses: &[(&str, Value)]) -> Vec<Option<bool>> {
    let (store, _) = store(|_, _| Value::Null);
    let after = |(uid, status): &(&str, Value)| {
        let mut object = rule(status.clone());
        object["metadata"]["uid"] = json!(uid);
        let object = serde_json::from_value(object).unwrap();
        store.index().apply_rule(object);
        let key = RuleKey {
            uid: (*uid).into(),
            ..key()
        };
        let known = store.cached_snapshot(&key).unwrap();
        (known.fault.is_none()).then(|| known.claims.has_claim(&"pod".into()))
    };
    statuses.iter().map(after).collect()
}

#[tokio::test]
async fn claims_survive_dropped_ledger_until_rule_deletion_or_reset() {
    let time = "2026-01-01T00:00:00Z";
    let claim = json!({
        "podName": "web-1", "podUID": "pod", "operation": "Evict", "resourceVersion": "5", "attempt": 1, "since": time,
        "until": time,
    });
    let ledger = json!({ "formatVersion": 1, "watermark": "4", "attempts": 1, "claims": [claim] });
    let held = json!({ "ledger": ledger });
    let empty =
        json!({ "ledger": { "formatVersion": 1, "watermark": "9", "attempts": 1, "claims": [] } });
    let broken = json!({ "ledger": { "formatVersion": 1, "watermark": "x", "claims": [claim] } });
    let dropped = json!({ "expectedPods": 3 });
    let (yes, no) = (Some(true), Some(false));
    for (statuses, wanted) in [
        (
            vec![("rule", &held), ("rule", &dropped), ("rule", &dropped)],
            vec![yes, yes, yes],
        ),
        (
            vec![("rule", &held), ("rule", &dropped), ("rule", &empty)],
            vec![yes, yes, no],
        ),
        (vec![("rule", &held), ("other", &dropped)], vec![yes, no]),
        (
            vec![("rule", &held), ("rule", &broken), ("rule", &dropped)],
            vec![yes, None, no],
        ),
    ] {
        let statuses: Vec<_> = statuses
            .into_iter()
            .map(|(uid, s)| (uid, s.clone()))
            .collect();
        assert_eq!(claimed(&statuses), wanted, "{statuses:?}");
    }
}

#[tokio::test]
async fn metadata_only_pod_is_listed_as_unavailable() {
    let (store, _) = store(|_, _| json!({}));
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "1" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    store
        .index
        .apply_rule(serde_json::from_value(rule).unwrap());
    let pod = |name: &str, spec: Value| {
        let pod = json!({
            "metadata": {
                "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
            },
            "spec": spec,
        });
        store.index.apply_pod(serde_json::from_value(pod).unwrap());
    };
    let rules = Arc::clone(&store.cached_snapshot(&key()).unwrap().rules);
    pod(
        "a",
        json!({ "containers": [{ "name": "c", "image": "i" }] }),
    );
    assert_eq!(store.unreadable_pod(&rules), None);
    pod("b", json!({}));
    assert_eq!(store.unreadable_pod(&rules).as_deref(), Some("b"));
}
