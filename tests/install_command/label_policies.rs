//! Policies: who may change the labels that decide whether a namespace is enforced, and the warning about Deployments
//! that no rule lets roll out. No server runs, because the API server evaluates the policies itself.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use operating::admission::policies::POLICY_NAMES;
use operating::api::keys;
use operating::cli::install::{self, names};
use operating::cli::uninstall::uninstall;
use serde_json::{Value, json};
use testbed::wait;

use super::cluster::Cluster;

/// Part of the denial.
const NEEDED: &str = "needs the RBAC verb enforce on podtransitionrules.apps.kusionstack.io";

#[tokio::test]
async fn labels_of_enforcement_need_the_right_to_enforce() {
    let cluster = Cluster::with_crds_and_rights().await;
    let admin = cluster.client();
    install::apply_policies(&admin).await.unwrap();
    let shop = cluster.namespace("shop").await;
    label(&admin, &shop, "", keys::NAMESPACE_ENFORCEMENT, Some("true"))
        .await
        .unwrap();
    let tenant = tenant(&cluster, &shop).await;
    // The API server enforces a policy a moment after it is stored.
    wait::until("the policy is in force", || async {
        let outcome = label(&tenant, &shop, "", keys::NAMESPACE_EXCLUDED, Some("")).await;
        if outcome.is_ok() {
            label(&admin, &shop, "", keys::NAMESPACE_EXCLUDED, None)
                .await
                .unwrap();
        }
        outcome.is_err()
    })
    .await;

    for part in ["", "status", "finalize"] {
        for (key, value) in [
            (keys::NAMESPACE_ENFORCEMENT, None),
            (keys::NAMESPACE_ENFORCEMENT, Some("strict")),
            (keys::NAMESPACE_EXCLUDED, Some("true")),
            (keys::NAMESPACE_EXCLUDED, Some("")),
        ] {
            let denied = change(&tenant, &shop, part, key, value).await;
            let text = denied.expect_err(key).to_string();
            assert!(text.contains(NEEDED), "{part} {key} {value:?}: {text}");
        }
        change(&tenant, &shop, part, "team", Some(part))
            .await
            .unwrap();
    }
    assert_eq!(
        enforcement_label(&admin, &shop).await.as_deref(),
        Some("true"),
        "the label is unchanged"
    );

    // The tenant can't create an excluded namespace either. A namespace with the enforcement label is allowed.
    let namespaces: Api<Namespace> = Api::all(tenant.clone());
    let made = |name: &str, key: &str| {
        let made = json!({"metadata": {"name": name, "labels": {key: "true"}}});
        serde_json::from_value::<Namespace>(made).unwrap()
    };
    let excluded = made("excluded", keys::NAMESPACE_EXCLUDED);
    let denied = namespaces.create(&PostParams::default(), &excluded).await;
    assert!(denied.unwrap_err().to_string().contains(NEEDED));
    let enforced = made("enforced", keys::NAMESPACE_ENFORCEMENT);
    namespaces
        .create(&PostParams::default(), &enforced)
        .await
        .unwrap();

    // The server with its own account, and an administrator, may do all of this.
    let account = cluster
        .plane()
        .kubeconfig_for_service_account(names::NAMESPACE, names::SERVICE_ACCOUNT)
        .await
        .unwrap();
    let server = cluster.plane().client_from(&account).await.unwrap();
    for allowed in [&server, &admin] {
        for value in [None, Some("strict"), Some("true")] {
            label(allowed, &shop, "", keys::NAMESPACE_ENFORCEMENT, value)
                .await
                .unwrap();
        }
    }
    change(
        &admin,
        &shop,
        "finalize",
        keys::NAMESPACE_EXCLUDED,
        Some(""),
    )
    .await
    .unwrap();

    // An uninstall completes and leaves none of these objects.
    uninstall(&admin, names::NAMESPACE, false).await.unwrap();
    assert_eq!(enforcement_label(&admin, &shop).await, None);
    for kind in [
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ] {
        let get = ["get", kind, "-o", "name"];
        let policies = cluster.plane().ask_kubectl(&get).await.success().out;
        assert!(
            POLICY_NAMES.iter().all(|name| !policies.contains(name)),
            "{policies}"
        );
    }
}

#[tokio::test]
async fn recreate_deployment_under_a_rule_is_warned_about() {
    let cluster = Cluster::start().await;
    let admin = cluster.client();
    install::install_crds(&admin, names::NAMESPACE)
        .await
        .unwrap();
    install::apply_policies(&admin).await.unwrap();
    let (ruled, free) = (
        cluster.namespace("ruled").await,
        cluster.namespace("free").await,
    );
    label(
        &admin,
        &ruled,
        "",
        keys::NAMESPACE_ENFORCEMENT,
        Some("true"),
    )
    .await
    .unwrap();
    let deployment = |name: &str, strategy: &str, managed: bool| {
        let control = if managed {
            keys::CONTROL_VALUE
        } else {
            "false"
        };
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {
                "replicas": 0, "strategy": {"type": strategy},
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name, keys::CONTROL: control}},
                    "spec": {"containers": [{"name": "c", "image": "i:1"}]},
                },
            },
        })
    };
    let warning = "strategy.type Recreate deletes all Pods before it creates new ones";
    let mut number = 0;
    wait::until("the policy warns", || {
        number += 1;
        let object = deployment(&format!("probe-{number}"), "Recreate", true);
        let (cluster, ruled) = (&cluster, &ruled);
        async move { apply(cluster, ruled, &object).await.contains(warning) }
    })
    .await;
    let warnings = apply(&cluster, &ruled, &deployment("web", "Recreate", true)).await;
    assert!(warnings.contains("Warning: "), "{warnings}");
    assert!(
        warnings.contains("RollingUpdate with maxSurge of 1 or more"),
        "{warnings}"
    );
    let mut changed = deployment("web", "Recreate", true);
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    let warnings = apply(&cluster, &ruled, &changed).await;
    assert!(warnings.contains(warning), "{warnings}");
    // No warning: a change outside of the spec, another strategy, Pods that no rule holds, and a namespace without
    // rules.
    changed["metadata"]["labels"] = json!({"a": "b"});
    for (namespace, object) in [
        (&ruled, changed),
        (&ruled, deployment("rolling", "RollingUpdate", true)),
        (&ruled, deployment("unmanaged", "Recreate", false)),
        (&free, deployment("web", "Recreate", true)),
    ] {
        assert_eq!(apply(&cluster, namespace, &object).await, "", "{object}");
    }
}

/// Applies an object by kubectl. Returns its stderr.
async fn apply(cluster: &Cluster, namespace: &str, object: &Value) -> String {
    let apply = ["apply", "-n", namespace];
    let output = cluster.plane().ask_kubectl_about(&apply, object).await;
    output.success().err
}

/// A user who may write namespaces with their subresources, and do everything in this namespace.
async fn tenant(cluster: &Cluster, namespace: &str) -> Client {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "tenant"}})).unwrap();
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    let subjects = json!([{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}]);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    for object in [
        json!({
            "kind": "ClusterRole", "metadata": {"name": "tenant"},
            "rules": [{
                "apiGroups": [""], "verbs": ["get", "create", "patch", "update"],
                "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
            }],
        }),
        json!({
            "kind": "ClusterRoleBinding", "metadata": {"name": "tenant"}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "tenant"},
        }),
        json!({
            "kind": "Role", "metadata": {"name": "all", "namespace": namespace},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
        }),
        json!({
            "kind": "RoleBinding", "metadata": {"name": "all", "namespace": namespace}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "all"},
        }),
    ] {
        let mut object = object;
        object["apiVersion"] = version.clone().into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        cluster.create(object).await;
    }
    let file = cluster
        .plane()
        .kubeconfig_for_service_account(namespace, "tenant")
        .await
        .unwrap();
    let client = cluster.plane().client_from(&file).await.unwrap();
    // The API server's authorizer learns of roles through a watch.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    wait::until("the tenant has their rights", || async {
        let read = namespaces.get(namespace).await.is_ok();
        read && label(&client, namespace, "", "probe", Some("x"))
            .await
            .is_ok()
    })
    .await;
    client
}

async fn enforcement_label(client: &Client, namespace: &str) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = namespaces.get(namespace).await.unwrap();
    found.labels().get(keys::NAMESPACE_ENFORCEMENT).cloned()
}

/// Patches a label of a namespace or of its subresource; `None` removes it.
async fn label(
    client: &Client,
    namespace: &str,
    part: &str,
    key: &str,
    value: Option<&str>,
) -> kube::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
    let params = PatchParams::default();
    match part {
        "" => namespaces.patch(namespace, &params, &patch).await,
        part => {
            namespaces
                .patch_subresource(part, namespace, &params, &patch)
                .await
        }
    }
    .map(drop)
}

/// The same as [`label`]; `finalize` supports only PUT.
async fn change(
    client: &Client,
    namespace: &str,
    part: &str,
    key: &str,
    value: Option<&str>,
) -> kube::Result<()> {
    if part != "finalize" {
        return label(client, namespace, part, key, value).await;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut object = namespaces.get(namespace).await?;
    let labels = object.labels_mut();
    match value {
        Some(value) => labels.insert(key.to_owned(), value.to_owned()),
        None => labels.remove(key),
    };
    let body = serde_json::to_vec(&object).unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/finalize");
    let request = http::Request::put(path)
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    client.request::<Namespace>(request).await.map(drop)
}
