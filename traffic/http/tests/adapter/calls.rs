//! What the calls carry, and how answers are read.

use serde_json::json;
use traffic::{Adapter, AdapterError, Presence};

use crate::double::{Double, Reply, changes, employer, member, pod};

#[tokio::test]
async fn observe_sends_service_and_pods() {
    let double = Double::start().await;
    double.reply(Reply::json(&json!({"members": []})));
    let adapter = double.adapter(json!({
        "forwardAnnotations": ["example.com/pool"], "forwardLabels": ["tier"],
    }));
    let observation = adapter.observe(&employer(), &[pod(1)]).await.unwrap();
    assert_eq!(observation, traffic::Observation::default());
    let asked = double.last();
    assert_eq!(asked.path, "/v1/observe");
    assert_eq!(asked.headers["content-type"], "application/json");
    assert_eq!(
        asked.json(),
        json!({
            "employer": {
                "kind": "Service", "namespace": "demo", "name": "web", "uid": "s-1",
                "labels": {"tier": "front"},
                "annotations": {
                    "resource-consist.kusionstack.io/drain-seconds": "9",
                    "example.com/pool": "blue",
                },
                "ports": [
                    {"group": "http", "port": 80, "targetPort": "web", "protocol": "TCP"},
                    {"group": "9000", "port": 9000, "targetPort": "9001", "protocol": "TCP"},
                ],
                "deleting": false,
            },
            "pods": [{
                "uid": "u-1", "name": "web-1", "addresses": ["10.0.0.1"], "node": "node-1",
                "labels": {"tier": "front"}, "on": true,
            }],
        })
    );
}

#[tokio::test]
async fn observed_members_keep_what_the_load_balancer_tells() {
    let double = Double::start().await;
    double.reply(Reply::json(&json!({
        "members": [
            {"group": "http", "address": "10.0.0.1", "port": 8080, "weight": 100,
             "podUid": "u-1", "podName": "web-1", "presence": "Draining",
             "drainUntil": "2026-01-02T03:04:05Z", "connections": 2},
            {"group": "http", "address": "fd00::1", "port": 8080, "weight": 1,
             "presence": "Pending", "a field of a newer endpoint": true},
        ],
        "unreadableGroups": [
            {"group": "9000", "error": {"message": "busy", "retryable": true}},
            {"group": "x", "error": {"message": ""}},
        ],
    })));
    let found = double
        .adapter(json!({}))
        .observe(&employer(), &[])
        .await
        .unwrap();
    let [first, second] = &found.registrations[..] else {
        panic!("{found:?}");
    };
    assert_eq!(first.member, member(1));
    let until = "2026-01-02T03:04:05Z".parse().ok();
    assert_eq!(first.presence, Presence::Draining { until });
    assert_eq!(first.connections, Some(2));
    assert_eq!(second.member.pod.uid, "");
    assert_eq!(
        (&second.presence, second.connections),
        (&Presence::Pending, None)
    );
    let busy = AdapterError::Transient("busy".into());
    let silent = AdapterError::Permanent("the endpoint gave no reason".into());
    assert_eq!(
        found.unreadable_groups,
        [("9000".into(), busy), ("x".into(), silent)]
    );
}

#[tokio::test]
async fn apply_sends_changes_and_reads_each_result() {
    let double = Double::start().await;
    double.reply(Reply::json(&json!({"results": [
        {"group": "http", "address": "10.0.0.1", "port": 8080, "presence": "Pending"},
        {"group": "http", "address": "10.0.0.2", "port": 8080,
         "error": {"message": "locked", "retryable": true}},
        {"group": "http", "address": "10.0.0.9", "port": 8080, "presence": "Serving"},
    ]})));
    let applied = double
        .adapter(json!({}))
        .apply(&employer(), &changes())
        .await;
    let info = |number: u8| {
        json!({
            "group": "http", "address": format!("10.0.0.{number}"), "port": 8080, "weight": 100,
            "podUid": format!("u-{number}"), "podName": format!("web-{number}"),
        })
    };
    let asked = double.last();
    assert_eq!(asked.path, "/v1/apply");
    assert_eq!(asked.json()["register"], json!([info(1)]));
    assert_eq!(asked.json()["drain"], json!([info(2)]));
    assert_eq!(asked.json()["deregister"], json!([info(3)]));
    assert_eq!(applied[&member(1).key], Ok(Presence::Pending));
    let locked = AdapterError::Transient("locked".into());
    assert_eq!(applied[&member(2).key], Err(locked));
    assert_eq!(
        applied.len(),
        2,
        "no result for member 3, and member 9 was not asked for"
    );
}

#[tokio::test]
async fn result_without_presence_and_error_is_unknown() {
    let double = Double::start().await;
    double.reply(Reply::json(&json!({"results": [
        {"group": "http", "address": "10.0.0.1", "port": 8080},
    ]})));
    let applied = double
        .adapter(json!({}))
        .apply(&employer(), &changes())
        .await;
    assert!(applied.is_empty());
}

/// A change without an effect that is told as a success would be repeated without a pause.
#[tokio::test]
async fn presence_that_contradicts_the_change_is_a_failure() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({}));
    for (presences, failed) in [
        (["Serving", "Draining", "Absent"], [false; 3]),
        (["Pending", "Absent", "Draining"], [false; 3]),
        (["Unknown", "Unknown", "Unknown"], [false; 3]),
        (["Absent", "Serving", "Serving"], [true; 3]),
        (["Draining", "Pending", "Pending"], [true; 3]),
    ] {
        let results = presences.iter().zip(1..).map(|(presence, number)| {
            json!({"group": "http", "address": format!("10.0.0.{number}"), "port": 8080,
                   "presence": presence})
        });
        let results: Vec<_> = results.collect();
        double.reply(Reply::json(&json!({ "results": results })));
        let applied = adapter.apply(&employer(), &changes()).await;
        for (number, failed) in (1..).zip(failed) {
            let result = &applied[&member(number).key];
            let is_failure = matches!(result, Err(AdapterError::Transient(_)));
            assert_eq!(is_failure, failed, "{presences:?}: {result:?}");
        }
    }
}

#[tokio::test]
async fn member_with_two_results_is_unknown() {
    let double = Double::start().await;
    let result = |presence: &str| json!({"group": "http", "address": "10.0.0.1", "port": 8080, "presence": presence});
    let results = ["Absent", "Serving", "Serving"].map(result);
    double.reply(Reply::json(&json!({ "results": results })));
    let applied = double
        .adapter(json!({}))
        .apply(&employer(), &changes())
        .await;
    assert!(applied.is_empty(), "{applied:?}");
}

#[tokio::test]
async fn each_request_has_another_id() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({}));
    for _ in 0..2 {
        double.reply(Reply::json(&json!({"members": []})));
        adapter.observe(&employer(), &[]).await.unwrap();
    }
    let asked = double.asked();
    assert_eq!(asked[0].headers["x-request-id"].len(), 32);
    assert_ne!(
        asked[0].headers["x-request-id"],
        asked[1].headers["x-request-id"]
    );
}

#[tokio::test]
async fn adapter_that_observes_never_applies() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({"control": "observes"}));
    let applied = adapter.apply(&employer(), &changes()).await;
    assert!(
        applied
            .values()
            .all(|result| matches!(result, Err(AdapterError::Permanent(_))))
    );
    assert_eq!((applied.len(), double.asked().len()), (3, 0));
}
