//! What the RBAC roles of users allow: the rules that are added to `view`, `edit` and `admin`, and the policies on
//! labels and on the status of rules. No server runs.

use std::path::PathBuf;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, Error, ResourceExt};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRule;
use operating::api::resourcecontext::ResourceContext;
use operating::cli::install::{self, names};
use serde_json::{Value, json};
use testbed::wait;

use super::cluster::{Cluster, pod};
use super::objects;

/// Part of the denial of a write to the status of a rule.
const NEEDED: &str = "writing it needs the RBAC verb enforce on podtransitionrules.apps.kusionstack.io in the whole cluster";

/// A service account with a role in its namespace, and its kubeconfig.
struct User {
    client: Client,
    kubeconfig: PathBuf,
}

impl User {
    async fn new(cluster: &Cluster, namespace: &str, name: &str, kind: &str, role: &str) -> User {
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let created = accounts.create(&PostParams::default(), &account).await;
        created.unwrap();
        let group = "rbac.authorization.k8s.io";
        let binding: DynamicObject = serde_json::from_value(json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
        }))
        .unwrap();
        cluster.create(binding).await;
        let plane = cluster.plane();
        let kubeconfig = plane.kubeconfig_for_service_account(namespace, name);
        let kubeconfig = kubeconfig.await.unwrap();
        User {
            client: plane.client_from(&kubeconfig).await.unwrap(),
            kubeconfig,
        }
    }

    fn api<K: kube::Resource<DynamicType = ()>>(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.client.clone(),
            namespace,
            &ApiResource::erase::<K>(&()),
        )
    }
}

fn object(namespace: &str, kind: &str) -> DynamicObject {
    let mut all = objects(namespace).into_iter();
    let mut found = all
        .find(|o| o.types.as_ref().unwrap().kind == kind)
        .unwrap();
    found.metadata.finalizers = None;
    found
}

fn code<T>(outcome: Result<T, Error>) -> u16 {
    match outcome {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn label_that_deletes_a_pod_needs_delete_right() {
    let cluster = Cluster::start().await;
    install::apply_policies(&cluster.client()).await.unwrap();
    let shop = cluster.namespace("shop").await;
    for name in ["one", "two", "three"] {
        cluster.create_pod(&shop, pod(name)).await;
    }
    let verbs = ["get", "patch", "update"];
    for (role, verbs) in [
        ("patches", &verbs[..]),
        ("deletes", &["get", "patch", "delete"]),
    ] {
        let role: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": role, "namespace": shop},
            "rules": [{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": verbs}],
        }))
        .unwrap();
        cluster.create(role).await;
    }
    let patches = User::new(&cluster, &shop, "patches", "Role", "patches").await;
    let deletes = User::new(&cluster, &shop, "deletes", "Role", "deletes").await;
    let params = PatchParams::default();
    let label = |key: &str| Patch::Merge(json!({"metadata": {"labels": {key: "1"}}}));
    let pods = patches.api::<Pod>(&shop);
    wait::until("the user may patch Pods", || async {
        pods.patch("one", &params, &label("app")).await.is_ok()
    })
    .await;
    // The API server enforces a policy a moment after it is stored.
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    wait::until("the policy is in force", || async {
        let set = pods.patch("one", &dry, &label(keys::TO_DELETE)).await;
        set.is_err()
    })
    .await;
    for key in [keys::TO_DELETE, keys::TO_REPLACE] {
        for outcome in [
            pods.patch("one", &params, &label(key)).await,
            pods.patch_status("one", &params, &label(key)).await,
        ] {
            let text = outcome.as_ref().unwrap_err().to_string();
            assert_eq!(code(outcome), 403, "{key}");
            assert!(
                text.contains("needs the RBAC verb delete on pods"),
                "{text}"
            );
        }
    }
    let allowed = deletes.api::<Pod>(&shop);
    let set = allowed.patch("two", &params, &label(keys::TO_DELETE)).await;
    set.unwrap();
    // A CollaSet removes only the label that it set itself. It recognizes the label by its value and the annotation.
    let marked = json!({"metadata": {
        "labels": {keys::TO_DELETE: "7"}, "annotations": {keys::SENT_AWAY: "7"},
    }});
    let marked = Patch::Merge(marked);
    allowed.patch("three", &params, &marked).await.unwrap();
    let forget = json!({"metadata": {"annotations": {keys::SENT_AWAY: null}}});
    for patch in [label(keys::TO_DELETE), Patch::Merge(forget)] {
        let tampered = pods.patch("three", &params, &patch).await;
        assert_eq!(code(tampered), 403, "{patch:?}");
        allowed.patch("three", &dry, &patch).await.unwrap();
    }
    // A request that keeps an existing label, or removes it, needs no right.
    for (labels, value) in [("app", json!("2")), (keys::TO_DELETE, Value::Null)] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {labels: value}}}));
        pods.patch("two", &params, &patch).await.unwrap();
    }
}

#[tokio::test]
async fn pod_binding_cannot_add_the_label_that_deletes() {
    let cluster = Cluster::start().await;
    install::apply_policies(&cluster.client()).await.unwrap();
    let shop = cluster.namespace("shop").await;
    cluster.create_pod(&shop, pod("waits")).await;
    let role: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "binds", "namespace": shop},
        "rules": [{"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}],
    }))
    .unwrap();
    cluster.create(role).await;
    let binds = User::new(&cluster, &shop, "binds", "Role", "binds").await;
    let pods = binds.api::<Pod>(&shop);
    let bind = async |labels: Value, dry_run: bool| {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waits", "labels": labels},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "worker-0"},
        });
        let post = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let bound = pods.create_subresource::<Value, Value>("binding", "waits", &post, &binding);
        bound.await
    };
    wait::until("the user may bind Pods", || async {
        bind(json!({}), true).await.is_ok()
    })
    .await;
    wait::until("the policy is in force", || async {
        bind(json!({keys::TO_DELETE: "1"}), true).await.is_err()
    })
    .await;
    for key in [keys::TO_DELETE, keys::TO_REPLACE] {
        let outcome = bind(json!({key: "1"}), false).await;
        let text = outcome.as_ref().unwrap_err().to_string();
        assert_eq!(code(outcome), 403, "{text}");
    }
    bind(json!({"app": "web"}), false).await.unwrap();
}

/// A ledger that would deny all disruptions forever.
fn forged() -> Value {
    json!({"ledger": {"watermark": "18446744073709551615", "attempts": 1, "claims": []}})
}

#[tokio::test]
async fn status_of_a_rule_needs_the_right_to_enforce() {
    let cluster = Cluster::with_crds_and_rights().await;
    install::apply_policies(&cluster.client()).await.unwrap();
    let shop = cluster.namespace("shop").await;
    let group: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "group", "namespace": shop},
        "rules": [{"apiGroups": [keys::GROUP], "resources": ["*"], "verbs": ["*"]}],
    }))
    .unwrap();
    cluster.create(group).await;
    let tenant = User::new(&cluster, &shop, "tenant", "Role", "group").await;
    let rules = tenant.api::<PodTransitionRule>(&shop);
    let post = PostParams::default();
    let mut with_status = object(&shop, "PodTransitionRule");
    with_status.data["status"] = forged();
    wait::until("the tenant may create a rule", || async {
        rules.create(&post, &with_status).await.is_ok()
    })
    .await;
    let found = rules.get("r").await.unwrap();
    // Nothing but the default of the CRD.
    let default = json!({"observedGeneration": 0});
    assert_eq!(found.data["status"], default, "created with a status");

    // The API server enforces a policy a moment after it is stored.
    let (merge, params) = (
        Patch::Merge(json!({"status": forged()})),
        PatchParams::default(),
    );
    let account = cluster
        .plane()
        .kubeconfig_for_service_account(names::NAMESPACE, names::SERVICE_ACCOUNT);
    let server = cluster.plane().client_from(&account.await.unwrap()).await;
    let server = User {
        client: server.unwrap(),
        kubeconfig: PathBuf::new(),
    };
    let served = server.api::<PodTransitionRule>(&shop);
    let ledger = json!({"status": {"ledger": {"watermark": "7", "attempts": 1, "claims": []}}});
    wait::until("the policy is in force", || async {
        rules.patch_status("r", &params, &merge).await.is_err()
    })
    .await;
    served
        .patch_status("r", &params, &Patch::Merge(&ledger))
        .await
        .expect("the server writes the status by a patch");
    let before = served.get("r").await.unwrap();

    assert_status_writes_are_refused(&rules, &before).await;

    // The tenant may write the object itself, and the write does not change the status.
    rules.patch("r", &params, &merge).await.unwrap();
    let mut replaced = before.clone();
    replaced.data["status"] = forged();
    rules.replace("r", &post, &replaced).await.unwrap();
    let mut applied = object(&shop, "PodTransitionRule");
    applied.data = json!({"status": forged(), "spec": before.data["spec"]});
    let apply = PatchParams::apply("tenant").force();
    rules
        .patch("r", &apply, &Patch::Apply(&applied))
        .await
        .unwrap();
    let edited = cluster
        .plane()
        .kubectl(["edit", "podtransitionrule", "r", "-n", &shop])
        .env("KUBECONFIG", &tenant.kubeconfig)
        .env("KUBE_EDITOR", "sed -i s/30%/40%/")
        .output()
        .await
        .unwrap();
    assert!(edited.status.success(), "{edited:?}");
    let after = rules.get("r").await.unwrap();
    assert_eq!(after.data["status"], before.data["status"]);
    let limit = &after.data["spec"]["rules"][0]["availablePolicy"]["maxUnavailableValue"];
    assert_eq!(limit, "40%");

    // The right in a namespace is not enough; the right in the whole cluster is.
    grant_enforce(&cluster, &shop).await;
    wait::until("who may enforce may write it", || async {
        rules.patch_status("r", &params, &merge).await.is_ok()
    })
    .await;
}

/// Fails if a user without the verb `enforce` can write the status of the rule `r` by any kind of write.
async fn assert_status_writes_are_refused(rules: &Api<DynamicObject>, stored: &DynamicObject) {
    let (params, post) = (PatchParams::default(), PostParams::default());
    let merge = Patch::Merge(json!({"status": forged()}));
    let refused = |patch_type: &str, outcome: kube::Result<DynamicObject>| {
        let Err(Error::Api(status)) = outcome else {
            panic!("{patch_type}: {outcome:?}");
        };
        assert_eq!(status.code, 403, "{patch_type}: {status:?}");
        assert!(
            status.message.contains(NEEDED),
            "{patch_type}: {}",
            status.message
        );
    };
    refused("merge", rules.patch_status("r", &params, &merge).await);
    for operation in [
        json!([{"op": "replace", "path": "/status/ledger/watermark", "value": "0"}]),
        json!([{"op": "remove", "path": "/status"}]),
        json!([{"op": "add", "path": "/status/ruleStates", "value": []}]),
    ] {
        let patch: json_patch::Patch = serde_json::from_value(operation).unwrap();
        let patch = Patch::Json::<()>(patch);
        refused("JSON patch", rules.patch_status("r", &params, &patch).await);
    }
    let mut applied = object(&stored.namespace().unwrap(), "PodTransitionRule");
    applied.data = json!({"status": forged()});
    let apply = PatchParams::apply("tenant").force();
    let patch = Patch::Apply(&applied);
    refused("apply", rules.patch_status("r", &apply, &patch).await);
    let mut replaced = stored.clone();
    replaced.data["status"] = forged();
    let outcome = rules.replace_status("r", &post, &replaced);
    refused("PUT", outcome.await);
}

/// Gives the tenant the verb `enforce` in the whole cluster.
async fn grant_enforce(cluster: &Cluster, namespace: &str) {
    let whole: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "enforcer"},
        "rules": [{"apiGroups": [keys::GROUP], "resources": ["podtransitionrules"], "verbs": ["enforce"]}],
    }))
    .unwrap();
    cluster.create(whole).await;
    let binding: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "enforcer"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "enforcer"},
    }))
    .unwrap();
    cluster.create(binding).await;
}

#[tokio::test]
async fn built_in_roles_reach_our_kinds_and_no_status() {
    let cluster = Cluster::with_crds_and_rights().await;
    let shop = cluster.namespace("shop").await;
    let mut users = Vec::new();
    for role in ["view", "edit", "admin"] {
        users.push(User::new(&cluster, &shop, role, "ClusterRole", role).await);
    }
    let [viewer, editor, owner] = &users[..] else {
        panic!("three users");
    };
    let post = PostParams::default();
    let sets = editor.api::<CollaSet>(&shop);
    // The kube-controller-manager aggregates the roles.
    wait::until("an editor may create a CollaSet", || async {
        sets.create(&post, &object(&shop, "CollaSet")).await.is_ok()
    })
    .await;
    wait::until("a viewer may read it", || async {
        viewer.api::<CollaSet>(&shop).get("s").await.is_ok()
    })
    .await;
    let rules = editor.api::<PodTransitionRule>(&shop);
    let rule = object(&shop, "PodTransitionRule");
    rules.create(&post, &rule).await.unwrap();
    let params = PatchParams::default();
    let status = Patch::Merge(json!({"status": {"replicas": 7}}));
    assert_eq!(code(sets.patch_status("s", &params, &status).await), 403);
    let ledger = Patch::Merge(json!({"status": forged()}));
    assert_eq!(code(rules.patch_status("r", &params, &ledger).await), 403);
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    sets.patch_scale("s", &params, &scale).await.unwrap();
    let pool = object(&shop, "ResourceContext");
    let refused = editor
        .api::<ResourceContext>(&shop)
        .create(&post, &pool)
        .await;
    assert_eq!(code(refused), 403);
    let pools = owner.api::<ResourceContext>(&shop);
    wait::until(
        "an administrator of the namespace may write instance IDs",
        || async { pools.create(&post, &pool).await.is_ok() },
    )
    .await;

    assert_verbs_of_roles(&cluster, &shop).await;
}

/// Every role may read our kinds and their statuses. Only `edit` and `admin` may write the kinds. No role may write a
/// status, or has a verb of our own.
async fn assert_verbs_of_roles(cluster: &Cluster, namespace: &str) {
    let kinds = [
        "collasets",
        "operationjobs",
        "poddecorations",
        "podtransitionrules",
    ];
    let statuses = kinds.map(|kind| format!("{kind}/status"));
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for (index, role) in ["view", "edit", "admin"].into_iter().enumerate() {
        for resource in kinds
            .iter()
            .copied()
            .chain(statuses.iter().map(String::as_str))
        {
            for verb in [
                "get",
                "list",
                "watch",
                "create",
                "update",
                "patch",
                "delete",
                "deletecollection",
                "enforce",
                "bypass",
            ] {
                let reads = ["get", "list", "watch"].contains(&verb);
                let ours = ["enforce", "bypass"].contains(&verb);
                let writes = index > 0 && !resource.contains('/') && !ours;
                expected.push((role, resource, verb, reads || writes));
                found.push((
                    role,
                    resource,
                    verb,
                    may(cluster, namespace, role, verb, resource).await,
                ));
            }
        }
    }
    assert_eq!(found, expected);
}

/// Whether the service account may do this in its namespace.
async fn may(cluster: &Cluster, namespace: &str, user: &str, verb: &str, resource: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let mut review = SubjectAccessReview::default();
    review.spec.user = Some(format!("system:serviceaccount:{namespace}:{user}"));
    review.spec.resource_attributes = Some(ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        group: Some(keys::GROUP.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    });
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client());
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.unwrap().status.unwrap().allowed
}
