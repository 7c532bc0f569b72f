//! Users of a bed other than the administrator.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use super::Bed;
use crate::fleet::{HOME, SERVICE_ACCOUNT};
use crate::scope::Scope;
use crate::wait;

/// Rules of a Role that let a user do anything to Pods.
pub fn rights_on_pods() -> Value {
    json!({
        "apiGroups": [""], "resources": ["pods", "pods/eviction"],
        "verbs": ["get", "list", "create", "patch", "delete"],
    })
}

/// Rules of a Role that let a user bypass one rule object.
pub fn right_to_bypass(rule: &str) -> Value {
    json!({
        "apiGroups": ["apps.kusionstack.io"], "resources": ["podtransitionrules"], "resourceNames": [rule],
        "verbs": ["bypass"],
    })
}

impl Bed {
    /// Creates a user with these Role rules in the namespace of a scope. The result is the scope with the user's
    /// client. The rules must let the user list Pods.
    pub async fn new_user(&self, scope: &Scope, name: &str, rules: &[Value]) -> Scope {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let accounts = scope.api::<ServiceAccount>();
        let post = PostParams::default();
        accounts.create(&post, &account).await.unwrap();
        grant(scope, name, (&scope.namespace, name), rules).await;
        let user = self.service_account(scope, &scope.namespace, name).await;
        // The API server's authorizer receives roles through a watch.
        wait::until("the user to have its rights", async || {
            user.pods().list(&ListParams::default()).await.is_ok()
        })
        .await;
        user
    }

    /// The scope with the client of the server's own user.
    pub async fn server_user(&self, scope: &Scope) -> Scope {
        self.service_account(scope, HOME, SERVICE_ACCOUNT).await
    }

    /// Gives the server's own user more rights in the namespace of a scope, as an administrator's kubeconfig would.
    pub async fn grant_to_server(&self, scope: &Scope, rules: &[Value]) {
        grant(scope, "server", (HOME, SERVICE_ACCOUNT), rules).await;
    }

    async fn service_account(&self, scope: &Scope, namespace: &str, name: &str) -> Scope {
        let file = self.kubeconfig_for_service_account(namespace, name).await;
        Scope {
            client: self.client_from(&file.unwrap()).await.unwrap(),
            namespace: scope.namespace.clone(),
        }
    }
}

/// Creates a Role with these rules and binds it to a service account.
async fn grant(scope: &Scope, role: &str, (namespace, account): (&str, &str), rules: &[Value]) {
    let (post, metadata) = (PostParams::default(), json!({"name": role}));
    let role: Role = serde_json::from_value(json!({"metadata": metadata, "rules": rules})).unwrap();
    scope.api().create(&post, &role).await.unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role.metadata.name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }))
    .unwrap();
    scope.api().create(&post, &binding).await.unwrap();
}
