//! The generated CRDs on a real API server: what they refuse and with which words, and that objects which were stored
//! before them stay readable and updatable.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use operating::api::crd;
use serde::Deserialize;
use serde_json::{Value, json};

/// A group of their own keeps the narrowed definitions apart from those that other tests use.
const GROUP: &str = "crds.test.kusionstack.io";

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
async fn the_api_server_refuses_what_is_odd_and_new_and_keeps_what_is_stored() {
    let plane = xtask::plane::shared().await.unwrap();
    let (client, namespace) = (
        plane.client().unwrap(),
        plane.namespace("crds").await.unwrap(),
    );
    let mut cases: serde_norway::Value =
        serde_norway::from_str(include_str!("crds/cases.yaml")).unwrap();
    cases.apply_merge().unwrap();
    let cases: Vec<Case> = serde_norway::from_value(cases).unwrap();

    define(&client, open).await;
    for (index, case) in cases.iter().enumerate() {
        let Some(stored) = &case.stored else { continue };
        let api = api(&client, &namespace, &case.kind);
        let object = object(case, index, stored);
        // The definition is served a moment after it is stored.
        eventually(async || api.create(&PostParams::default(), &object).await.ok()).await;
        if stored.get("status").is_some() {
            let patch = Patch::Merge(json!({ "status": stored["status"] }));
            api.patch_status(&name(case, index), &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
    }
    define(&client, |_| {}).await;
    for kind in crd::all().iter().map(|c| &c.spec.names.kind) {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let api = api(&client, &namespace, kind);
        let probe: DynamicObject =
            serde_json::from_value(json!({ "metadata": { "name": "probe" }, "spec": 1 })).unwrap();
        eventually(async || api.create(&dry, &probe).await.err()).await;
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
            kept(create, &serde_json::to_value(created?).unwrap(), &case.name);
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

/// Everything that was sent is stored, but nulls where the schema knows the field.
fn kept(sent: &Value, stored: &Value, case: &str) {
    match (sent, stored) {
        (Value::Object(sent), Value::Object(stored)) => {
            for (key, value) in sent.iter().filter(|(_, v)| !v.is_null()) {
                kept(
                    value,
                    stored
                        .get(key)
                        .unwrap_or_else(|| panic!("{case}: {key} was pruned")),
                    case,
                );
            }
        }
        (Value::Array(sent), Value::Array(stored)) => {
            sent.iter().zip(stored).for_each(|(a, b)| kept(a, b, case))
        }
        (sent, stored) => assert_eq!(sent, stored, "{case}"),
    }
}

/// Every object, odd as it may be, reads as its type.
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

/// Takes every bound out of a schema, as before this project.
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

async fn define(client: &Client, change: impl Fn(&mut CustomResourceDefinition)) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut crd in crd::all() {
        change(&mut crd);
        crd.spec.group = GROUP.into();
        crd.metadata.name = Some(format!("{}.{GROUP}", crd.spec.names.plural));
        let name = crd.metadata.name.clone().unwrap();
        let params = PatchParams::apply("crds-test").force();
        definitions
            .patch(&name, &params, &Patch::Apply(&crd))
            .await
            .unwrap();
    }
}

fn api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let plural = format!("{}s", kind.to_lowercase());
    let resource = ApiResource {
        group: GROUP.into(),
        version: "v1alpha1".into(),
        api_version: format!("{GROUP}/v1alpha1"),
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

async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..300 {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no answer within 30 s");
}
