//! Claims in the status of a rule, as another version of the server or a user may have written them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use http::Response;
use kube::Client;
use kube::client::Body;
use operating::api::podtransitionrule::{Ledger, PodTransitionRule};
use operating::cluster::index::Index;
use operating::cluster::rule_store::RuleStore;
use operating::domain::rules::SkipAnnotation;
use operating::ledger::protocol::ClaimOperation;
use operating::ledger::store::{LedgerStore, RuleKey, RuleSnapshot};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::read;

/// Reading and writing a ledger loses no Pod's claim and lowers no number, and a written ledger is written the same
/// again.
pub fn run(data: &[u8]) {
    let Some(ledger) = read::<Value>(data) else {
        return;
    };
    let Some((object, stored)) = stored_as(&ledger) else {
        return;
    };
    let snapshot = RuleSnapshot::from_rule_object(&object, None, SkipAnnotation::default());
    let claims = &snapshot.claims;
    for claim in &stored.claims {
        assert!(
            claims.has_claim(&claim.pod_uid.as_str().into()),
            "{claim:?}"
        );
        assert!(i128::from(claims.attempts) >= i128::from(claim.attempt));
    }
    assert!(i128::from(claims.attempts) >= i128::from(stored.attempts));
    if let Ok(watermark) = stored.watermark.parse::<u64>() {
        assert!(claims.watermark >= watermark);
    }
    let sent = written(&snapshot);
    let Some((again, written)) = sent.as_ref().and_then(stored_as) else {
        panic!("it is not written so that it can be read: {claims:?}");
    };
    for of in claims_by_operation(&stored).keys() {
        assert!(
            claims_by_operation(&written).contains_key(of),
            "{of:?} is gone"
        );
    }
    let again = RuleSnapshot::from_rule_object(&again, None, SkipAnnotation::default());
    assert!(again.claims.claims.keys().eq(claims.claims.keys()));
    // Times are stored in seconds, so only a ledger that was written once is written the same again.
    assert_eq!(self::written(&again), sent);
}

/// The stored operations for one Pod, the unknown ones last, and their number.
fn claims_by_operation(ledger: &Ledger) -> BTreeMap<(String, ClaimOperation), usize> {
    let mut all = BTreeMap::new();
    for claim in &ledger.claims {
        let operation = ClaimOperation::parse(&claim.operation);
        *all.entry((claim.pod_uid.clone(), operation)).or_default() += 1;
    }
    all
}

fn stored_as(ledger: &Value) -> Option<(PodTransitionRule, Ledger)> {
    let object: PodTransitionRule = serde_json::from_value(json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "r", "resourceVersion": "50", "generation": 1 },
        "spec": { "selector": {}, "rules": [] },
        "status": { "ledger": ledger },
    }))
    .ok()?;
    let stored = object.status.as_ref()?.ledger.clone()?;
    Some((object, stored))
}

/// The ledger that a replica writes with these claims.
fn written(snapshot: &RuleSnapshot) -> Option<Value> {
    let sent = Arc::new(Mutex::new(None));
    let body_slot = Arc::clone(&sent);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let body_slot = Arc::clone(&body_slot);
        async move {
            let body = request.into_body().collect_bytes().await;
            *body_slot.lock() = body.ok().and_then(|body| read::<Value>(&body));
            Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec())))
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().ok()?;
    runtime.block_on(async {
        let client = Client::new(service, "default");
        let store = RuleStore::new(client, Arc::new(Index::default()), Default::default());
        let key = RuleKey {
            uid: "r".into(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let _ = store
            .compare_and_swap(&key, snapshot, &snapshot.claims)
            .await;
    });
    let body = sent.lock().take()?;
    body.pointer("/status/ledger").cloned()
}
