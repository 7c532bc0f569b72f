#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use http::Response;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::domain::pod::Pod;

/// An API server that answers GETs of these paths, answers 404 to all others, and remembers the requests.
#[derive(Clone, Default)]
struct Fake {
    answers: Arc<Mutex<HashMap<String, (u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn answer(&self, path: &str, code: u16, body: Value) {
        self.answers.lock().insert(path.to_owned(), (code, body));
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }

    fn client(&self) -> Client {
        let fake = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let known = fake.answers.lock().get(&path).cloned();
            fake.asked.lock().push(path);
            let (code, mut body) = known.unwrap_or_else(|| (404, missing(request.uri().path())));
            if code >= 400 {
                body["kind"] = json!("Status");
                body["apiVersion"] = json!("v1");
                body["status"] = json!("Failure");
                body["code"] = json!(code);
            }
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            async move { Response::builder().status(code).body(body) }
        });
        Client::new(service, "default")
    }
}

/// The response of the API server for an object that does not exist.
fn missing(path: &str) -> Value {
    let mut parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
    if parts.last() == Some(&"scale") {
        parts.pop();
    }
    let name = parts.pop().unwrap_or_default();
    let kind = parts.pop().unwrap_or_default();
    let group = parts.get(1).copied().unwrap_or_default();
    let details = json!({ "name": name, "group": group, "kind": kind });
    json!({ "reason": "NotFound", "message": "not found", "details": details })
}

struct Rig {
    fake: Fake,
    client: Client,
    index: Arc<Index>,
    owners: Arc<LiveOwners>,
}

fn rig(pods: u32, owner: Value) -> Rig {
    let (fake, index) = (Fake::default(), Arc::new(Index::default()));
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    index.apply_rule(serde_json::from_value(rule).unwrap());
    let rig = Rig {
        client: fake.client(),
        owners: LiveOwners::new(&index),
        fake,
        index,
    };
    for n in 0..pods {
        rig.pod(&format!("web-{n}"), &owner);
    }
    rig
}

impl Rig {
    /// Adds a Pod with this controller.
    fn pod(&self, name: &str, owner: &Value) {
        let mut owner = owner.clone();
        owner["controller"] = json!(true);
        let pod = json!({ "metadata": {
            "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
            "labels": { "kusionstack.io/control": "true" }, "ownerReferences": [owner],
        } });
        self.index
            .apply_pod(serde_json::from_value::<Pod>(pod).unwrap());
    }

    async fn refresh(&self) -> Result<(), OwnerReadError> {
        let key = RuleKey {
            uid: Uid::from("rule"),
            namespace: "n".to_owned(),
            name: "web".to_owned(),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        self.owners
            .refresh_owners(&self.client, &key, MAX_READING_AGE, deadline)
            .await
    }

    fn expected(&self) -> u32 {
        self.index
            .read_state()
            .rule("n", "web")
            .unwrap()
            .tally
            .expected()
    }

    fn unknown(&self) -> usize {
        let state = self.index.read_state();
        state
            .rule("n", "web")
            .unwrap()
            .tally
            .unknown_owners()
            .count()
    }
}

fn rollout() -> Value {
    json!({ "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": "u" })
}

const GROUP: &str = "/apis/argoproj.io/v1alpha1";
const SCALE: &str = "/apis/argoproj.io/v1alpha1/namespaces/n/rollouts/web/scale";

fn serve_rollouts(fake: &Fake, scale: bool) {
    let mut resources = vec![json!({ "name": "rollouts", "kind": "Rollout", "namespaced": true })];
    if scale {
        resources.push(json!({ "name": "rollouts/scale", "kind": "Scale", "namespaced": true }));
    }
    fake.answer(
        GROUP,
        200,
        json!({ "groupVersion": "argoproj.io/v1alpha1", "resources": resources }),
    );
}

fn scale(uid: &str, replicas: u32) -> Value {
    json!({ "metadata": { "name": "web", "uid": uid }, "spec": { "replicas": replicas } })
}

#[tokio::test(start_paused = true)]
async fn owner_of_unwatched_kind_is_read_once_a_second() {
    let rig = rig(2, rollout());
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("u", 10));
    rig.refresh().await.unwrap();
    assert_eq!(rig.expected(), 10);
    assert_eq!(rig.fake.asked(), [GROUP, SCALE]);
    rig.fake.answer(SCALE, 200, scale("u", 20));
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.fake.asked().len()), (10, 0));
    tokio::time::sleep(MAX_READING_AGE).await;
    rig.refresh().await.unwrap();
    assert_eq!(rig.expected(), 20);
    assert_eq!(rig.fake.asked(), [SCALE]);
}

#[tokio::test]
async fn object_with_owner_name_but_other_uid_is_ignored() {
    let rig = rig(2, rollout());
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("other", 10));
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.unknown()), (2, 0));
}

#[tokio::test]
async fn kind_without_scale_and_unserved_kind_count_by_living_pods() {
    for served in [true, false] {
        let rig = rig(2, rollout());
        if served {
            serve_rollouts(&rig.fake, false);
        }
        rig.refresh().await.unwrap();
        assert_eq!((rig.expected(), rig.unknown()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn scale_that_a_kind_gets_later_is_found() {
    let rig = rig(2, rollout());
    serve_rollouts(&rig.fake, false);
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.unknown()), (2, 1));
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("u", 10));
    tokio::time::sleep(MAX_READING_AGE).await;
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.unknown()), (10, 0));
}

#[tokio::test]
async fn failed_read_is_an_error_that_names_the_owner() {
    let not_served = "the API server does not serve /apis/argoproj.io/v1alpha1/namespaces/n/rollouts/web/scale now";
    let answered = |code: u16| format!("HTTP {code} at {SCALE}");
    for (code, cause) in [
        (403, answered(403)),
        (500, answered(500)),
        (504, answered(504)),
        (404, not_served.to_owned()),
    ] {
        let rig = rig(2, rollout());
        serve_rollouts(&rig.fake, true);
        rig.fake
            .answer(SCALE, code, json!({ "reason": "", "message": "a text" }));
        let error = rig.refresh().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("Rollout web can't be read: {cause}")
        );
    }
}

#[tokio::test]
async fn unspecific_not_found_does_not_prove_owner_absent() {
    let of_another = json!({ "name": "other", "group": "argoproj.io", "kind": "rollouts" });
    for details in [json!({}), of_another] {
        let rig = rig(2, rollout());
        serve_rollouts(&rig.fake, true);
        let said = json!({ "reason": "NotFound", "message": "no", "details": details });
        rig.fake.answer(SCALE, 404, said);
        assert!(rig.refresh().await.is_err(), "{details}");
    }
}

#[tokio::test]
async fn bare_404_of_served_kind_leaves_owner_unknown() {
    let set =
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set" });
    let rig = rig(2, set);
    let resources = json!([{ "name": "statefulsets", "kind": "StatefulSet", "namespaced": true }]);
    let list = json!({ "groupVersion": "apps/v1", "resources": resources });
    rig.fake.answer("/apis/apps/v1", 200, list);
    let path = "/apis/apps/v1/namespaces/n/statefulsets/web";
    rig.fake.answer(
        path,
        404,
        json!({ "reason": "", "message": "404 page not found" }),
    );
    assert!(rig.refresh().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn scale_that_a_kind_loses_says_nothing_of_its_objects() {
    let rig = rig(2, rollout());
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("u", 10));
    rig.refresh().await.unwrap();
    // A CustomResourceDefinition without `scale` gives this response, which names the object.
    serve_rollouts(&rig.fake, false);
    rig.fake.answer(SCALE, 404, missing(SCALE));
    tokio::time::sleep(MAX_READING_AGE).await;
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.unknown()), (2, 1));
}

#[tokio::test]
async fn uncached_replica_set_and_deployment_are_read_live() {
    let set =
        json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "set" });
    let rig = rig(2, set);
    let root = json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "root", "controller": true }]);
    let (set, root_path) = (
        "/apis/apps/v1/namespaces/n/replicasets/web-1",
        "/apis/apps/v1/namespaces/n/deployments/web",
    );
    let metadata = json!({
        "namespace": "n", "name": "web-1", "uid": "set", "resourceVersion": "5", "ownerReferences": root,
    });
    rig.fake.answer(
        set,
        200,
        json!({ "metadata": metadata, "spec": { "replicas": 2 } }),
    );
    let metadata =
        json!({ "namespace": "n", "name": "web", "uid": "root", "resourceVersion": "6" });
    rig.fake.answer(
        root_path,
        200,
        json!({ "metadata": metadata, "spec": { "replicas": 20 } }),
    );
    rig.refresh().await.unwrap();
    assert_eq!(rig.expected(), 20);
    assert_eq!(rig.fake.asked(), [set, root_path]);
    rig.refresh().await.unwrap();
    assert_eq!(rig.fake.asked(), [""; 0]);
}

#[tokio::test]
async fn owner_with_more_pods_than_its_cached_number_is_read() {
    let set =
        json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set" });
    let rig = rig(3, set);
    let object = |replicas: u32, version: &str| {
        json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "set", "resourceVersion": version },
            "spec": { "replicas": replicas },
        })
    };
    let cached = |replicas, version: &str| {
        let (_, uid, workload) =
            workload_json::parse_workload(WatchedKind::StatefulSet, object(replicas, version))
                .unwrap();
        rig.index.set_workload("n", uid, Some(workload));
    };
    cached(3, "5");
    rig.refresh().await.unwrap();
    assert_eq!(rig.fake.asked(), [""; 0]);
    // The watch has delivered the scale-in, but no later event.
    cached(2, "6");
    let path = "/apis/apps/v1/namespaces/n/statefulsets/web";
    rig.fake.answer(path, 200, object(100, "9"));
    rig.refresh().await.unwrap();
    assert_eq!(
        (rig.expected(), rig.fake.asked()),
        (100, vec![path.to_owned()])
    );
    cached(50, "8");
    assert_eq!(rig.expected(), 100);
    cached(3, "10");
    assert_eq!(rig.expected(), 3);
}

#[tokio::test]
async fn path_escaping_names_are_never_requested() {
    for (version, name) in [
        ("argoproj.io/v1alpha1", "../../../../api/v1/secrets"),
        ("argoproj.io/v1alpha1", "web?x="),
        ("../v1", "web"),
        ("a/b/c", "web"),
        ("argoproj.io/v1alpha1", ".."),
    ] {
        let mut owner = rollout();
        (owner["apiVersion"], owner["name"]) = (json!(version), json!(name));
        let rig = rig(2, owner);
        rig.refresh().await.unwrap();
        assert_eq!(rig.fake.asked(), [""; 0], "{version} {name}");
        assert_eq!(rig.expected(), 2);
    }
}

/// A reference to the UID of [`rollout`] under another name.
fn forged(name: &str) -> Value {
    let mut owner = rollout();
    owner["name"] = json!(name);
    owner
}

#[tokio::test]
async fn reference_with_a_forged_name_does_not_hide_the_owner() {
    for forged in [forged("other"), forged("a/b"), {
        json!({ "apiVersion": "foo/v1", "kind": "Foo", "name": "web", "uid": "u" })
    }] {
        let rig = rig(1, forged);
        serve_rollouts(&rig.fake, true);
        rig.fake.answer(SCALE, 200, scale("u", 10));
        rig.refresh().await.unwrap();
        assert_eq!(rig.expected(), 1);
        // Without any pause, the reading by the forged reference does not count for this reference.
        rig.pod("web-own", &rollout());
        rig.refresh().await.unwrap();
        assert_eq!((rig.expected(), rig.unknown()), (11, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn found_owner_is_reread_by_same_reference() {
    let rig = rig(1, rollout());
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("u", 10));
    rig.refresh().await.unwrap();
    for n in 0..3 {
        rig.pod(&format!("forged-{n}"), &forged("other"));
    }
    rig.fake.asked();
    tokio::time::sleep(MAX_READING_AGE).await;
    rig.refresh().await.unwrap();
    assert_eq!(rig.fake.asked(), [SCALE]);
    assert_eq!(rig.expected(), 13);
}

#[tokio::test]
async fn owner_is_gone_when_no_reference_leads_to_it() {
    let rig = rig(2, rollout());
    rig.pod("forged", &forged("other"));
    serve_rollouts(&rig.fake, true);
    rig.refresh().await.unwrap();
    assert_eq!((rig.expected(), rig.unknown()), (3, 0));
    assert_eq!(rig.fake.asked().len(), 3);
}

#[tokio::test]
async fn too_many_owner_references_fail_unless_owner_is_found() {
    let rig = rig(0, rollout());
    for n in 0..20 {
        rig.pod(&format!("forged-{n:02}"), &forged(&format!("a{n:02}")));
    }
    serve_rollouts(&rig.fake, true);
    rig.fake.answer(SCALE, 200, scale("u", 10));
    let error = rig.refresh().await.unwrap_err().to_string();
    assert!(error.contains("more than 16 different objects"), "{error}");
    assert_eq!(rig.fake.asked().len(), 1 + MAX_REFERENCES);
    // Most Pods name the right object.
    rig.pod("web-1", &rollout());
    rig.pod("web-2", &rollout());
    rig.refresh().await.unwrap_err(); // the failure is kept for one second
    let late = rig.owners.fetch_owner(&rig.client, "n", &"u".into()).await;
    assert_eq!((late, rig.expected()), (Ok(()), 30));
}

#[tokio::test]
async fn owner_without_replicas_is_reported_with_its_field() {
    let rig = rig(2, rollout());
    serve_rollouts(&rig.fake, true);
    let message =
        "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist";
    rig.fake.answer(
        SCALE,
        500,
        json!({ "reason": "InternalError", "message": message }),
    );
    let unset = OwnerReadError::Unset {
        owner: "Rollout web".to_owned(),
        field: "spec.replicas".to_owned(),
    };
    assert_eq!(rig.refresh().await, Err(unset));
    let names = || {
        let state = rig.index.read_state();
        let tally = &state.rule("n", "web").unwrap().tally;
        tally
            .unset_owners()
            .map(|o| o.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!((names(), rig.unknown()), (vec!["web".to_owned()], 0));
    rig.fake.answer(SCALE, 200, scale("u", 10));
    let late = rig.owners.fetch_owner(&rig.client, "n", &"u".into()).await;
    assert_eq!((late, rig.expected(), names().len()), (Ok(()), 10, 0));
}

#[tokio::test]
async fn all_unreadable_owners_are_reported() {
    let rig = rig(1, rollout());
    serve_rollouts(&rig.fake, true);
    let mut other = rollout();
    (other["name"], other["uid"]) = (json!("api"), json!("v"));
    rig.pod("api-0", &other);
    for path in [SCALE, &SCALE.replace("/web/", "/api/")] {
        rig.fake.answer(path, 403, json!({ "reason": "Forbidden" }));
    }
    let rule = rig.index.read_state().rule("n", "web").unwrap().rule_key();
    let deadline = Instant::now() + Duration::from_secs(10);
    let all = rig
        .owners
        .refresh_all_owners(&rig.client, &rule, MAX_READING_AGE, deadline);
    let mut all: Vec<_> = all.await.iter().map(ToString::to_string).collect();
    all.sort();
    assert!(
        all.len() == 2 && all[0].starts_with("Rollout api can't be read"),
        "{all:?}"
    );
    assert!(rig.refresh().await.is_err());
}
