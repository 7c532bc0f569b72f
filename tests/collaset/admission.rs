//! What admission refuses, with which messages; which defaults it adds; and what passes unchanged.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::resourcecontext::ResourceContext;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::kubectl::Said;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

/// A namespace in which the server already judges CollaSets.
async fn scope(prefix: &str) -> Scope {
    let scope = Bed::shared().await.scope(prefix).await;
    // Only the dry run behind the validating webhook finds out that a Pod needs containers.
    let bad = set(
        "probe",
        json!({ "template": { "spec": { "containers": null } } }),
    );
    wait::until("CollaSets to be judged", async || {
        dry_run(&scope, &bad).await.is_err()
    })
    .await;
    scope
}

/// A valid CollaSet without Pods, with `part` merged into its spec.
pub fn set(name: &str, part: Value) -> Value {
    let mut spec = json!({
        "replicas": 0,
        "selector": { "matchLabels": { "app": "a" } },
        "template": {
            "metadata": { "labels": { "app": "a" } },
            "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
        },
    });
    json_patch::merge(&mut spec, &part);
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// A client for raw JSON objects, so that no Rust type drops or adds a field.
fn raw<K: kube::Resource<DynamicType = ()>>(scope: &Scope) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    Api::namespaced_with(scope.client.clone(), &scope.namespace, &resource)
}

fn object<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

async fn create(scope: &Scope, set: &Value) -> kube::Result<Value> {
    let created = raw::<CollaSet>(scope)
        .create(&PostParams::default(), &object(set))
        .await?;
    Ok(serde_json::to_value(created).unwrap())
}

async fn dry_run(scope: &Scope, set: &Value) -> kube::Result<Value> {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created = raw::<CollaSet>(scope).create(&dry, &object(set)).await?;
    Ok(serde_json::to_value(created).unwrap())
}

async fn patch(scope: &Scope, name: &str, patch: Value) -> kube::Result<()> {
    let patched = raw::<CollaSet>(scope)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map(drop)
}

async fn pods(scope: &Scope) -> usize {
    scope
        .pods()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .len()
}

#[tokio::test]
async fn stored_collaset_differs_from_written_only_by_defaults() {
    let scope = scope("defaults").await;
    let mut wanted = set(
        "web",
        json!({
            "namingStrategy": {},
            "template": {
                "metadata": { "annotations": { "note": "x" }, "creationTimestamp": null },
                "spec": {
                    "newer": { "deep": [1, { "a": null }] },
                    "containers": [{
                        "name": "c", "image": "i:1", "newer": true,
                        "securityContext": { "privileged": true },
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    }],
                    "initContainers": [{ "name": "side", "image": "s:1", "restartPolicy": "Always" }],
                },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }],
        }),
    );
    let tried = dry_run(&scope, &wanted).await.unwrap();
    let stored = create(&scope, &wanted).await.unwrap();
    wanted["spec"]["updateStrategy"] =
        json!({ "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} } });
    wanted["spec"]["namingStrategy"] = json!({ "podNamingSuffixPolicy": "Random" });
    assert_eq!(tried["spec"], wanted["spec"]);
    assert_eq!(stored["spec"], wanted["spec"]);
    assert_eq!(pods(&scope).await, 0, "nothing is made of a dry-run");
}

/// Runs `kubectl ARGS… -f FILE -n NAMESPACE` with the object.
pub async fn kubectl(scope: &Scope, args: &[&str], object: &Value) -> Said {
    let args = [args, &["-n", &scope.namespace]].concat();
    Bed::shared().await.ask_kubectl_about(&args, object).await
}

#[tokio::test]
async fn kubectl_dry_run_diff_and_apply_show_warnings() {
    let scope = scope("kubectl").await;
    let mut web = set("web", json!({}));
    let tried = kubectl(&scope, &["apply", "--dry-run=server", "-o", "json"], &web).await;
    assert!(tried.succeeded(), "{}", tried.text());
    assert!(
        tried.text().contains("InPlaceIfPossible"),
        "{}",
        tried.text()
    );
    let differs = kubectl(&scope, &["diff"], &web).await;
    assert_eq!(differs.code, Some(1), "{}", differs.text());
    let applied = kubectl(&scope, &["apply"], &web).await;
    assert!(applied.succeeded(), "{}", applied.text());
    let same = kubectl(&scope, &["diff"], &web).await;
    assert_eq!(same.code, Some(0), "{}", same.text());

    web["spec"]["updateStrategy"] =
        json!({ "rollingUpdate": { "byPartition": { "partition": 3 } } });
    web["spec"]["template"]["spec"]["containers"][0]["imgae"] = "typo".into();
    web["spec"]["template"]["spec"]["serviceAccountName"] = "not-yet".into();
    let warned = kubectl(&scope, &["apply"], &web).await.text();
    for warning in [
        "Warning: spec.updateStrategy.rollingUpdate.byPartition.partition: 3 is more than the 0 replicas",
        "Warning: spec.template: the API server refuses at present to create an object from it",
        "serviceaccount \"not-yet\" not found",
    ] {
        assert!(warned.contains(warning), "{warning} in {warned}");
    }
    web["spec"]["template"]["spec"]["serviceAccountName"] = "default".into();
    let warned = kubectl(&scope, &["apply"], &web).await.text();
    let typo = "Warning: spec.template: unknown field \"spec.containers[0].imgae\"";
    assert!(warned.contains(typo), "{warned}");
}

#[tokio::test]
async fn unusable_pod_or_pvc_template_is_refused_with_its_path() {
    let scope = scope("malformed").await;
    let container = |part: Value| {
        let mut container = json!({ "name": "c", "image": "i:1" });
        json_patch::merge(&mut container, &part);
        json!({ "template": { "spec": { "containers": [container] } } })
    };
    let pvc_template = |part: Value| {
        let mut pvc = json!({ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } });
        json_patch::merge(&mut pvc, &part);
        json!({ "volumeClaimTemplates": [pvc] })
    };
    for (index, (part, wanted)) in [
        (json!({ "template": { "spec": { "containers": null } } }), "spec.template.spec.containers: Required value"),
        (container(json!({ "name": "A b" })), "spec.template.spec.containers[0].name: Invalid value: \"A b\""),
        (container(json!({ "image": "" })), "spec.template.spec.containers[0].image: Required value"),
        (
            container(json!({ "volumeMounts": [{ "name": "none", "mountPath": "/a" }] })),
            "spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
        ),
        (container(json!({ "command": "one" })), "spec.template: Pod in version \"v1\" cannot be handled as a Pod"),
        (
            json!({ "template": { "metadata": { "labels": { "b": "c d" } } } }),
            "spec.template.metadata.labels: Invalid value: \"c d\"",
        ),
        (
            json!({ "template": { "spec": { "restartPolicy": "Perhaps" } } }),
            "spec.template.spec.restartPolicy: Unsupported value: \"Perhaps\"",
        ),
        (
            pvc_template(json!({ "spec": { "resources": { "requests": { "storage": "much" } } } })),
            "spec.volumeClaimTemplates[0]: PersistentVolumeClaim in version \"v1\" cannot be handled",
        ),
        (
            pvc_template(json!({ "spec": { "accessModes": ["Often"] } })),
            "spec.volumeClaimTemplates[0].spec.accessModes: Unsupported value: \"Often\"",
        ),
        (
            pvc_template(json!({ "spec": { "accessModes": [] } })),
            "spec.volumeClaimTemplates[0].spec.accessModes: is required",
        ),
        (
            json!({ "template": { "metadata": { "labels": { keys::INSTANCE_ID: "1" } } } }),
            "spec.template.metadata.labels[collaset.kusionstack.io/instance-id]: \"1\": is reserved",
        ),
        (
            json!({ "selector": { "matchLabels": { "app": "b" } } }),
            "spec.template.metadata.labels: \"app=a\": must match spec.selector, which is app=b",
        ),
        (json!({ "replicas": -1 }), "spec.replicas: -1: must be 0 or more"),
        (json!({ "replicas": 5_000_000_000_i64 }), "spec.replicas"),
        (json!({ "replicas": "x" }), "spec.replicas"),
    ]
    .into_iter()
    .enumerate()
    {
        let outcome = create(&scope, &set(&format!("s-{index}"), part)).await;
        let status = refusal(outcome);
        assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"), "{}", status.message);
        assert!(status.message.contains(wanted), "{wanted} in {}", status.message);
    }
    let both = set(
        &"a".repeat(57),
        json!({
            "template": { "spec": { "containers": null } }, "historyLimit": -1,
            "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" },
        }),
    );
    let message = refusal(create(&scope, &both).await).message;
    for part in [
        "metadata.name: ",
        "spec.historyLimit: -1",
        "spec.template.spec.containers: Required value",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
}

#[tokio::test]
async fn stored_collaset_may_change_except_its_selector() {
    let scope = scope("changes").await;
    create(&scope, &set("web", json!({}))).await.unwrap();
    let selector = json!({ "spec": {
        "selector": { "matchLabels": { "app": "b" } },
        "template": { "metadata": { "labels": { "app": "b" } } },
    } });
    let status = refusal(patch(&scope, "web", selector).await);
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let wanted = "spec.selector: \"app=b\": is immutable, it was app=a";
    assert!(status.message.contains(wanted), "{}", status.message);
    let context = json!({ "spec": { "scaleStrategy": { "context": "pool" } } });
    let status = refusal(patch(&scope, "web", context).await);
    let wanted = "spec.scaleStrategy.context: \"pool\": is immutable, it was \"\"";
    assert!(status.message.contains(wanted), "{}", status.message);

    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "i:2" }] } } } });
    patch(&scope, "web", image).await.unwrap();
    patch(
        &scope,
        "web",
        json!({ "metadata": { "annotations": { "note": "x" } } }),
    )
    .await
    .unwrap();
    let sets = raw::<CollaSet>(&scope);
    let params = PatchParams::default();
    let scaled = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    sets.patch_scale("web", &params, &scaled).await.unwrap();
    let negative = Patch::Merge(json!({ "spec": { "replicas": -1 } }));
    assert_eq!(
        refusal(sets.patch_scale("web", &params, &negative).await).code,
        422
    );
}

#[tokio::test]
async fn exceeded_quota_warns_and_does_not_refuse() {
    let scope = scope("quota").await;
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
        Api::namespaced(scope.client.clone(), &scope.namespace);
    quotas
        .create(&PostParams::default(), &object(&quota))
        .await
        .unwrap();
    wait::until("the quota to be enforced", async || {
        let pod: Pod = object(&json!({
            "metadata": { "name": "probe" }, "spec": { "containers": [{ "name": "c", "image": "i" }] },
        }));
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        scope.pods().create(&dry, &pod).await.is_err()
    })
    .await;
    let applied = kubectl(&scope, &["apply"], &set("web", json!({}))).await;
    assert!(applied.succeeded(), "{}", applied.text());
    assert!(
        applied.text().contains("exceeded quota: none"),
        "{}",
        applied.text()
    );
}

#[tokio::test]
async fn pool_may_be_shared_and_holds_each_id_once() {
    let scope = scope("pools").await;
    let pools = raw::<ResourceContext>(&scope);
    let entry =
        |id: i64, owner: &str| json!({ "id": id, "data": { "Owner": owner, "Newer": "x" } });
    let pool = |name: &str, contexts: Value| {
        object(&json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "ResourceContext",
            "metadata": { "name": name }, "spec": { "contexts": contexts },
        }))
    };
    let shared = pool("shared", json!([entry(0, "a"), entry(1, "b")]));
    pools.create(&PostParams::default(), &shared).await.unwrap();
    let twice = json!({ "spec": { "contexts": [entry(0, "a"), entry(0, "b")] } });
    let params = PatchParams::default();
    let status = refusal(pools.patch("shared", &params, &Patch::Merge(twice)).await);
    assert_eq!(status.code, 422);
    let wanted = "spec.contexts[1].id: 0: is the ID of spec.contexts[0] too";
    assert!(status.message.contains(wanted), "{}", status.message);
}

#[tokio::test]
async fn pending_pvc_of_a_waiting_pod_is_kept() {
    let scope = scope("pvcs").await;
    let pvcs: Api<PersistentVolumeClaim> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let labels = json!({ keys::CONTROL: keys::CONTROL_VALUE, keys::INSTANCE_ID: "0" });
    let pvc: PersistentVolumeClaim = object(&json!({
        "metadata": { "name": "data", "labels": labels },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }));
    pvcs.create(&PostParams::default(), &pvc).await.unwrap();
    let pod: Pod = object(&json!({
        "metadata": { "name": "waiting", "labels": labels },
        "spec": {
            "containers": [{ "name": "c", "image": "i" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
        },
    }));
    let pod = scope
        .pods()
        .create(&PostParams::default(), &pod)
        .await
        .unwrap();

    let status = refusal(pvcs.delete("data", &DeleteParams::default()).await);
    assert_eq!(status.code, 403);
    let wanted = "PersistentVolumeClaim data is Pending and Pod waiting mounts it (delete pending mounted pvc is not \
                  allowed); delete the Pod first";
    assert!(status.message.contains(wanted), "{}", status.message);
    let now = DeleteParams::default().grace_period(0);
    scope.pods().delete("waiting", &now).await.unwrap();
    scope.until_gone(&pod).await;
    pvcs.delete("data", &DeleteParams::default()).await.unwrap();
}
