//! Admission reviews, and the handler behind each path.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use operating::admission::review::{Request, Verdict};
use operating::admission::routes::Route;
use operating::admission::{
    AdmissionContext, AdmissionSettings, MAX_RULES_PER_NAMESPACE, handlers,
};
use operating::cluster::events::EventRecorder;
use operating::cluster::index::{Index, NamespaceFacts};
use operating::cluster::kind::WatchedKind;
use operating::cluster::owner_sizes::LiveOwners;
use operating::cluster::presence::ObjectLookup;
use operating::cluster::rule_store::RuleStore;
use operating::ledger::commit::Ledgers;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::apiserver::{self, Asked, Mood, Stored};
use super::choice;

/// The first byte chooses the handler, the second the answers of the API server, and the rest is the body.
///
/// For every body the API server can read the verdict, a patch applies to the object, a denial has a reason, and the
/// server sends no request outside of the namespace of the review.
pub fn run(data: &[u8]) {
    let Some((route, data)) = choice(data, Route::ALL.len() as u8) else {
        return;
    };
    let Some((mood, body)) = choice(data, 10) else {
        return;
    };
    let Ok(request) = Request::parse(body) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        let (context, asked) = replica(mood);
        let all = handlers(&context);
        let (path, handler) = &all[usize::from(route) % all.len()];
        let deadline = Instant::now() + Duration::from_secs(9);
        let verdict = tokio::time::timeout_at(deadline, handler.review(&request, deadline)).await;
        if let Ok(verdict) = verdict {
            good(&verdict, &request, path);
        }
        let verdict = handler.fallback(&request, "the server is overloaded");
        good(&verdict, &request, path);
        let namespace = &request.namespace;
        for asked in asked.lock().iter() {
            let allowed = apiserver::is_allowed(asked, namespace);
            assert!(allowed, "{path} of {namespace}: {asked}");
        }
    });
}

fn good(verdict: &Verdict, request: &Request, path: &str) {
    let sent = verdict
        .to_json(&request.uid)
        .map(|json| serde_json::from_slice::<Value>(&json));
    let Ok(Ok(sent)) = sent else {
        panic!("{path}: {verdict:?} can't be sent");
    };
    assert_eq!(sent["response"]["uid"], request.uid.as_str());
    if !verdict.is_allowed() {
        assert!((400..600).contains(&verdict.code()), "{path}: {verdict:?}");
        assert!(!verdict.message().is_empty() && !verdict.reason().is_empty());
    }
    for warning in verdict.warnings() {
        // The API server drops a warning with such characters.
        assert!(!warning.contains(char::is_control), "{path}: {warning:?}");
    }
    if let Some(patch) = verdict.patch() {
        let object = request.object.as_deref().map(|raw| raw.get());
        let object = object.and_then(|raw| serde_json::from_str::<Value>(raw).ok());
        let Some(mut object) = object else {
            panic!("{path}: a patch of nothing, {patch}");
        };
        if let Err(error) = json_patch::patch(&mut object, patch) {
            panic!("{path}: {patch} of {object}: {error}");
        }
    }
}

/// A replica that knows a namespace with a rule, two serving Pods and their ReplicaSet.
fn replica(mood: u8) -> (Arc<AdmissionContext>, Asked) {
    let now = || Timestamp::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let rule = rule();
    let (client, asked) = apiserver::client(
        match mood % 5 {
            0 => Mood::Willing,
            1 => Mood::Refusing,
            2 => Mood::Empty,
            3 => Mood::Garbled,
            _ => Mood::Deaf,
        },
        Stored {
            rule: rule.clone(),
            namespace: namespace(),
            pod: pod("web-1", 100),
        },
    );
    let index = Arc::new(Index::default());
    let pods = [pod("web-1", 100), pod("web-2", 101)];
    index.replace_namespaces(vec![NamespaceFacts {
        name: "shop".to_owned(),
        uid: "n".to_owned(),
        version: 90,
        labels: [(
            "podtransitionrule.kusionstack.io/enforced".to_owned(),
            "true".to_owned(),
        )]
        .into(),
        terminating_since: None,
    }]);
    index.replace_rules(serde_json::from_value(rule).into_iter().collect());
    let pods = pods.into_iter().map(serde_json::from_value);
    index.replace_pods(pods.filter_map(Result::ok).collect(), 200);
    for kind in WatchedKind::OWNER_KINDS {
        index.replace_workloads(kind, Vec::new(), Vec::new(), 200);
    }
    let store = RuleStore::new(client.clone(), Arc::clone(&index), Default::default());
    let context = AdmissionContext {
        events: EventRecorder::new(client.clone(), now),
        object_lookup: ObjectLookup::new(client.clone()),
        client,
        owners: LiveOwners::new(&index),
        deleted_collasets: Default::default(),
        identity: Default::default(),
        index,
        objects: Arc::default(),
        traffic: Arc::default(),
        disruption_budgets: Arc::default(),
        ledgers: Ledgers::new(store),
        settings: AdmissionSettings {
            request_timeout: Duration::from_secs(60),
            grace_delete: mood >= 5,
            collasets: true,
            max_rules: MAX_RULES_PER_NAMESPACE,
            collaset_bytes: 1 << 20,
            endpoints: Default::default(),
        },
        now,
        earliest: now,
    };
    (Arc::new(context), asked)
}

fn namespace() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": "shop", "uid": "n", "resourceVersion": "90",
            "labels": { "podtransitionrule.kusionstack.io/enforced": "true" },
        },
    })
}

fn rule() -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "namespace": "shop", "name": "web", "uid": "r", "resourceVersion": "50", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    })
}

fn pod(name: &str, version: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string(),
            "labels": { "kusionstack.io/control": "true", "podopslifecycle.kusionstack.io/service-available": "1", "app": "web" },
        },
        "spec": { "containers": [{ "name": "app", "image": "web:1" }] },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{ "name": "app", "ready": true, "containerID": "c://1", "imageID": "i" }],
        },
    })
}
