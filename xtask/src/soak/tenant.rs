//! The tenant of the soak: its rights, its owners, its rules.

use anyhow::{Context, Result};
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::fleet::Fleet;
use testbed::observer::judge::{Limit, Rule};
use testbed::observer::resource;

/// The tenant's service account.
pub const ACCOUNT: &str = "tenant";
/// Label and value of the Pods of all owners.
pub const TIER: (&str, &str) = ("tier", "soak");

/// Kind and name of an owner that exists from the beginning. The Pods carry the name as the label `app`.
pub const OWNERS: [(&str, &str); 6] = [
    ("Deployment", "web"),
    ("Deployment", "api"),
    ("StatefulSet", "db"),
    ("ReplicaSet", "cache"),
    ("CollaSet", "colla"),
    ("DaemonSet", "agent"),
];
/// Prefix of the names of the StatefulSet's Pods.
pub const STATEFUL_POD: &str = "db-";
/// Label `app` of the Pods without an owner.
pub const BARE: &str = "bare";
/// The owner whose Pods have Pod-level resources.
const POD_LEVEL: &str = "api";

/// The resource of a kind of owner.
#[must_use]
pub fn kind(kind: &str) -> ApiResource {
    match kind {
        "CollaSet" => resource("apps.kusionstack.io", "v1alpha1", kind),
        _ => resource("apps", "v1", kind),
    }
}

/// The rules of the soak.
#[must_use]
pub fn rules() -> Vec<Rule> {
    let app = |name: &str, limit| Rule::over(name, "app", name, Limit::Count(limit));
    vec![
        app("web", 2),
        app("api", 1),
        app("db", 1),
        app("cache", 2),
        app("colla", 2),
        app(BARE, 1),
        Rule::over("all", TIER.0, TIER.1, Limit::Percent(30)),
    ]
}

/// A managed Pod of an application, without a name.
#[must_use]
pub fn template(app: &str) -> Value {
    let mut container = json!({
        "name": "main",
        "image": "web:1",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
            {"resourceName": "memory", "restartPolicy": "RestartContainer"},
        ],
    });
    let mut spec = json!({"terminationGracePeriodSeconds": 1});
    if app == POD_LEVEL {
        spec["resources"] = json!({"limits": {"memory": "512Mi", "cpu": "1"}});
        container["resources"] = json!({"requests": {"cpu": "100m"}});
    }
    spec["containers"] = json!([container]);
    json!({
        "metadata": {"labels": {"app": app, TIER.0: TIER.1, "kusionstack.io/control": "true"}},
        "spec": spec,
    })
}

/// An owner of Pods labelled `app=NAME`.
#[must_use]
pub fn owner(kind_name: &str, name: &str, replicas: u64) -> Value {
    let api_version = kind(kind_name).api_version;
    let mut spec = json!({
        "selector": {"matchLabels": {"app": name}},
        "template": template(name),
    });
    if kind_name != "DaemonSet" {
        spec["replicas"] = json!(replicas);
    }
    if kind_name == "StatefulSet" {
        spec["serviceName"] = json!(name);
        spec["podManagementPolicy"] = json!("Parallel");
    }
    json!({
        "apiVersion": api_version, "kind": kind_name, "metadata": {"name": name}, "spec": spec,
    })
}

/// Creates the service account with its rights in a namespace, and returns a client that acts as it.
pub async fn enrol(fleet: &Fleet, namespace: &str) -> Result<Client> {
    let client = fleet.client()?;
    let rbac = "rbac.authorization.k8s.io";
    let subject = json!({"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace});
    let binding = |name: &str, kind: &str, role: &str| {
        json!({
            "metadata": {"name": name},
            "subjects": [subject],
            "roleRef": {"apiGroup": rbac, "kind": kind, "name": role},
        })
    };
    // The tenant may only read rules. Subresources of Pods that `edit` lacks are added.
    let role = json!({
        "metadata": {"name": ACCOUNT},
        "rules": [
            {"apiGroups": ["apps.kusionstack.io"], "resources": ["podtransitionrules"],
             "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["apps.kusionstack.io"],
             "resources": ["collasets", "collasets/scale", "poddecorations", "operationjobs", "resourcecontexts"],
             "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["pods/resize", "pods/ephemeralcontainers"],
             "verbs": ["get", "patch", "update"]},
        ],
    });
    let objects = [
        (
            resource("", "v1", "ServiceAccount"),
            json!({"metadata": {"name": ACCOUNT}}),
        ),
        (resource(rbac, "v1", "Role"), role),
        (
            resource(rbac, "v1", "RoleBinding"),
            binding("edit", "ClusterRole", "edit"),
        ),
        (
            resource(rbac, "v1", "RoleBinding"),
            binding("own", "Role", ACCOUNT),
        ),
    ];
    for (kind, mut object) in objects {
        object["apiVersion"] = json!(kind.api_version);
        object["kind"] = json!(kind.kind);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let object: DynamicObject = serde_json::from_value(object)?;
        let created = api.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("creating a {}", kind.kind))?;
    }
    let plane = &fleet.plane;
    let kubeconfig = plane
        .kubeconfig_for_service_account(namespace, ACCOUNT)
        .await?;
    plane.client_from(&kubeconfig).await
}
