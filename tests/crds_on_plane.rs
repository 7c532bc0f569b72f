//! The generated CRDs on a real API server: what they refuse and with which words, and that objects which were stored
//! before them stay readable and updatable.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use operating::api::crd;
use operating::api::podtransitionrule::{
    AskedPod, Claim, ClaimedContainer, Detail as PodDetail, Ledger, PodTransitionRuleStatus,
    RejectInfo, RuleState, WaitReason, WebhookStatus,
};
use operating::api::size_limits::{
    self, MAX_DETAILS_BYTES, MAX_LEDGER_BYTES, MAX_REASONS_BYTES, MAX_SPEC_BYTES, MAX_STATES_BYTES,
};
use operating::domain::inplace::ContainerBefore;
use operating::ledger::commit::claim_bytes;
use operating::ledger::store::ClaimDetail;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::wait;

/// The definitions have groups of their own, which keep them apart from the definitions in other tests.
const GROUP: &str = "crds.test.kusionstack.io";
const FULL: &str = "full.test.kusionstack.io";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    kind: String,
    metadata_name: Option<String>,
    stored: Option<Value>,
    create: Option<Value>,
    patch: Option<Value>,
    subresource: Option<String>,
    refused: Option<String>,
}

#[tokio::test]
async fn schema_refuses_new_invalid_objects_and_keeps_stored_ones() {
    let plane = testbed::plane::shared().await.unwrap();
    let (client, namespace) = (
        plane.client().unwrap(),
        plane.namespace("crds").await.unwrap(),
    );
    let mut cases: serde_norway::Value =
        serde_norway::from_str(include_str!("crds/cases.yaml")).unwrap();
    cases.apply_merge().unwrap();
    let cases: Vec<Case> = serde_norway::from_value(cases).unwrap();

    define(&client, GROUP, open).await;
    for (index, case) in cases.iter().enumerate() {
        let Some(stored) = &case.stored else { continue };
        let api = api(&client, &namespace, &case.kind);
        let object = object(case, index, stored);
        // The definition is served a moment after it is stored.
        wait::value("the definition to be served", async || {
            api.create(&PostParams::default(), &object).await.ok()
        })
        .await;
        if stored.get("status").is_some() {
            let patch = Patch::Merge(json!({ "status": stored["status"] }));
            api.patch_status(&name(case, index), &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
    }
    define(&client, GROUP, |_| {}).await;
    for kind in crd::all_crds().iter().map(|c| &c.spec.names.kind) {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let api = api(&client, &namespace, kind);
        let probe: DynamicObject =
            serde_json::from_value(json!({ "metadata": { "name": "probe" }, "spec": 1 })).unwrap();
        wait::value("the definition to refuse", async || {
            api.create(&dry, &probe).await.err()
        })
        .await;
    }

    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let outcome = run(&api(&client, &namespace, &case.kind), case, index).await;
        let fine = match (&outcome, &case.refused) {
            (Ok(_), None) => true,
            (Err(Error::Api(status)), Some(text)) => {
                status.code == 422 && status.message.contains(text)
            }
            _ => false,
        };
        if !fine {
            wrong.push(format!(
                "{}: {outcome:?}, want {:?}",
                case.name, case.refused
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    readable(&client, &namespace).await;
}

async fn run(api: &Api<DynamicObject>, case: &Case, index: usize) -> Result<(), Error> {
    if let Some(create) = &case.create {
        let created = api
            .create(&PostParams::default(), &object(case, index, create))
            .await;
        if case.patch.is_none() {
            assert_stored(create, &serde_json::to_value(created?).unwrap(), &case.name);
            return Ok(());
        }
        created.expect("what is created before the patch is good");
    }
    let (params, patch) = (
        PatchParams::default(),
        Patch::Merge(case.patch.as_ref().expect("a patch")),
    );
    let name = name(case, index);
    match case.subresource.as_deref() {
        Some("status") => api.patch_status(&name, &params, &patch).await?,
        _ => api.patch(&name, &params, &patch).await?,
    };
    Ok(())
}

/// The API server stores everything that was sent, except nulls in fields that the schema knows.
fn assert_stored(sent: &Value, stored: &Value, case: &str) {
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            for (key, value) in sent.iter().filter(|(_, v)| !v.is_null()) {
                assert_stored(
                    value,
                    stored
                        .get(key)
                        .unwrap_or_else(|| panic!("{case}: {key} was pruned")),
                    case,
                );
            }
        }
        (Value::Array(sent), Value::Array(stored)) => sent
            .iter()
            .zip(stored)
            .for_each(|(a, b)| assert_stored(a, b, case)),
        (sent, stored) => assert_eq!(sent, stored, "{case}"),
    }
}

/// Every stored object can be read as its type.
async fn readable(client: &Client, namespace: &str) {
    use operating::api::{
        collaset, operationjob, poddecoration, podtransitionrule, resourcecontext,
    };
    async fn list<K: serde::de::DeserializeOwned>(client: &Client, namespace: &str, kind: &str) {
        let objects = api(client, namespace, kind)
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        assert!(!objects.items.is_empty());
        for object in objects {
            let value = serde_json::to_value(object).unwrap();
            serde_json::from_value::<K>(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"));
        }
    }
    list::<collaset::CollaSet>(client, namespace, "CollaSet").await;
    list::<operationjob::OperationJob>(client, namespace, "OperationJob").await;
    list::<poddecoration::PodDecoration>(client, namespace, "PodDecoration").await;
    list::<podtransitionrule::PodTransitionRule>(client, namespace, "PodTransitionRule").await;
    list::<resourcecontext::ResourceContext>(client, namespace, "ResourceContext").await;
}

/// Removes every bound from a schema, like the schemas from before this project.
fn open(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let anything = JSONSchemaProps {
            type_: Some("object".into()),
            x_kubernetes_preserve_unknown_fields: Some(true),
            ..JSONSchemaProps::default()
        };
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: Some(anything),
        });
    }
}

async fn define(client: &Client, group: &str, change: impl Fn(&mut CustomResourceDefinition)) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut crd in crd::all_crds() {
        change(&mut crd);
        crd.spec.group = group.into();
        crd.metadata.name = Some(format!("{}.{group}", crd.spec.names.plural));
        let name = crd.metadata.name.clone().unwrap();
        let params = PatchParams::apply("crds-test").force();
        definitions
            .patch(&name, &params, &Patch::Apply(&crd))
            .await
            .unwrap();
    }
}

fn api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    api_of(GROUP, client, namespace, kind)
}

fn api_of(group: &str, client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let plural = format!("{}s", kind.to_lowercase());
    let resource = ApiResource {
        group: group.into(),
        version: "v1alpha1".into(),
        api_version: format!("{group}/v1alpha1"),
        kind: kind.into(),
        plural,
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

fn name(case: &Case, index: usize) -> String {
    case.metadata_name
        .clone()
        .unwrap_or_else(|| format!("case-{index}"))
}

fn object(case: &Case, index: usize, body: &Value) -> DynamicObject {
    let mut object = body.clone();
    object["apiVersion"] = json!(format!("{GROUP}/v1alpha1"));
    object["kind"] = json!(case.kind);
    object["metadata"]["name"] = json!(name(case, index));
    serde_json::from_value(object).unwrap()
}

/// A claim of a Pod whose name has this number of characters and that restarts this number of containers. All other
/// fields have their largest size.
fn claim(index: usize, name: usize, containers: usize) -> (Claim, usize) {
    let containers = (0..containers).map(|i| ContainerBefore {
        name: format!("{i:0>63}"),
        run: format!("containerd://{i:0>64}"),
        image: Some(u64::MAX),
        by_resources: true,
    });
    let detail = ClaimDetail {
        pod_name: format!("{index:0>name$}"),
        since: "2026-01-01T00:00:00.123456789Z".parse().unwrap(),
        until: "2026-01-01T00:01:00.123456789Z".parse().unwrap(),
        target: Some(format!("{index:0>64}")),
        containers: containers.collect(),
        carried: None,
    };
    let uid = format!("{index:0>36}");
    let bytes = claim_bytes(&uid, &detail);
    let containers = detail.containers.iter().map(|before| ClaimedContainer {
        name: before.name.clone(),
        container_id: before.run.clone(),
        image_hash: format!("{:016x}", u64::MAX),
        by_resources: true,
        ..ClaimedContainer::default()
    });
    let claim = Claim {
        pod_name: detail.pod_name.clone(),
        pod_uid: uid,
        operation: "Deadline".into(),
        resource_version: u64::MAX.to_string(),
        attempt: i64::MAX,
        opened: Some(i64::MAX),
        closing: true,
        since: Time(detail.since),
        until: Time(detail.until),
        target: detail.target.clone(),
        containers: containers.collect(),
        ..Claim::default()
    };
    (claim, bytes)
}

/// A status in which every part has the largest size that the server writes.
fn full_status(name: usize, containers: usize) -> (PodTransitionRuleStatus, usize) {
    let mut remaining_bytes = MAX_LEDGER_BYTES;
    let fits = |(_, bytes): &(Claim, usize)| {
        let fits = *bytes <= remaining_bytes;
        remaining_bytes = remaining_bytes.saturating_sub(*bytes);
        fits
    };
    let claims = (0..).map(|index| claim(index, name, containers));
    let claims: Vec<_> = claims.take_while(fits).map(|(claim, _)| claim).collect();
    let count = claims.len();
    let asked = |index: usize| AskedPod {
        name: format!("{index:0>253}"),
        pod_uid: format!("{index:0>36}"),
        operation: "x".repeat(63),
        since: "1".repeat(19),
    };
    let detail = |index: usize| PodDetail {
        name: format!("{index:0>253}"),
        stage: "PreCheck".into(),
        reject_info: vec![RejectInfo {
            rule_name: "a".into(),
            operation: "x".repeat(63),
            reason: "<".repeat(1_000),
        }],
        ..PodDetail::default()
    };
    let reason = |_: usize| WaitReason {
        stage: "PreCheck".into(),
        rule_name: "a".repeat(253),
        reason: "<".repeat(256),
        pods: i32::MAX,
    };
    let now = || Time("2026-01-01T00:00:00Z".parse().unwrap());
    let condition = |index: usize| Condition {
        type_: format!("C{index}"),
        status: "True".into(),
        reason: "Full".into(),
        message: "<".repeat(2_048),
        observed_generation: Some(1),
        last_transition_time: now(),
    };
    let status = PodTransitionRuleStatus {
        update_time: Some(now()),
        conditions: (0..4).map(condition).collect(),
        ledger: Some(Ledger {
            watermark: u64::MAX.to_string(),
            attempts: i64::MAX,
            claims,
            ..Ledger::default()
        }),
        details: size_limits::take_fitting((0..100).map(detail), MAX_DETAILS_BYTES),
        wait_reasons: size_limits::take_fitting((0..20).map(reason), MAX_REASONS_BYTES),
        rule_states: vec![RuleState {
            name: "a".into(),
            webhook_status: Some(WebhookStatus {
                generation: 1,
                passed: size_limits::take_fitting((0..2_000).map(asked), MAX_STATES_BYTES - 100),
                ..WebhookStatus::default()
            }),
        }],
        ..PodTransitionRuleStatus::default()
    };
    (status, count)
}

/// If the schema refused it, the server would repeat the same failing write forever.
#[tokio::test]
async fn rule_with_every_part_at_its_limit_can_be_stored() {
    let plane = testbed::plane::shared().await.unwrap();
    let client = plane.client().unwrap();
    let namespace = plane.namespace("full").await.unwrap();
    define(&client, FULL, |_| {}).await;
    let api = api_of(FULL, &client, &namespace, "PodTransitionRule");
    // Few claims with the longest names, many claims with short names, and claims with many containers.
    for (object, length, containers) in [("long", 253, 0), ("short", 5, 0), ("many", 60, 30)] {
        let values: Vec<_> = (0..1_000).map(|i| format!("{i:0>60}")).collect();
        let requirement = json!({ "key": "app", "operator": "In", "values": values });
        let spec = json!({
            "selector": { "matchExpressions": [requirement] },
            "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }],
        });
        assert!(size_limits::json_bytes(&spec) > MAX_SPEC_BYTES * 9 / 10);
        let rule: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{FULL}/v1alpha1"), "kind": "PodTransitionRule",
            "metadata": { "name": object, "annotations": { "a": "x".repeat(255 * 1024) } },
            "spec": spec,
        }))
        .unwrap();
        wait::value("the definition to be served", async || {
            api.create(&PostParams::default(), &rule).await.ok()
        })
        .await;
        let (status, claims) = full_status(length, containers);
        let patch = Patch::Merge(json!({ "status": status }));
        let stored = api
            .patch_status(object, &PatchParams::default(), &patch)
            .await;
        let stored = serde_json::to_value(stored.unwrap()).unwrap();
        let own = size_limits::json_bytes(&stored["status"]["ledger"]);
        let managed = size_limits::json_bytes(&stored["metadata"]["managedFields"]);
        let all = size_limits::json_bytes(&stored);
        eprintln!("{object}: {claims} claims, {own} bytes, managedFields {managed}, all {all}");
        assert!(
            own + managed <= MAX_LEDGER_BYTES + 16 * 1024,
            "{own} and {managed}"
        );
    }
}
