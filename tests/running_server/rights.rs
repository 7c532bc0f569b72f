//! The server works with exactly the rights that `operating install` gives it for the enabled features. Every right is
//! used in this test, except the rights listed here with their use.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Error, ResourceExt};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::cli::install::rbac::table::{AccessRule, PERMISSION_SETS};
use operating::cli::install::{EnabledFeatures, names};
use serde_json::json;
use testbed::balancer::LoadBalancer;
use testbed::plane::audit::Event;
use testbed::wait;

use super::cluster::Cluster;

/// Verb, group, and resource with its subresource.
type Right = (String, String, String);

/// Rights that this test does not use: verb, resource, and when the server uses the right.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("enforce", "podtransitionrules", "the policies ask for it"),
    (
        "patch",
        "podtransitionrules",
        "takes a finalizer of Kuperator's off",
    ),
    (
        "get",
        "podtransitionrules",
        "a conflict of two writes of a ledger, a call to an endpoint",
    ),
    ("get", "collasets", "the live read of an owner in doubt"),
    ("get", "daemonsets", "the same"),
    ("get", "deployments", "the same"),
    ("get", "replicasets", "the same"),
    ("get", "statefulsets", "the same"),
    ("get", "jobs", "the same"),
    ("get", "replicationcontrollers", "the same"),
    ("get", "pods", "an eviction, and claims without effect"),
    (
        "patch",
        "replicasets/scale",
        "an old ReplicaSet that keeps its Deployment from going on",
    ),
    (
        "create",
        "subjectaccessreviews",
        "a Pod with a reason to bypass its rule",
    ),
    ("create", "events", "waits of more than a minute"),
    ("patch", "events", "waits that go on"),
    ("get", "services", "expected finalizers"),
    (
        "patch",
        "pods/resize",
        "a CollaSet that changes resources in place",
    ),
    (
        "update",
        "collasets/finalizers",
        "references that block deletion",
    ),
    (
        "patch",
        "poddecorations",
        "the finalizer of a PodDecoration",
    ),
    (
        "patch",
        "poddecorations/status",
        "the counts of a PodDecoration",
    ),
    (
        "update",
        "poddecorations/finalizers",
        "references that block deletion",
    ),
    ("patch", "operationjobs", "the finalizer of an OperationJob"),
    (
        "patch",
        "operationjobs/status",
        "the progress of an OperationJob",
    ),
    (
        "delete",
        "operationjobs",
        "a job that has ended some time ago",
    ),
    (
        "get",
        "containerrecreaterequests",
        "a restart by OpenKruise",
    ),
    ("create", "containerrecreaterequests", "the same"),
    ("delete", "containerrecreaterequests", "the same"),
    ("get", "controllerrevisions", "a name that is taken"),
    (
        "patch",
        "controllerrevisions",
        "a revision that is used again, or taken over",
    ),
    (
        "delete",
        "controllerrevisions",
        "a history that is too long",
    ),
    ("get", "persistentvolumeclaims", "a name that is taken"),
    (
        "patch",
        "persistentvolumeclaims",
        "a claim that is kept or taken over",
    ),
    (
        "delete",
        "persistentvolumeclaims",
        "a claim that is not kept",
    ),
    (
        "patch",
        "resourcecontexts",
        "instance IDs of a set that grows",
    ),
    (
        "delete",
        "resourcecontexts",
        "the pool of a set that is gone",
    ),
    ("update", "secrets", "a rotation"),
    ("get", "mutatingwebhookconfigurations", "the CA to publish"),
    (
        "get",
        "validatingwebhookconfigurations",
        "the CA to publish",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn server_works_with_the_rights_of_its_parts_alone() {
    let cluster = Cluster::audited(1).await;
    let lb = LoadBalancer::start([]).await.unwrap();
    let url = format!("https://localhost:{}", lb.address().port());
    let (certificates, ca) = certificates();
    let mut used = BTreeSet::new();
    let mut read = 0;
    for (collasets, grace_delete, certificates_kept) in [
        (true, true, true),
        (false, false, false),
        (false, true, true),
        (true, false, false),
    ] {
        let parts = EnabledFeatures {
            collasets,
            traffic: certificates_kept, // independent of the other features
            grace_delete,
            certificates: certificates_kept,
            webhooks: collasets,
        };
        let gates = format!(
            "CollaSets={collasets},GraceDeleteWebhook={grace_delete},ResourceConsist={}",
            parts.traffic
        );
        let mut install = vec!["install", "--webhook-url", &url, "--feature-gates", &gates];
        let mounted = ["--mounted-certificates", "--ca-file", &ca];
        install.extend(
            (!certificates_kept)
                .then_some(mounted)
                .into_iter()
                .flatten(),
        );
        install.extend((!parts.webhooks).then_some("--fixed-webhooks"));
        cluster.operating(&install).await;
        until_granted(&cluster, parts).await;

        let account = cluster
            .plane
            .kubeconfig_for_service_account(names::NAMESPACE, names::SERVICE_ACCOUNT)
            .await
            .unwrap();
        let account = account.to_str().unwrap();
        let mut flags = vec!["--kubeconfig", account, "--webhook-url", &url];
        flags.extend(["--feature-gates", &gates]);
        flags.extend(grace_delete.then_some("--trust-callers"));
        flags.extend((!parts.webhooks).then_some("--fixed-webhooks"));
        let directory = certificates.path().to_str().unwrap();
        flags.extend(
            (!certificates_kept)
                .then_some(["--cert-dir", directory])
                .into_iter()
                .flatten(),
        );
        let name = format!("{collasets}-{grace_delete}-{certificates_kept}");
        let replica = cluster.replica(&name, &flags).await;
        lb.add(replica.listen);
        exercise(&cluster, parts).await;
        let code = replica.leave(&lb).await.unwrap();
        assert_eq!(code, Some(0));

        let events = cluster.plane.audit_events().await.unwrap();
        let server = format!(
            "system:serviceaccount:{}:{}",
            names::NAMESPACE,
            names::SERVICE_ACCOUNT
        );
        let ours: Vec<_> = events[read..]
            .iter()
            .filter(|e| e.user.username == server)
            .collect();
        read = events.len();
        let refused = ours
            .iter()
            .filter(|e| e.response_status.as_ref().is_some_and(|s| s.code == 403));
        let refused: BTreeSet<_> = refused.map(|e| (&e.verb, &e.request_uri)).collect();
        assert!(refused.is_empty(), "{parts:?}: {refused:#?}");
        let now: BTreeSet<Right> = ours.iter().filter_map(|event| right(event)).collect();
        assert!(now.len() > 20, "{now:?}");
        assert_rights_follow_features(parts, &now);
        used.extend(now);
    }
    let unused: Vec<_> = granted()
        .into_iter()
        .filter(|right| !used.contains(right))
        .filter(|(verb, _, resource)| !ELSEWHERE.iter().any(|(v, r, _)| v == verb && r == resource))
        .collect();
    assert!(
        unused.is_empty(),
        "used: {used:#?}\ngiven and not used: {unused:?}"
    );
}

/// The server uses the rights of a feature only while the feature is enabled.
fn assert_rights_follow_features(parts: EnabledFeatures, now: &BTreeSet<Right>) {
    let has = |verb: &str, resource: &str| now.iter().any(|(v, _, r)| v == verb && r == resource);
    assert_eq!(has("create", "pods"), parts.collasets, "{parts:?}");
    assert_eq!(
        has("create", "persistentvolumeclaims"),
        parts.collasets,
        "{parts:?}"
    );
    assert_eq!(
        has("watch", "controllerrevisions"),
        parts.collasets,
        "{parts:?}"
    );
    assert_eq!(
        has("delete", "pods"),
        parts.collasets || parts.grace_delete,
        "{parts:?}"
    );
    assert_eq!(
        has("create", "pods/eviction"),
        parts.grace_delete,
        "{parts:?}"
    );
    for (verb, resource) in [("watch", "services"), ("patch", "services/status")] {
        assert_eq!(has(verb, resource), parts.traffic, "{parts:?}");
    }
    let secrets = now.iter().any(|(_, _, r)| r == "secrets");
    assert_eq!(secrets, parts.certificates, "{parts:?}");
}

/// Every right in the tables except the reads of `scale` of any kind.
fn granted() -> Vec<Right> {
    let all = PERMISSION_SETS
        .iter()
        .flat_map(|grant| grant.cluster.iter().chain(grant.namespaced));
    let named = all.filter(|access| access.group != "*");
    let rights = |access: &AccessRule| {
        let group = access.group;
        let resources = access.resources.iter();
        let each = resources.flat_map(|r| access.verbs.iter().map(move |v| (*v, *r)));
        let each = each.map(|(v, r)| (v.to_owned(), group.to_owned(), r.to_owned()));
        each.collect::<Vec<_>>()
    };
    named.flat_map(rights).collect()
}

/// The right that a request needed; `None` for a request about no object.
fn right(event: &Event) -> Option<Right> {
    let object = event.object_ref.as_ref()?;
    let resource = match object.subresource.as_str() {
        "" => object.resource.clone(),
        subresource => format!("{}/{subresource}", object.resource),
    };
    Some((event.verb.clone(), object.api_group.clone(), resource))
}

/// A directory with a certificate for `localhost`, and the file of the CA that signed it.
fn certificates() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let write = |name: &str, pem: String| std::fs::write(directory.path().join(name), pem).unwrap();
    write("tls.crt", signed.cert.pem());
    write("tls.key", signed.signing_key.serialize_pem());
    let ca = directory
        .path()
        .join("tls.crt")
        .to_str()
        .unwrap()
        .to_owned();
    (directory, ca)
}

/// Waits until the API server's authorizer has seen the installed roles.
async fn until_granted(cluster: &Cluster, parts: EnabledFeatures) {
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client());
    for (verb, resource, name, expected) in [
        ("create", "leases", "", true),
        ("create", "pods", "", parts.collasets),
        ("delete", "pods", "", parts.collasets || parts.grace_delete),
        ("update", "secrets", names::SECRET, parts.certificates),
    ] {
        let mut review = SubjectAccessReview::default();
        let (namespace, account) = (names::NAMESPACE, names::SERVICE_ACCOUNT);
        review.spec.user = Some(format!("system:serviceaccount:{namespace}:{account}"));
        let group = if resource == "leases" {
            "coordination.k8s.io"
        } else {
            ""
        };
        review.spec.resource_attributes = Some(ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            name: Some(name.to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        });
        wait::until(&format!("{verb} {resource}: {expected}"), async || {
            let answer = reviews.create(&PostParams::default(), &review).await;
            answer.unwrap().status.unwrap().allowed == expected
        })
        .await;
    }
}

fn is_available(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && pod.labels().contains_key(keys::SERVICE_AVAILABLE)
}

/// Waits until this number of Pods serves. Returns their names.
async fn serving(pods: &Api<Pod>, app: &str, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    wait::until("Pods serve", async || {
        let listed = ListParams::default().labels(&format!("app={app}"));
        let found = pods.list(&listed).await.unwrap().items;
        names = found
            .iter()
            .filter(|pod| is_available(pod))
            .map(ResourceExt::name_any)
            .collect();
        names.len() == count
    })
    .await;
    names
}

/// Uses all parts of the server a little.
async fn exercise(cluster: &Cluster, parts: EnabledFeatures) {
    let namespace = cluster.ruled_namespace(&[]).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let post = PostParams::default();
    let labels = json!({"app": "load", keys::CONTROL: keys::CONTROL_VALUE});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "load"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "load"}}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1"}]},
        }},
    }))
    .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), &namespace);
    deployments.create(&post, &deployment).await.unwrap();
    let first = serving(&pods, "load", 2).await.remove(0);
    // With a rule no deletion is denied, because one of two Pods may go. With graceful deletions a deletion is denied
    // until the Pod is off traffic.
    wait::until("a Pod is deleted", async || {
        match pods.delete(&first, &DeleteParams::default()).await {
            Ok(_) => true,
            Err(Error::Api(status)) => status.code == 404,
            Err(other) => panic!("{other}"),
        }
    })
    .await;
    serving(&pods, "load", 2).await;
    if parts.grace_delete {
        for evicts in [false, true] {
            is_gone_after_one_request(&pods, evicts).await;
            serving(&pods, "load", 2).await;
        }
    }
    if parts.collasets {
        collaset(cluster, &namespace, &pods).await;
    }
    if parts.traffic {
        traffic(cluster, &namespace).await;
    }
}

/// Has the traffic of a Service managed until its Pods serve, and deletes the Service.
async fn traffic(cluster: &Cluster, namespace: &str) {
    let services: Api<Service> = Api::namespaced(cluster.client(), namespace);
    let service = serde_json::from_value(json!({
        "metadata": {"name": "load", "labels": {keys::CONTROL: keys::CONTROL_VALUE}},
        "spec": {"selector": {"app": "load"}, "ports": [{"port": 80}]},
    }))
    .unwrap();
    services
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    wait::until("the Service to be consistent", async || {
        let status = services
            .get("load")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        conditions.iter().any(|condition| {
            let registered = condition.message.starts_with("2 registered");
            condition.type_ == keys::CONSIST_CONDITION && condition.status == "True" && registered
        })
    })
    .await;
    services
        .delete("load", &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the Service is gone", async || {
        services.get_opt("load").await.unwrap().is_none()
    })
    .await;
}

/// A deletion or an eviction that is requested once, and completed by the server.
async fn is_gone_after_one_request(pods: &Api<Pod>, evicts: bool) {
    let name = serving(pods, "load", 2).await.remove(0);
    wait::until("a Pod is marked", async || {
        if evicts {
            return pods.evict(&name, &EvictParams::default()).await.is_err();
        }
        let asked = pods.delete(&name, &DeleteParams::default()).await;
        asked.is_err()
    })
    .await;
    wait::until("the server deletes it", async || {
        let found = pods.get_opt(&name).await.unwrap();
        found.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
}

/// Creates a CollaSet with PVCs, and deletes it.
async fn collaset(cluster: &Cluster, namespace: &str, pods: &Api<Pod>) {
    let sets: Api<CollaSet> = Api::namespaced(cluster.client(), namespace);
    let set = |name: &str, claims: bool| -> CollaSet {
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        let template = json!([{
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }]);
        serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": {"name": name},
            "spec": {
                "replicas": 2, "selector": {"matchLabels": {"app": name}},
                "volumeClaimTemplates": if claims { template } else { json!([]) },
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{
                        "name": "c", "image": "i:1", "volumeMounts": if claims { mounts } else { json!([]) },
                    }]},
                },
            },
        }))
        .unwrap()
    };
    let post = PostParams::default();
    wait::until("CollaSets are accepted", async || {
        sets.create(&post, &set("plain", false)).await.is_ok()
    })
    .await;
    sets.create(&post, &set("kept", true)).await.unwrap();
    serving(pods, "plain", 2).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client(), namespace);
    wait::until("claims are made", async || {
        claims
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len()
            == 2
    })
    .await;
    let change = Patch::Merge(json!({"spec": {"replicas": 1}}));
    sets.patch("plain", &PatchParams::default(), &change)
        .await
        .unwrap();
    serving(pods, "plain", 1).await;
    for name in ["plain", "kept"] {
        sets.delete(name, &DeleteParams::default()).await.unwrap();
        wait::until("the set is gone", async || {
            sets.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
}
