#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::*;
use crate::admission::dry_run::fake_api_server::{FakeApiServer, deadline, denied};

impl FakeApiServer {
    async fn mutate(&self, request: &Request) -> Verdict {
        CollaSetMutator(Arc::clone(&self.context))
            .review(request, deadline())
            .await
    }

    async fn validate(&self, request: &Request) -> Verdict {
        CollaSetValidator(Arc::clone(&self.context))
            .review(request, deadline())
            .await
    }
}

/// A valid CollaSet with `part` merged into its spec.
fn collaset_json(part: Value) -> Value {
    let mut spec = json!({
        "replicas": 3,
        "selector": { "matchLabels": { "app": "a" } },
        "template": { "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [] } },
    });
    json_patch::merge(&mut spec, &part);
    json!({ "metadata": { "name": "web" }, "spec": spec })
}

fn request(old: Option<Value>, new: Value, dry_run: bool) -> Request {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": { "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "CollaSet" },
            "resource": { "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "collasets" },
            "name": "web",
            "namespace": "shop",
            "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
            "object": new,
            "oldObject": old,
            "dryRun": dry_run,
        },
    });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

fn create(part: Value) -> Request {
    request(None, collaset_json(part), false)
}

fn update(old: Value, new: Value) -> Request {
    request(Some(collaset_json(old)), collaset_json(new), false)
}

#[tokio::test]
async fn defaults_are_written_in_a_dry_run_too() {
    let api_server = FakeApiServer::accepting_all();
    for dry_run in [false, true] {
        let verdict = api_server
            .mutate(&request(None, collaset_json(json!({})), dry_run))
            .await;
        let patch = serde_json::to_value(verdict.patch().unwrap()).unwrap();
        let value = json!({ "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} } });
        assert_eq!(
            patch,
            json!([{ "op": "add", "path": "/spec/updateStrategy", "value": value }])
        );
    }
    // An empty policy has the same meaning as an absent policy.
    let empty = json!({
        "updateStrategy": { "podUpgradePolicy": "", "rollingUpdate": { "byLabel": {} } },
        "namingStrategy": { "podNamingSuffixPolicy": "" },
    });
    let verdict = api_server.mutate(&create(empty)).await;
    assert_eq!(
        verdict.patch().map(|patch| patch.0.len()),
        Some(2),
        "{}",
        verdict.message()
    );
    assert_eq!(
        api_server.request_count(),
        0,
        "the validating webhook sends the dry runs"
    );
}

#[tokio::test]
async fn all_errors_are_reported_before_schema_validation() {
    let causes = json!([{ "message": "Required value", "field": "spec.containers" }]);
    let api_server = FakeApiServer::refusing(422, "m", causes);
    let verdict = api_server
        .mutate(&create(json!({ "replicas": -1, "historyLimit": -1 })))
        .await;
    let want = "CollaSet web is invalid: spec.replicas: -1: must be 0 or more; spec.historyLimit: -1: must be 0 or more; \
                spec.template.spec.containers: Required value";
    assert_eq!(denied(&verdict), (422, "Invalid", want));
    // The schema reports the path of a value of the wrong type.
    assert!(
        api_server
            .mutate(&create(json!({ "replicas": "x" })))
            .await
            .is_allowed()
    );
}

#[tokio::test]
async fn new_or_changed_templates_are_created_in_dry_run() {
    let api_server = FakeApiServer::accepting_all();
    let template = json!({ "metadata": { "name": "data" }, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
    let verdict = api_server
        .validate(&create(json!({
            "volumeClaimTemplates": [template], "updateStrategy": { "maxUnavailable": 1 },
            "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } },
        })))
        .await;
    assert!(verdict.is_allowed());
    assert_eq!(
        verdict.warnings(),
        [
            "spec.template: unknown field \"spec.newer\"",
            "spec.volumeClaimTemplates[0]: unknown field \"spec.newer\""
        ]
    );
    let requests: Vec<_> = api_server.requests.lock().drain(..).collect();
    let query = "?dryRun=All&fieldValidation=Warn&fieldManager=operating";
    assert_eq!(
        requests[0].0,
        format!("/api/v1/namespaces/shop/pods{query}")
    );
    assert_eq!(
        requests[1].0,
        format!("/api/v1/namespaces/shop/persistentvolumeclaims{query}")
    );
    assert_eq!(requests[0].1["spec"]["volumes"][0]["name"], "data");

    let image = json!({ "template": { "spec": { "containers": [{ "name": "c" }] } } });
    for (old, new, count) in [
        (json!({}), json!({ "replicas": 4 }), 0),
        (json!({}), image, 1),
    ] {
        assert!(api_server.validate(&update(old, new)).await.is_allowed());
        assert_eq!(api_server.request_count(), count);
    }
}

#[tokio::test]
async fn answers_of_the_api_server_become_verdicts() {
    let causes =
        json!([{ "message": "Invalid value: \"\": no", "field": "spec.containers[0].image" }]);
    let verdict = FakeApiServer::refusing(422, "m", causes)
        .validate(&create(json!({})))
        .await;
    let want =
        "CollaSet web is invalid: spec.template.spec.containers[0].image: Invalid value: \"\": no";
    assert_eq!(denied(&verdict), (422, "Invalid", want));

    let quota = "pods \"dry-run-x\" is forbidden: exceeded quota: q";
    let verdict = FakeApiServer::refusing(403, quota, json!([]))
        .validate(&create(
            json!({ "updateStrategy": { "maxUnavailable": 1 } }),
        ))
        .await;
    assert!(verdict.is_allowed());
    assert_eq!(
        verdict.warnings(),
        [format!(
            "spec.template: the API server refuses at present to create an object from it, so it was not fully \
             checked: {quota}"
        )]
    );

    let verdict = FakeApiServer::refusing(500, "oh", json!([]))
        .validate(&create(json!({})))
        .await;
    let want = "the CollaSet can't be checked: the API server answers 500 to a dry-run, oh; try again in a moment";
    assert_eq!(denied(&verdict), (503, "ServiceUnavailable", want));
}

#[tokio::test]
async fn refusal_of_any_length_becomes_a_short_denial() {
    let wrong = |count: usize| -> Value {
        let cause = |n| {
            let field = format!("spec.containers[0].env[{n}].name");
            json!({ "message": format!("Invalid value: \"=\": {}", "no".repeat(40)), "field": field })
        };
        (0..count).map(cause).collect()
    };
    for (count, expected) in [
        (1_000, "only the first 100 errors are listed"),
        (33_000, "create an object from it to read the answer"),
    ] {
        let api_server = FakeApiServer::refusing(422, "m", wrong(count));
        let verdict = api_server.validate(&create(json!({}))).await;
        let (code, _, message) = denied(&verdict);
        assert_eq!(code, 422);
        assert!(message.contains(expected), "{message}");
        assert!(message.len() < 20_000, "{}", message.len());
    }
}

/// `count` valid PVC templates, each with another size.
fn pvc_templates(count: usize) -> Vec<Value> {
    let template = |n: usize| {
        let requests = json!({ "requests": { "storage": format!("{}Gi", n + 1) } });
        json!({ "metadata": { "name": format!("data-{n}") }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": requests } })
    };
    (0..count).map(template).collect()
}

fn with_pvc_templates(pvc_templates: &[Value]) -> Value {
    json!({ "volumeClaimTemplates": pvc_templates })
}

#[tokio::test]
async fn many_pvc_templates_cost_few_dry_runs() {
    let api_server = FakeApiServer::accepting_all();
    let wanted = "CollaSet web is invalid: spec.volumeClaimTemplates: has 1000 entries and may have 16: put the data on fewer \
                  volumes and mount parts of one with subPath";
    let verdict = api_server
        .validate(&create(with_pvc_templates(&pvc_templates(1_000))))
        .await;
    assert_eq!(verdict.code(), 422);
    assert!(
        verdict.message().starts_with(wanted),
        "{}",
        verdict.message()
    );
    assert_eq!(api_server.request_count(), 1 + 16);
    // The mutating webhook sends the same probes when it finds an error.
    let api_server = FakeApiServer::accepting_all();
    let verdict = api_server
        .mutate(&create(with_pvc_templates(&pvc_templates(1_000))))
        .await;
    assert_eq!((verdict.code(), api_server.request_count()), (422, 1 + 16));

    let api_server = FakeApiServer::accepting_all();
    let verdict = api_server
        .validate(&create(with_pvc_templates(&pvc_templates(16))))
        .await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    assert_eq!(api_server.request_count(), 1 + 16);
}

#[tokio::test]
async fn equal_pvc_templates_are_dry_run_once() {
    let api_server = FakeApiServer::accepting_all();
    let mut alike = pvc_templates(8);
    for template in &mut alike {
        template["spec"] = pvc_templates(1)[0]["spec"].clone();
    }
    let verdict = api_server
        .validate(&create(with_pvc_templates(&alike)))
        .await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    assert_eq!(api_server.request_count(), 2);
    // On an update, only changed templates are tried.
    let mut changed = alike.clone();
    changed[3]["spec"]["resources"]["requests"]["storage"] = "70Gi".into();
    let update = update(with_pvc_templates(&alike), with_pvc_templates(&changed));
    assert!(api_server.validate(&update).await.is_allowed());
    assert_eq!(api_server.request_count(), 2 + 2);
}

#[tokio::test]
async fn stored_set_with_too_many_pvc_templates_can_be_changed() {
    let stored = pvc_templates(40);
    let part = |pvc_templates: &[Value], image: &str| {
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": image }] } });
        json!({ "template": template, "volumeClaimTemplates": pvc_templates })
    };
    for (new, image, allowed) in [
        (stored.clone(), "b", true),
        (stored[..30].to_vec(), "a", true),
        (pvc_templates(41), "a", false),
    ] {
        let api_server = FakeApiServer::accepting_all();
        let update = update(part(&stored, "a"), part(&new, image));
        let verdict = api_server.validate(&update).await;
        assert_eq!(verdict.is_allowed(), allowed, "{}", verdict.message());
        assert!(
            api_server.request_count() <= 2,
            "{}",
            api_server.request_count()
        );
    }
    // A change of too many templates at once is refused.
    let mut all = stored.clone();
    for template in &mut all {
        template["metadata"]["labels"] = json!({ "a": "b" });
    }
    let api_server = FakeApiServer::accepting_all();
    let verdict = api_server
        .validate(&update(part(&stored, "a"), part(&all, "a")))
        .await;
    let expected = "spec.volumeClaimTemplates: more than 16 different entries are new or changed";
    assert!(
        verdict.message().contains(expected),
        "{}",
        verdict.message()
    );
    assert_eq!(api_server.request_count(), 1 + 16);
}

#[tokio::test]
async fn new_faults_beyond_the_hundredth_are_refused() {
    let api_server = FakeApiServer::accepting_all();
    let names = |count: usize| vec!["web-1"; count];
    let part = |count: usize| json!({ "scaleStrategy": { "podToDelete": names(count) } });
    let mut scaled = part(150);
    scaled["replicas"] = 5.into();
    let verdict = api_server.validate(&update(part(150), scaled)).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    let verdict = api_server.validate(&update(part(150), part(151))).await;
    assert_eq!(verdict.code(), 422);
    let expected = "spec.scaleStrategy.podToDelete[150]";
    assert!(
        verdict.message().contains(expected),
        "{}",
        verdict.message()
    );
}

#[tokio::test(start_paused = true)]
async fn dry_run_timeout_is_reported_before_deadline() {
    let until = deadline();
    let verdict = FakeApiServer::with_answer(None)
        .validate(&create(json!({})))
        .await;
    let want = "the CollaSet can't be checked: the API server gave no answer in time; try again in a moment";
    assert_eq!(denied(&verdict), (503, "ServiceUnavailable", want));
    assert!(Instant::now() < until);
}

#[tokio::test]
async fn stored_fault_does_not_block_other_changes() {
    let api_server = FakeApiServer::accepting_all();
    let invalid = json!({
        "historyLimit": -1,
        "scaleStrategy": { "podToDelete": ["a", "a"], "context": "A b" },
        "updateStrategy": { "rollingUpdate": { "steps": [{ "pause": { "duration": "" } }] } },
    });
    let mut scaled = invalid.clone();
    scaled["replicas"] = 5.into();
    assert!(
        api_server
            .validate(&update(invalid.clone(), scaled.clone()))
            .await
            .is_allowed()
    );
    scaled["historyLimit"] = (-2).into();
    let verdict = api_server.validate(&update(invalid.clone(), scaled)).await;
    let want = "CollaSet web is invalid: spec.historyLimit: -2: must be 0 or more";
    assert_eq!(denied(&verdict), (422, "Invalid", want));
    // A new object with the same error is refused.
    assert_eq!(api_server.validate(&create(invalid)).await.code(), 422);
}

#[tokio::test]
async fn only_a_changed_spec_is_judged() {
    let api_server = FakeApiServer::refusing(500, "oh", json!([]));
    let invalid = json!({ "selector": null, "template": null });
    assert!(
        api_server
            .validate(&update(invalid.clone(), invalid.clone()))
            .await
            .is_allowed()
    );
    let mut deleting = collaset_json(json!({ "replicas": -1 }));
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let verdict = api_server
        .validate(&request(Some(collaset_json(invalid)), deleting, false))
        .await;
    assert!(verdict.is_allowed());
    assert_eq!(api_server.request_count(), 0);
}

#[tokio::test]
async fn fallback_skips_defaults_and_denies_validation() {
    let api_server = FakeApiServer::accepting_all();
    let request = create(json!({}));
    let mutate = CollaSetMutator(Arc::clone(&api_server.context)).fallback(&request, "why");
    assert!(mutate.is_allowed() && mutate.patch().is_none());
    let validate =
        CollaSetValidator(api_server.context).fallback(&request, "the server is overloaded");
    let want = "the CollaSet can't be checked: the server is overloaded; try again in a moment";
    assert_eq!(denied(&validate), (503, "ServiceUnavailable", want));
}

#[tokio::test]
async fn omitted_replicas_keep_stored_value() {
    let api_server = FakeApiServer::accepting_all();
    let absent = json!({ "replicas": null });
    let verdict = api_server.mutate(&update(json!({}), absent.clone())).await;
    let patch = serde_json::to_value(verdict.patch().unwrap()).unwrap();
    let kept = json!({ "op": "add", "path": "/spec/replicas", "value": 3 });
    assert!(patch.as_array().unwrap().contains(&kept), "{patch}");
    assert!(
        verdict.warnings()[0]
            .starts_with("spec.replicas: is left out, so the stored value 3 is kept")
    );
    for request in [
        update(absent.clone(), absent.clone()),
        update(json!({}), json!({ "replicas": 0 })),
        create(absent),
    ] {
        let patch = api_server.mutate(&request).await;
        let patch = serde_json::to_value(patch.patch()).unwrap().to_string();
        assert!(!patch.contains("/spec/replicas"), "{patch}");
    }
}

#[tokio::test]
async fn unbounded_update_is_warned_when_introduced() {
    let warned = async |api_server: &FakeApiServer, request: Request| {
        let verdict = api_server.validate(&request).await;
        let mut warnings = verdict.warnings().iter();
        warnings.any(|w| w.starts_with("spec.updateStrategy.maxUnavailable: is not set"))
    };
    let api_server = FakeApiServer::accepting_all();
    let strategy = |strategy: Value| json!({ "updateStrategy": strategy });
    let bounded = || strategy(json!({ "maxUnavailable": "25%" }));
    assert!(warned(&api_server, create(json!({}))).await);
    assert!(warned(&api_server, update(bounded(), json!({}))).await);
    let single = json!({ "replicas": 1 });
    assert!(warned(&api_server, update(single, json!({ "replicas": 5 }))).await);
    for fine in [
        create(json!({ "replicas": 1 })),
        create(bounded()),
        create(strategy(json!({ "podUpgradePolicy": "Replace" }))),
        create(strategy(
            json!({ "rollingUpdate": { "steps": [{ "partition": 1 }] } }),
        )),
        create(strategy(json!({ "rollingUpdate": { "byLabel": {} } }))),
        update(json!({}), json!({ "replicas": 5 })),
    ] {
        assert!(!warned(&api_server, fine).await);
    }
    let rule = serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "rule", "resourceVersion": "1" },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "rules": [{ "name": "most", "availablePolicy": { "maxUnavailableValue": 1 } }],
        },
    }));
    api_server.context.index.replace_rules(vec![rule.unwrap()]);
    assert!(
        !warned(&api_server, create(json!({}))).await,
        "a rule limits the unavailable Pods"
    );
}

#[tokio::test]
async fn creation_warns_of_former_pvcs_with_other_template() {
    use crate::api::keys;
    use crate::cluster::objects::object_cache::ObjectKey;
    use crate::domain::collaset::observed::Pvc;
    use crate::domain::collaset::pvcs::hash::hash_template;

    let template = |size: &str| {
        json!({
            "metadata": { "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } },
        })
    };
    let api_server = FakeApiServer::accepting_all();
    let cache_pvc = |name: &str, of: &Value| {
        let labels = [
            (keys::PVC_TEMPLATE_NAME, "data".to_owned()),
            (keys::PVC_TEMPLATE_HASH, hash_template(of)),
        ];
        let pvc = Pvc {
            name: name.into(),
            uid: name.into(),
            labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Pvc::default()
        };
        let key = ObjectKey {
            namespace: "shop".into(),
            name: name.into(),
            uid: name.into(),
            version: 1,
            controller: String::new(),
        };
        api_server.context.objects.pvcs.apply(key, Some(pvc));
    };
    cache_pvc("web-data-x7b2k", &template("1Gi"));
    cache_pvc("other-data-x7b2k", &template("1Gi"));
    let warned = async |request: Request| {
        let verdict = api_server.validate(&request).await;
        let warnings = verdict.warnings().iter();
        let warning =
            "a former CollaSet of this name has left PVCs of other templates: web-data-x7b2k.";
        warnings.filter(|w| w.contains(warning)).count()
    };
    let with = |size: &str| json!({ "volumeClaimTemplates": [template(size)] });
    assert_eq!(warned(create(with("2Gi"))).await, 1);
    assert_eq!(warned(create(with("1024Mi"))).await, 0);
    assert_eq!(warned(update(with("1Gi"), with("2Gi"))).await, 0);
}
