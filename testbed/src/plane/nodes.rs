//! The simulated nodes, and the permissions of the components that are not administrators.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

const MANAGER: &str = "operating-plane";

/// Gives kwok the permissions of kubelets.
pub async fn authorize_kwok(client: &Client) -> Result<()> {
    let name = "operating-plane:kwok";
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes", "pods"],
             "verbs": ["get", "list", "watch", "patch", "update", "delete"]},
            {"apiGroups": [""], "resources": ["nodes/status", "pods/status"],
             "verbs": ["get", "patch", "update"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
             "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"]},
            {"apiGroups": ["", "events.k8s.io"], "resources": ["events"],
             "verbs": ["create", "patch", "update"]},
        ],
    }))?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                      "name": "system:nodes"}],
    }))?;
    apply(&Api::all(client.clone()), name, &role).await?;
    apply(&Api::all(client.clone()), name, &binding).await
}

/// Restricts kwok as NodeRestriction restricts kubelets: no write of a Pod's status may change its labels.
/// Like that plugin, the policy judges the object after admission.
pub async fn restrict_kwok(client: &Client) -> Result<()> {
    let name = "operating-plane-kwok";
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"],
            }]},
            "matchConditions": [{"name": "node", "expression": "'system:nodes' in request.userInfo.groups"}],
            "validations": [{
                "expression": "(has(object.metadata.labels) ? object.metadata.labels : {}) \
                               == (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})",
                "message": "a node cannot update labels through pod status", "reason": "Forbidden",
            }],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))?;
    apply(&Api::all(client.clone()), name, &policy).await?;
    apply(&Api::all(client.clone()), name, &binding).await
}

/// Lets the user `system:kube-controller-manager` do what all controllers do together. The API server's own roles are
/// for controllers with service accounts of their own.
pub async fn authorize_controllers(client: &Client) -> Result<()> {
    let name = "operating-plane:controllers";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
                      "name": "system:kube-controller-manager"}],
    }))?;
    apply(&Api::all(client.clone()), name, &binding).await
}

/// Creates `worker-0` to `worker-(count - 1)`, without taints, because the Pods of tests have no tolerations.
pub async fn create(client: &Client, count: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    stream::iter(0..count)
        .map(|index| {
            let nodes = nodes.clone();
            async move {
                let name = format!("worker-{index}");
                let node: Node = serde_json::from_value(json!({
                    "metadata": {
                        "name": name,
                        "annotations": {"kwok.x-k8s.io/node": "fake"},
                        "labels": {
                            "kubernetes.io/hostname": name,
                            "kubernetes.io/os": "linux",
                            "kubernetes.io/arch": std::env::consts::ARCH,
                        },
                    },
                }))?;
                apply(&nodes, &name, &node).await
            }
        })
        .buffer_unordered(8)
        .try_collect()
        .await
}

/// Number of nodes that are Ready.
pub async fn ready(client: &Client) -> Result<usize> {
    let nodes = Api::<Node>::all(client.clone());
    let list = nodes.list(&ListParams::default()).await?;
    Ok(list.items.iter().filter(|node| is_ready(node)).count())
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let tainted = node.spec.iter().any(|spec| {
        let mut taints = spec.taints.iter().flatten();
        taints.any(|taint| taint.key == "node.kubernetes.io/not-ready")
    });
    !tainted
        && conditions
            .into_iter()
            .any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn apply<K>(api: &Api<K>, name: &str, object: &K) -> Result<()>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| format!("applying {} {name}", K::kind(&())))?;
    Ok(())
}
