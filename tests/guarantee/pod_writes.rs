//! Writes that end or restart a Pod without deleting it. Of six Pods under a rule that lets one be unavailable, one is
//! admitted and five are refused.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::names;
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope};

const PODS: usize = 6;

/// Six available Pods under a rule that lets one be unavailable. Their kubelet is slow, and lost Pods are not replaced.
async fn six(prefix: &str, extra: Value) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope(prefix).await;
    scope.open_nodes().await;
    let mut template = json!({"spec": {"nodeSelector": {scope.namespace.clone(): "open"}}});
    json_patch::merge(&mut template, &extra);
    scope.deploy("web", PODS, template).await;
    let pods = names(&scope.all_available("app=web", PODS).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_at_rest("web", i32::try_from(PODS).unwrap())
        .await;
    scope.close_nodes().await;
    for pod in &pods {
        scope.pause_kubelet(pod).await;
    }
    (scope, pods)
}

/// Asserts that one of these outcomes is a success and that the budget refused all others.
fn assert_one(outcomes: Vec<kube::Result<()>>) {
    let admitted = outcomes.iter().filter(|o| o.is_ok()).count();
    for outcome in outcomes.into_iter().filter(Result::is_err) {
        let status = refusal(outcome);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests"),
            "{}",
            status.message
        );
    }
    assert_eq!(admitted, 1);
}

/// The outcomes of a write to each Pod, one after another.
async fn one_after_another(
    pods: &[String],
    write: impl AsyncFn(&str) -> kube::Result<()>,
) -> Vec<kube::Result<()>> {
    let mut outcomes = Vec::new();
    for pod in pods {
        outcomes.push(write(pod).await);
    }
    outcomes
}

async fn strategic(scope: &Scope, pod: &str, patch: Value) -> kube::Result<()> {
    let patch = Patch::Strategic(patch);
    let written = scope
        .pods()
        .patch(pod, &PatchParams::default(), &patch)
        .await;
    written.map(drop)
}

fn image() -> Value {
    json!([{"name": "main", "image": "web:2"}])
}

fn carries_label(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    pod.labels().contains_key(keys::SERVICE_AVAILABLE)
}

/// Kuperator accepts such a write, and its controller removes the label again.
#[tokio::test]
async fn service_available_on_unready_pod_is_accepted_and_removed() {
    let (scope, pods) = six("label-by-hand", json!({})).await;
    scope.lose_readiness(&pods[0]).await;
    scope
        .until_pod(&pods[0], "lose its label", |pod| !carries_label(pod))
        .await;
    let by_hand = json!({keys::SERVICE_AVAILABLE: "true"});
    let written = scope.label(&pods[0], by_hand).await.unwrap();
    assert!(!carries_label(&written), "{:?}", written.labels());
    // One of six Pods may be unavailable, and one is.
    let status = refusal(scope.delete(&pods[1]).await);
    assert_eq!(status.code, 429, "{status:?}");
}

#[tokio::test]
async fn image_change_with_removed_label_keeps_the_budget() {
    let (scope, pods) = six("label-image", json!({})).await;
    let outcomes = one_after_another(&pods, async |pod| {
        let patch = json!({
            "metadata": {"labels": {keys::SERVICE_AVAILABLE: null}},
            "spec": {"containers": image()},
        });
        let outcome = strategic(&scope, pod, patch).await;
        // The leader adds the label again at once.
        scope
            .until_pod(pod, "be labelled again", carries_label)
            .await;
        scope
            .until_status("web", "only the claim of the image", |s: &RuleStatus| {
                claims(s) <= 1
            })
            .await;
        outcome
    })
    .await;
    assert_one(outcomes);
}

#[tokio::test]
async fn image_change_of_briefly_unready_pods_keeps_the_budget() {
    let (scope, pods) = six("flap-image", json!({})).await;
    let set_ready = async |pod: &str, ready: &str| {
        let patch = Patch::Strategic(
            json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        );
        let params = PatchParams::default();
        scope
            .pods()
            .patch_status(pod, &params, &patch)
            .await
            .unwrap();
    };
    let outcomes = one_after_another(&pods, async |pod| {
        set_ready(pod, "False").await;
        scope
            .until_pod(pod, "lose its label", |p| !carries_label(p))
            .await;
        let outcome = strategic(&scope, pod, json!({"spec": {"containers": image()}})).await;
        set_ready(pod, "True").await;
        scope
            .until_pod(pod, "be labelled again", carries_label)
            .await;
        outcome
    })
    .await;
    assert_one(outcomes);
}

#[tokio::test]
async fn deadlines_of_running_pods_keep_the_budget() {
    let (scope, pods) = six("deadline", json!({})).await;
    let outcomes = one_after_another(&pods, async |pod| {
        let patch = json!({"spec": {"activeDeadlineSeconds": 1}});
        scope.patch(pod, patch).await.map(drop)
    })
    .await;
    assert_one(outcomes);
}

#[tokio::test]
async fn change_to_absent_controller_keeps_the_budget() {
    let (scope, pods) = six("reown", json!({})).await;
    let outcomes = one_after_another(&pods, async |pod| {
        let owner = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "nobody", "controller": true,
            "uid": "00000000-0000-0000-0000-000000000000",
        }]);
        let patch = json!({"metadata": {"ownerReferences": owner}});
        scope.patch(pod, patch).await.map(drop)
    })
    .await;
    assert_one(outcomes);
}

#[tokio::test]
async fn pod_goes_back_to_its_controller_though_nothing_replaces_it() {
    let (scope, pods) = six("reown-back", json!({})).await;
    let former = scope.get(&pods[0]).await.metadata.owner_references;
    let away = json!([{
        "apiVersion": "none.test/v1", "kind": "None", "name": "nobody", "controller": true,
        "uid": "00000000-0000-0000-0000-000000000000",
    }]);
    let owned_by = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
    scope.patch(&pods[0], owned_by(away)).await.unwrap();
    // The owner asks for six Pods, and one of the existing Pods no longer belongs to it.
    scope
        .until_status("web", "one more", |s: &RuleStatus| s.expected_pods == 7)
        .await;
    let outcome = scope.delete(&pods[1]).await;
    assert_eq!(refusal(outcome).code, 429);
    // The API server does not serve the group of this owner, so no controller can replace the Pod.
    scope
        .patch(&pods[0], owned_by(json!(former)))
        .await
        .unwrap();
    scope.until_at_rest("web", 6).await;
}

/// The API server accepts any text that is not empty as the UID of an owner.
#[tokio::test]
async fn handover_to_owner_uid_with_space_keeps_its_claim() {
    let (scope, pods) = six("reown-space", json!({})).await;
    let away = json!([{
        "apiVersion": "none.test/v1", "kind": "None", "name": "nobody", "controller": true, "uid": "x y",
    }]);
    let away = json!({"metadata": {"ownerReferences": away}});
    scope.patch(&pods[0], away).await.unwrap();
    // Later versions of the Pod must not end the claim.
    for round in 0..3 {
        let touch = json!({"metadata": {"annotations": {"example.com/round": round.to_string()}}});
        scope.patch(&pods[0], touch).await.unwrap();
        let expected = PODS + 1;
        scope
            .until_status("web", "the replacement", |s: &RuleStatus| {
                s.expected_pods == i32::try_from(expected).unwrap()
            })
            .await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(scope.claims("web").await, 1);
}

#[tokio::test]
async fn owner_with_uid_of_another_object_keeps_the_budget() {
    let (scope, pods) = six("borrowed", json!({})).await;
    scope.deploy("idle", 0, json!({})).await;
    let idle = scope.deployments().get("idle").await.unwrap();
    let uid = idle.uid().unwrap();
    let outcomes = one_after_another(&pods, async |pod| {
        // The garbage collector looks up the owner by kind and name, and finds none. Without the label the ReplicaSet
        // does not adopt the Pod again; an adoption would keep the Pod and end its claim.
        let owner =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "nosuch", "uid": uid}]);
        let labels = json!({"pod-template-hash": null});
        let patch = json!({"metadata": {"labels": labels, "ownerReferences": owner}});
        scope.patch(pod, patch).await.map(drop)
    })
    .await;
    assert_one(outcomes);
}

/// Makes the nodes declare, like a real kubelet of 1.36, that they can resize a Pod as a whole. Otherwise the API
/// server refuses the resize.
async fn declare_resize(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let features = Patch::Merge(
        json!({"status": {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}}),
    );
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        nodes
            .patch_status(&node.name_any(), &PatchParams::default(), &features)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn pod_resize_that_restarts_containers_keeps_the_budget() {
    let spec = json!({"spec": {
        "resources": {"limits": {"memory": "10Mi"}, "requests": {"memory": "10Mi"}},
        "containers": [{
            "name": "main", "image": "web:1",
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
        }],
    }});
    declare_resize(&Bed::shared().await.admin()).await;
    let (scope, pods) = six("pod-resize", spec).await;
    let outcomes = one_after_another(&pods, async |pod| {
        let patch =
            Patch::Strategic(json!({"spec": {"resources": {"limits": {"memory": "20Mi"}}}}));
        let params = PatchParams::default();
        let resized = scope.pods().patch_resize(pod, &params, &patch).await;
        resized.map(drop)
    })
    .await;
    assert_one(outcomes);
}

#[tokio::test]
async fn orphaned_pods_stay_and_can_be_adopted() {
    let scope = Bed::shared().await.scope("orphans").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    let before = scope.get(&pods[0]).await.metadata.owner_references;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    scope.deployments().delete("web", &orphan).await.unwrap();
    // First the ReplicaSet becomes an orphan. Then its own deletion makes the Pods orphans.
    let set = before.unwrap().remove(0);
    let sets: Api<ReplicaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let template = sets.get(&set.name).await.unwrap();
    sets.delete(&set.name, &orphan).await.unwrap();
    for pod in &pods {
        scope
            .until_pod(pod, "have no owner", |p| {
                p.metadata
                    .owner_references
                    .as_deref()
                    .unwrap_or_default()
                    .is_empty()
            })
            .await;
    }
    let mut again = template;
    again.metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some("again".to_owned()),
        labels: again.metadata.labels,
        ..Default::default()
    };
    sets.create(&Default::default(), &again).await.unwrap();
    for pod in &pods {
        scope
            .until_pod(pod, "be adopted", |p| {
                p.owner_references().iter().any(|o| o.name == "again")
            })
            .await;
    }
}

/// A client with the account that all controllers of the kube-controller-manager share if they have no accounts of
/// their own.
async fn controller_manager(bed: &Bed) -> Client {
    let kubeconfig = Kubeconfig::read_from(bed.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.default_retry = false; // the test waits for a refusal
    config.auth_info.impersonate = Some("system:kube-controller-manager".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn shared_controller_account_is_held_while_the_owner_exists() {
    let bed = Bed::shared().await;
    let scope = bed.scope("shared-account").await;
    let pods = scope.web_under_rule(2, json!(0)).await;
    let controllers = Scope {
        client: controller_manager(bed).await,
        namespace: scope.namespace.clone(),
    };
    let status = refusal(controllers.delete(&pods[0]).await);
    assert_eq!(status.code, 429, "{}", status.message);
}

#[tokio::test]
async fn expected_finalizer_of_an_object_that_is_gone_is_dropped() {
    let scope = Bed::shared().await.scope("expected").await;
    let key = format!("PersistentVolumeClaim/{}/gone", scope.namespace);
    let expected = json!({"expectedFinalizers": {key: "prot.podopslifecycle.kusionstack.io/gone"}});
    let annotations = json!({keys::AVAILABLE_CONDITIONS: expected.to_string()});
    scope
        .pod("web", json!({"metadata": {"annotations": annotations}}))
        .await;
    scope.all_available("app=web", 1).await;
}
