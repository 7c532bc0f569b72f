//! What tests create and do in their namespace.

use futures::future::join_all;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Client, ResourceExt};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus};
use serde_json::{Value, json};

use super::{Bed, wait};

/// Annotation at which every kwok stage of `testbed/plane/kwok` stops.
pub const PAUSED: &str = "plane.test/paused";

/// A namespace of a test.
#[derive(Clone)]
pub struct Scope {
    pub client: Client,
    pub namespace: String,
}

/// `metadata.labels` of managed Pods of an application.
pub fn labels(app: &str) -> Value {
    json!({"app": app, keys::CONTROL: keys::CONTROL_VALUE})
}

impl Scope {
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn rules(&self) -> Api<PodTransitionRule> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A Deployment of managed Pods labelled `app=<name>`; `extra` is merged into the template.
    pub async fn deploy(&self, name: &str, replicas: usize, extra: Value) {
        let mut template = json!({
            "metadata": {"labels": labels(name)},
            "spec": {
                "containers": [{"name": "main", "image": "web:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        });
        json_patch::merge(&mut template, &extra);
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": template,
            },
        }))
        .unwrap();
        self.deployments()
            .create(&PostParams::default(), &deployment)
            .await
            .unwrap();
    }

    /// A Deployment `web` of available Pods under a rule `web`, at rest. Names of the Pods.
    pub async fn web_under_rule(&self, replicas: usize, max_unavailable: Value) -> Vec<String> {
        self.deploy("web", replicas, json!({})).await;
        let pods = names(&self.all_available("app=web", replicas).await);
        self.rule("web", json!({"app": "web"}), max_unavailable)
            .await;
        self.until_at_rest("web", i32::try_from(replicas).unwrap())
            .await;
        pods
    }

    /// A [`Scope::deploy`] whose Pods can be kept from being replaced: they go to nodes that [`Scope::open_nodes`] and
    /// [`Scope::close_nodes`] open and close to this namespace. What is lost while they are closed stays lost, however
    /// long a test takes.
    pub async fn deploy_where_open(&self, name: &str, replicas: usize) {
        self.open_nodes().await;
        let selector = json!({"spec": {"nodeSelector": {self.namespace.clone(): "open"}}});
        self.deploy(name, replicas, selector).await;
    }

    /// Lets new Pods of this namespace run.
    pub async fn open_nodes(&self) {
        self.label_nodes(json!("open")).await;
    }

    /// Lets new Pods of this namespace wait; those that run go on.
    pub async fn close_nodes(&self) {
        self.label_nodes(Value::Null).await;
    }

    async fn label_nodes(&self, value: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let label = Patch::Merge(json!({"metadata": {"labels": {self.namespace.clone(): value}}}));
        for node in nodes.list(&ListParams::default()).await.unwrap() {
            nodes
                .patch(&node.name_any(), &PatchParams::default(), &label)
                .await
                .unwrap();
        }
    }

    /// A managed Pod without an owner.
    pub async fn pod(&self, name: &str, extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "labels": labels(name)},
            "spec": {
                "containers": [{"name": "main", "image": "web:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        });
        json_patch::merge(&mut pod, &extra);
        self.pods()
            .create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap()
    }

    /// A rule `<name>` with one availability rule `availability` over the Pods that carry `selector`.
    pub async fn rule(
        &self,
        name: &str,
        selector: Value,
        max_unavailable: Value,
    ) -> PodTransitionRule {
        let spec = availability(selector, max_unavailable);
        // An API server of a small machine turns requests away when many tests ask it at once.
        let made = wait::value("a rule", async || {
            match self.try_rule(name, spec.clone()).await {
                Err(kube::Error::Api(status)) if status.message.contains("Too many requests") => {
                    None
                }
                made => Some(made),
            }
        });
        made.await.unwrap()
    }

    /// A rule with any spec.
    pub async fn try_rule(&self, name: &str, spec: Value) -> kube::Result<PodTransitionRule> {
        let rule = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": {"name": name}, "spec": spec,
        });
        let object = serde_json::from_value(rule.clone());
        // Raw, so that what the types cannot express reaches the API server as well.
        let kind = kube::core::ApiResource::erase::<PodTransitionRule>(&());
        let raw: Api<kube::core::DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let created = raw.create(&PostParams::default(), &object.unwrap()).await?;
        Ok(serde_json::from_value(serde_json::to_value(created).unwrap()).unwrap())
    }

    /// All Pods that carry labels such as `app=web`.
    pub async fn list(&self, selector: &str) -> Vec<Pod> {
        self.pods()
            .list(&ListParams::default().labels(selector))
            .await
            .unwrap()
            .items
    }

    /// Waits until exactly `count` Pods carry the labels and all of them are available.
    pub async fn all_available(&self, selector: &str, count: usize) -> Vec<Pod> {
        let last = std::sync::Mutex::new(String::new());
        let what = format!("{count} available Pods {selector}");
        let looking = wait::value(&what, async || {
            let pods = self.list(selector).await;
            let available = pods.iter().filter(|p| is_available(p)).count();
            *last.lock().unwrap() = format!("{available} of {}", pods.len());
            (available == count && pods.len() == count).then_some(pods)
        });
        looking.await
    }

    pub async fn status(&self, rule: &str) -> PodTransitionRuleStatus {
        self.rules()
            .get(rule)
            .await
            .unwrap()
            .status
            .unwrap_or_default()
    }

    /// Waits until the status of a rule is as wanted.
    pub async fn until_status(
        &self,
        rule: &str,
        what: &str,
        wanted: impl Fn(&PodTransitionRuleStatus) -> bool,
    ) {
        let what = format!("{what} in the status of {rule}");
        wait::until(&what, async || {
            let status = self.rules().get(rule).await.ok().and_then(|r| r.status);
            status.is_some_and(|s| wanted(&s))
        })
        .await;
    }

    /// Waits until a rule has counted `expected` Pods, all available, and no claim is left. The Pods themselves are asked
    /// too: the figures of the status follow them a moment later.
    pub async fn until_at_rest(&self, rule: &str, expected: i32) {
        let what = format!("{expected} available Pods and no claims in the status of {rule}");
        wait::until(&what, async || {
            let Ok(rule) = self.rules().get(rule).await else {
                return false;
            };
            let labels = rule
                .spec
                .selector
                .and_then(|s| s.match_labels)
                .unwrap_or_default();
            let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let pods = self.list(&labels.join(",")).await;
            let serving = pods.iter().filter(|p| is_managed(p) && is_available(p));
            let serving = i32::try_from(serving.count()).unwrap();
            let counted = rule.status.is_some_and(|s| {
                s.expected_pods == expected && s.available_pods == expected && claims(&s) == 0
            });
            counted && serving == expected
        })
        .await;
    }

    pub async fn delete(&self, pod: &str) -> kube::Result<()> {
        self.pods()
            .delete(pod, &DeleteParams::default())
            .await
            .map(drop)
    }

    pub async fn evict(&self, pod: &str) -> kube::Result<()> {
        self.pods()
            .evict(pod, &EvictParams::default())
            .await
            .map(drop)
    }

    /// A merge patch of a Pod.
    pub async fn patch(&self, pod: &str, patch: Value) -> kube::Result<Pod> {
        self.pods()
            .patch(pod, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// A merge patch of a Pod's labels.
    pub async fn label(&self, pod: &str, labels: Value) -> kube::Result<Pod> {
        self.patch(pod, json!({"metadata": {"labels": labels}}))
            .await
    }

    /// Begins the operation `id` of type `id` on a Pod.
    pub async fn begin(&self, pod: &str, id: &str) -> kube::Result<Pod> {
        self.label(
            pod,
            json!({Family::Operating.key(id): "1", Family::OperationType.key(id): id}),
        )
        .await
    }

    /// Tells that the operation `id` is done.
    pub async fn finish(&self, pod: &str, id: &str) -> kube::Result<Pod> {
        self.label(pod, json!({Family::Operating.key(id): null}))
            .await
    }

    /// Keeps the kubelet from doing anything about a Pod until [`Scope::resume_kubelet`]: it is slow, or the Pod takes
    /// its time to end.
    pub async fn pause_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: "true"})).await;
    }

    pub async fn resume_kubelet(&self, pod: &str) {
        self.annotate(pod, json!({PAUSED: null})).await;
    }

    #[allow(dead_code)] // of the tests that share the bed, some have no use for it
    /// A Pod stops being Ready by itself, until [`Scope::resume_kubelet`].
    pub async fn lose_readiness(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        self.freeze(pod, status).await;
    }

    #[allow(dead_code)] // as above
    /// A Pod that [`Scope::lose_readiness`] struck is Ready again.
    pub async fn become_ready(&self, pod: &str) {
        let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.freeze(pod, status).await;
    }

    #[allow(dead_code)] // as above
    /// The container of a Pod crashes again and again, until [`Scope::resume_kubelet`].
    pub async fn crash(&self, pod: &str) {
        let status = json!({
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{
                "name": "main", "image": "web:1", "imageID": "", "ready": false, "restartCount": 7,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            }],
        });
        self.freeze(pod, status).await;
    }

    #[allow(dead_code)] // as above
    async fn freeze(&self, pod: &str, status: Value) {
        self.pause_kubelet(pod).await;
        let patch = Patch::Strategic(json!({"status": status}));
        self.pods()
            .patch_status(pod, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn annotate(&self, pod: &str, annotations: Value) {
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch(pod, patch).await.unwrap();
    }

    pub async fn get(&self, pod: &str) -> Pod {
        self.pods().get(pod).await.unwrap()
    }

    /// Waits until a Pod is as wanted.
    pub async fn until_pod(&self, pod: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        wait::value(&format!("{pod}: {what}"), async || {
            self.pods()
                .get_opt(pod)
                .await
                .ok()
                .flatten()
                .filter(|p| wanted(p))
        })
        .await
    }

    pub async fn until_gone(&self, pod: &Pod) {
        let name = pod.name_any();
        wait::until(&format!("{name} to go"), async || {
            let found = self.pods().get_opt(&name).await;
            found.is_ok_and(|p| p.is_none_or(|p| p.metadata.uid != pod.metadata.uid))
        })
        .await;
    }

    pub fn stateful_sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a StatefulSet `web` of managed Pods labelled `app=web`, which all start at once.
    pub async fn stateful_set(&self, replicas: usize) -> StatefulSet {
        let set = json!({
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas, "serviceName": "web", "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": labels("web")},
                    "spec": {"containers": [{"name": "main", "image": "web:1"}], "terminationGracePeriodSeconds": 1},
                },
            },
        });
        let set = serde_json::from_value(set).unwrap();
        let sets = self.stateful_sets();
        sets.create(&PostParams::default(), &set).await.unwrap()
    }

    /// Deletes the namespace, and waits until it is gone.
    pub async fn delete_namespace(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let delete = DeleteParams::default();
        namespaces.delete(&self.namespace, &delete).await.unwrap();
        wait::until("the namespace to go", async || {
            let found = namespaces.get_opt(&self.namespace).await;
            found.is_ok_and(|n| n.is_none())
        })
        .await;
    }

    pub async fn scale(&self, deployment: &str, replicas: usize) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments()
            .patch(deployment, &PatchParams::default(), &patch)
            .await
            .map(drop)
    }
}

/// Whether a Pod serves, judged by what the API shows and not by the code under test.
pub fn is_available(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default();
    pod.labels().contains_key(keys::SERVICE_AVAILABLE)
        && condition(pod, "Ready") == Some(true)
        && pod.metadata.deletion_timestamp.is_none()
        && !["Succeeded", "Failed"].contains(&phase)
}

/// Labels of the operations that are in flight on a Pod.
pub fn in_flight(pod: &Pod) -> Vec<&String> {
    pod.labels()
        .keys()
        .filter(|k| k.contains(keys::LIFECYCLE_DOMAIN))
        .collect()
}

/// Whether a Pod serves and nothing of an operation is left on it.
pub fn is_idle(pod: &Pod) -> bool {
    is_available(pod) && in_flight(pod).is_empty()
}

fn is_managed(pod: &Pod) -> bool {
    let label = pod.labels().get(keys::CONTROL);
    label.is_some_and(|value| value == keys::CONTROL_VALUE)
}

/// Whether a condition is True; `None` when it is absent.
pub fn condition(pod: &Pod, type_: &str) -> Option<bool> {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .into_iter()
        .find(|c| c.type_ == type_)
        .map(|c| c.status == "True")
}

/// The condition behind the readiness gate.
pub fn service_ready(pod: &Pod) -> Option<bool> {
    condition(pod, keys::SERVICE_READY)
}

/// Whether the operation `id` may be done, and the kubelet has seen that traffic is off. It trails behind: an operation
/// over before that would make the Pod flap once it is back.
pub fn may_operate(pod: &Pod, id: &str) -> bool {
    pod.labels().contains_key(&Family::Operate.key(id)) && condition(pod, "Ready") != Some(true)
}

pub fn claims(status: &PodTransitionRuleStatus) -> usize {
    status.ledger.as_ref().map_or(0, |l| l.claims.len())
}

/// The Status of a refusal.
pub fn refusal<T: std::fmt::Debug>(outcome: kube::Result<T>) -> Status {
    match outcome {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("a refusal by the API server, not {other:?}"),
    }
}

/// Names of Pods.
pub fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

/// Runs one request for each Pod, all at once.
pub async fn at_once<T, F: Future<Output = T>>(
    pods: &[String],
    request: impl Fn(String) -> F,
) -> Vec<T> {
    join_all(pods.iter().cloned().map(request)).await
}

/// The spec of a rule with one availability rule `availability` over the Pods that carry `selector`.
pub fn availability(selector: Value, max_unavailable: Value) -> Value {
    let rules = json!([{"name": "availability", "availablePolicy": {"maxUnavailableValue": max_unavailable}}]);
    json!({"selector": {"matchLabels": selector}, "rules": rules})
}

/// Waits until the API server calls the webhooks: the gate is there, and a rule can be made.
pub async fn until_enforcing(bed: &Bed) {
    let pods: Api<Pod> = Api::namespaced(bed.admin(), "default");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "probe", "labels": labels("probe")},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    }))
    .unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait::until("the webhooks to be called", async || {
        let created = pods.create(&dry, &pod).await;
        created.is_ok_and(|p| p.spec.is_some_and(|s| s.readiness_gates.is_some()))
    })
    .await;
    let rules: Api<PodTransitionRule> = Api::namespaced(bed.admin(), "default");
    let rule: PodTransitionRule = serde_json::from_value(json!({
        "metadata": {"name": "probe"},
        "spec": {"selector": {}, "rules": [{"name": "a", "availablePolicy": {"maxUnavailableValue": 1}}]},
    }))
    .unwrap();
    wait::until("a rule to be accepted", async || {
        rules.create(&dry, &rule).await.is_ok()
    })
    .await;
}
