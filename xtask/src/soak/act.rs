//! Carrying out one operation: one request.

use anyhow::Result;
use http::Request;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::observer::resource;

use super::ops::{Kind, Operation};
use super::tenant::{self, BARE, OWNERS, TIER};

/// Owners that the tenant makes and deletes during the soak.
const EXTRA: [&str; 3] = ["extra-0", "extra-1", "extra-2"];
/// Most Pods without an owner.
const MOST_BARE: usize = 8;
const CONTROL: &str = "kusionstack.io/control";
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Finalizer of the tenant's own.
pub const FINALIZER: &str = "soak.operating.test/hold";
/// Finalizer of a cooperator of the lifecycle.
pub const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/soak";

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The API server carried the request out.
    Admitted,
    /// The API server refused: 429, or 403 by rights or admission.
    Denied,
    /// 400, 404, 409, 422: the object was gone, had changed, or cannot be changed so.
    Void,
    /// No answer, or an error of the API server or a webhook.
    Failed,
    /// There was nothing to do it to.
    Idle,
}

/// The tenant at work in a namespace.
pub struct Actor {
    /// The tenant.
    pub client: Client,
    /// The administrator, for nodes and for what kubelets do.
    pub admin: Client,
    /// Where all of it happens.
    pub namespace: String,
    /// Simulated nodes.
    pub nodes: usize,
}

impl Actor {
    fn api(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind)
    }

    fn pods(&self) -> Api<DynamicObject> {
        self.api(&resource("", "v1", "Pod"))
    }

    /// Carries an operation out on one of `pods`, the Pods that were there a moment ago.
    pub async fn carry_out(&self, operation: Operation, pods: &[DynamicObject]) -> Outcome {
        match self.request(operation, pods).await {
            Ok(true) => Outcome::Admitted,
            Ok(false) => Outcome::Idle,
            Err(kube::Error::Api(status)) => match status.code {
                429 | 403 => Outcome::Denied,
                400 | 404 | 409 | 422 => Outcome::Void,
                _ => Outcome::Failed,
            },
            Err(_) => Outcome::Failed,
        }
    }

    /// Returns false when there is nothing to do.
    async fn request(&self, operation: Operation, pods: &[DynamicObject]) -> kube::Result<bool> {
        let Operation {
            kind,
            target,
            detail,
            ..
        } = operation;
        match kind {
            Kind::CreatePod => return self.create_pod(operation, pods).await,
            Kind::Scale
            | Kind::ScaleSubresource
            | Kind::RollOut
            | Kind::RolloutRestart
            | Kind::Pause
            | Kind::Resume
            | Kind::Strategy => return self.owner(kind, target, detail).await,
            Kind::CreateOwner
            | Kind::DeleteOwner
            | Kind::DeleteOwnerForeground
            | Kind::OrphanPods => {
                return self.extra(kind, target, detail).await;
            }
            Kind::CreateBudget | Kind::EditBudget | Kind::DeleteBudget => {
                return self.budget(kind, target, detail).await;
            }
            Kind::Cordon | Kind::Uncordon => return self.node(kind, target).await,
            _ => {}
        }
        let fits = |pod: &&DynamicObject| self.fits(kind, pod);
        let fitting: Vec<_> = pods.iter().filter(fits).collect();
        let Some(pod) = pick(&fitting, target) else {
            return Ok(false);
        };
        self.pod(kind, pod, operation, pods).await
    }

    /// Whether an operation has a meaning for a Pod.
    fn fits(&self, kind: Kind, pod: &DynamicObject) -> bool {
        let managed = pod.labels().contains_key(CONTROL);
        let has = |finalizer: &str| pod.finalizers().iter().any(|f| f == finalizer);
        let own = |prefix: &str| {
            let mut keys = pod.labels().keys();
            keys.any(|key| {
                key.starts_with(&format!("{prefix}.podopslifecycle.kusionstack.io/soak-"))
            })
        };
        // The update of a CollaSet takes the resources back. The API server refuses that where they had been absent, and the
        // Pod then stays in `operate`: no violation, and not at rest either.
        let by_collaset = pod.owner_references().iter().any(|o| o.kind == "CollaSet");
        match kind {
            Kind::ResizeCpu | Kind::ResizeMemory | Kind::ResizeSameMemory | Kind::ResizePod
                if by_collaset =>
            {
                false
            }
            Kind::RestoreControl => !managed,
            Kind::RestoreTier => !pod.labels().contains_key(TIER.0),
            Kind::DropFinalizer => has(FINALIZER),
            Kind::Unprotect => has(PROTECTION),
            Kind::Finish | Kind::Undo => own("operating"),
            Kind::DropOwner | Kind::ChangeOwner => !pod.owner_references().is_empty(),
            Kind::ResizePod => pod.data["spec"]["resources"].is_object(),
            Kind::ResizeMemory | Kind::ResizeSameMemory => {
                !pod.data["spec"]["resources"].is_object()
            }
            _ => true,
        }
    }

    async fn pod(
        &self,
        kind: Kind,
        pod: &DynamicObject,
        operation: Operation,
        pods: &[DynamicObject],
    ) -> kube::Result<bool> {
        let detail = operation.detail;
        match kind {
            Kind::Delete
            | Kind::DeleteGraceZero
            | Kind::DeleteWithUid
            | Kind::DeleteWithWrongUid
            | Kind::DeleteForeground
            | Kind::DeleteOrphan
            | Kind::DeleteDryRun
            | Kind::DeleteCollection => self.delete_pod(kind, pod).await,
            Kind::Evict
            | Kind::EvictWithUid
            | Kind::EvictWithVersion
            | Kind::EvictGraceZero
            | Kind::EvictDryRun => self.evict_pod(kind, pod).await,
            Kind::BeginMany => self.begin_many(detail, pods).await,
            Kind::Image | Kind::BadImage | Kind::ImageAndLabel | Kind::Replace => {
                self.change_image(kind, pod, detail).await
            }
            Kind::ResizeCpu | Kind::ResizeMemory | Kind::ResizeSameMemory | Kind::ResizePod => {
                self.resize_pod(kind, pod, detail).await
            }
            Kind::EphemeralContainer => {
                let container =
                    json!({"name": format!("debug-{}", operation.index), "image": "debug:1"});
                let patch = json!({"spec": {"ephemeralContainers": [container]}});
                self.subresource("ephemeralcontainers", &pod.name_any(), patch)
                    .await
            }
            Kind::Status | Kind::Flap => self.report_unready(kind, pod).await,
            _ => match merge_patch(kind, pod, detail, pods) {
                None => Ok(false),
                Some(patch) => {
                    let patch = Patch::Merge(patch);
                    self.pods()
                        .patch(&pod.name_any(), &PatchParams::default(), &patch)
                        .await?;
                    Ok(true)
                }
            },
        }
    }

    async fn delete_pod(&self, kind: Kind, pod: &DynamicObject) -> kube::Result<bool> {
        let options = match kind {
            Kind::DeleteCollection => {
                let app = pod.labels().get("app").cloned().unwrap_or_default();
                let selector = ListParams::default().labels(&format!("app={app}"));
                let params = DeleteParams::default();
                self.pods().delete_collection(&params, &selector).await?;
                return Ok(true);
            }
            Kind::DeleteGraceZero => json!({"gracePeriodSeconds": 0}),
            Kind::DeleteWithUid => json!({"preconditions": {"uid": pod.uid()}}),
            Kind::DeleteWithWrongUid => json!({"preconditions": {"uid": "wrong"}}),
            Kind::DeleteForeground => json!({"propagationPolicy": "Foreground"}),
            Kind::DeleteOrphan => json!({"propagationPolicy": "Orphan"}),
            Kind::DeleteDryRun => json!({"dryRun": ["All"]}),
            _ => json!({}),
        };
        self.delete(&pod.name_any(), options).await
    }

    async fn evict_pod(&self, kind: Kind, pod: &DynamicObject) -> kube::Result<bool> {
        let options = match kind {
            Kind::EvictWithUid => json!({"preconditions": {"uid": pod.uid()}}),
            Kind::EvictWithVersion => {
                json!({"preconditions": {"resourceVersion": pod.resource_version()}})
            }
            Kind::EvictGraceZero => json!({"gracePeriodSeconds": 0}),
            Kind::EvictDryRun => json!({"dryRun": ["All"]}),
            _ => json!({}),
        };
        self.evict(&pod.name_any(), options).await
    }

    async fn change_image(
        &self,
        kind: Kind,
        pod: &DynamicObject,
        detail: u64,
    ) -> kube::Result<bool> {
        let name = pod.name_any();
        let image = match kind {
            Kind::BadImage => "web:bad-1".to_owned(),
            _ => format!("web:{}", 1 + detail % 4),
        };
        if kind == Kind::Replace {
            let mut whole = self.pods().get(&name).await?;
            whole
                .labels_mut()
                .insert("replaced".to_owned(), detail.to_string());
            whole.data["spec"]["containers"][0]["image"] = json!(image);
            self.pods()
                .replace(&name, &PostParams::default(), &whole)
                .await?;
            return Ok(true);
        }
        let containers = json!([{"name": "main", "image": image}]);
        let mut patch = json!({"spec": {"containers": containers}});
        if kind == Kind::ImageAndLabel {
            patch["metadata"] = json!({"labels": {AVAILABLE: null}});
        }
        self.strategic(&name, patch).await
    }

    async fn resize_pod(&self, kind: Kind, pod: &DynamicObject, detail: u64) -> kube::Result<bool> {
        let name = pod.name_any();
        let requests = match kind {
            Kind::ResizeCpu => json!({"cpu": format!("{}m", 100 + 50 * (detail % 3))}),
            Kind::ResizeMemory => json!({"memory": (["64Mi", "96Mi", "128Mi"][at(detail, 3)])}),
            Kind::ResizeSameMemory => {
                let requests = &pod.data["spec"]["containers"][0]["resources"]["requests"];
                match requests["memory"].as_str() {
                    Some("64Mi") => json!({"memory": "67108864"}),
                    Some("67108864") => json!({"memory": "64Mi"}),
                    _ => return Ok(false),
                }
            }
            _ => {
                let limit = ["512Mi", "640Mi", "768Mi"][at(detail, 3)];
                let resize = json!({"spec": {"resources": {"limits": {"memory": limit}}}});
                return self.subresource("resize", &name, resize).await;
            }
        };
        self.resize(&name, requests).await
    }

    /// Writes a status that is not Ready, as the tenant or, for [`Kind::Flap`], as the kubelet.
    async fn report_unready(&self, kind: Kind, pod: &DynamicObject) -> kube::Result<bool> {
        let name = pod.name_any();
        let condition = json!({"type": "Ready", "status": "False"});
        let patch = json!({"status": {"conditions": [condition]}});
        if kind == Kind::Status {
            return self.subresource("status", &name, patch).await;
        }
        let kind = resource("", "v1", "Pod");
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.admin.clone(), &self.namespace, &kind);
        pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        Ok(true)
    }

    /// One operation begins on three Pods at once.
    async fn begin_many(&self, detail: u64, pods: &[DynamicObject]) -> kube::Result<bool> {
        let id = format!("soak-{}", detail % 3);
        let key = |prefix: &str| format!("{prefix}.podopslifecycle.kusionstack.io/{id}");
        let patch =
            json!({"metadata": {"labels": {key("operating"): "1", key("operation-type"): id}}});
        let many = pods
            .iter()
            .cycle()
            .skip(at(detail, pods.len().max(1)))
            .take(3.min(pods.len()));
        let patches = many.map(async |pod| {
            let patch = Patch::Merge(&patch);
            self.pods()
                .patch(&pod.name_any(), &PatchParams::default(), &patch)
                .await
        });
        for patched in futures::future::join_all(patches).await {
            patched?;
        }
        Ok(!pods.is_empty())
    }

    async fn strategic(&self, name: &str, patch: Value) -> kube::Result<bool> {
        let patch = Patch::Strategic(patch);
        self.pods()
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(true)
    }

    async fn resize(&self, name: &str, requests: Value) -> kube::Result<bool> {
        let container = json!({"name": "main", "resources": {"requests": requests}});
        let patch = json!({"spec": {"containers": [container]}});
        self.subresource("resize", name, patch).await
    }

    async fn subresource(&self, name: &str, pod: &str, patch: Value) -> kube::Result<bool> {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/{name}", self.namespace);
        let kind = "application/strategic-merge-patch+json";
        self.send("PATCH", path, kind, patch).await
    }

    async fn delete(&self, pod: &str, mut options: Value) -> kube::Result<bool> {
        options["kind"] = json!("DeleteOptions");
        options["apiVersion"] = json!("v1");
        let path = format!("/api/v1/namespaces/{}/pods/{pod}", self.namespace);
        self.send("DELETE", path, "application/json", options).await
    }

    async fn evict(&self, pod: &str, options: Value) -> kube::Result<bool> {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
            "deleteOptions": options,
        });
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", self.namespace);
        self.send("POST", path, "application/json", eviction).await
    }

    async fn send(
        &self,
        method: &str,
        path: String,
        content: &str,
        body: Value,
    ) -> kube::Result<bool> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content)
            .body(body.to_string().into_bytes())
            .map_err(kube::core::request::Error::BuildRequest)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request_text(request).await?;
        Ok(true)
    }

    async fn create_pod(&self, operation: Operation, pods: &[DynamicObject]) -> kube::Result<bool> {
        let bare = |p: &&DynamicObject| p.labels().get("app").is_some_and(|app| app == BARE);
        if pods.iter().filter(bare).count() >= MOST_BARE {
            return Ok(false);
        }
        self.create_bare(operation.index).await?;
        Ok(true)
    }

    /// Creates a Pod without an owner.
    pub async fn create_bare(&self, index: usize) -> kube::Result<()> {
        let mut pod = tenant::template(BARE);
        pod["metadata"]["name"] = json!(format!("{BARE}-{index}"));
        let pod = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
        self.pods().create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    async fn owner(&self, kind: Kind, target: u64, detail: u64) -> kube::Result<bool> {
        let (kind_name, name) = OWNERS[at(target, OWNERS.len())];
        let api = self.api(&tenant::kind(kind_name));
        let template = |part: Value| json!({"spec": {"template": part}});
        // A DaemonSet has as many Pods as nodes; only a Deployment pauses.
        let scales = kind_name != "DaemonSet";
        let replicas = json!({"spec": {"replicas": 3 + detail % 5}});
        let patch = match kind {
            Kind::Scale if scales => replicas,
            Kind::ScaleSubresource if scales => {
                let patch = Patch::Merge(replicas);
                api.patch_scale(name, &PatchParams::default(), &patch)
                    .await?;
                return Ok(true);
            }
            Kind::RollOut => {
                let mut containers = tenant::template(name)["spec"]["containers"].clone();
                containers[0]["image"] = json!(format!("web:{}", 1 + detail % 4));
                template(json!({"spec": {"containers": containers}}))
            }
            Kind::RolloutRestart => {
                template(json!({"metadata": {"annotations": {"restarted": detail.to_string()}}}))
            }
            Kind::Pause if kind_name == "Deployment" => json!({"spec": {"paused": true}}),
            Kind::Resume if kind_name == "Deployment" => json!({"spec": {"paused": false}}),
            Kind::Strategy if kind_name == "Deployment" => {
                let (surge, unavailable) =
                    [("25%", "25%"), ("0", "50%"), ("100%", "25%")][at(detail, 3)];
                json!({"spec": {"strategy": {"rollingUpdate": {
                    "maxSurge": number(surge), "maxUnavailable": unavailable,
                }}}})
            }
            _ => return Ok(false),
        };
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(true)
    }

    /// Owners that come and go. Orphans are adopted when an owner of the same name comes again.
    async fn extra(&self, kind: Kind, target: u64, detail: u64) -> kube::Result<bool> {
        let name = EXTRA[at(target, EXTRA.len())];
        let api = self.api(&tenant::kind("Deployment"));
        let params = match kind {
            Kind::CreateOwner => {
                let object = tenant::owner("Deployment", name, 1 + detail % 4);
                let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
                api.create(&PostParams::default(), &object).await?;
                return Ok(true);
            }
            Kind::DeleteOwner => DeleteParams::background(),
            Kind::DeleteOwnerForeground => DeleteParams::foreground(),
            _ => DeleteParams::orphan(),
        };
        api.delete(name, &params).await?;
        Ok(true)
    }

    async fn budget(&self, kind: Kind, target: u64, detail: u64) -> kube::Result<bool> {
        let (_, name) = OWNERS[at(target, OWNERS.len())];
        let api = self.api(&resource("policy", "v1", "PodDisruptionBudget"));
        match kind {
            Kind::CreateBudget => {
                let budget = json!({
                    "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                    "metadata": {"name": name},
                    "spec": {"maxUnavailable": detail % 3, "selector": {"matchLabels": {"app": name}}},
                });
                let budget = serde_json::from_value(budget).map_err(kube::Error::SerdeError)?;
                api.create(&PostParams::default(), &budget).await?;
            }
            Kind::EditBudget => {
                let patch = Patch::Merge(json!({"spec": {"maxUnavailable": detail % 3}}));
                api.patch(name, &PatchParams::default(), &patch).await?;
            }
            _ => drop(api.delete(name, &DeleteParams::default()).await?),
        }
        Ok(true)
    }

    async fn node(&self, kind: Kind, target: u64) -> kube::Result<bool> {
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.admin.clone());
        // One node always takes Pods.
        let name = format!("worker-{}", at(target, self.nodes - 1));
        match kind {
            Kind::Cordon => nodes.cordon(&name).await?,
            _ => nodes.uncordon(&name).await?,
        };
        Ok(true)
    }
}

/// The merge patch of an operation that is nothing but such a patch. `None` if there is nothing to change.
fn merge_patch(
    kind: Kind,
    pod: &DynamicObject,
    detail: u64,
    pods: &[DynamicObject],
) -> Option<Value> {
    let id = format!("soak-{}", detail % 3);
    let label = |prefix: &str| format!("{prefix}.podopslifecycle.kusionstack.io/{id}");
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    Some(match kind {
        Kind::DropControl => labels(json!({CONTROL: null})),
        Kind::RestoreControl => labels(json!({CONTROL: "true"})),
        Kind::ChangeApp => labels(json!({"app": "away"})),
        Kind::DropTier => labels(json!({TIER.0: null})),
        Kind::RestoreTier => labels(json!({TIER.0: TIER.1})),
        Kind::DropAvailable => labels(json!({AVAILABLE: null})),
        Kind::Begin => labels(json!({label("operating"): "1", label("operation-type"): id})),
        Kind::Finish => labels(own_labels(pod, &["operating"])),
        Kind::Undo => labels(undo_labels(pod)),
        Kind::Annotate => json!({"metadata": {"annotations": {"note": detail.to_string()}}}),
        Kind::AddFinalizer => finalizers(pod, FINALIZER, true),
        Kind::DropFinalizer => finalizers(pod, FINALIZER, false),
        Kind::Protect => finalizers(pod, PROTECTION, true),
        Kind::Unprotect => finalizers(pod, PROTECTION, false),
        Kind::DropOwner => json!({"metadata": {"ownerReferences": null}}),
        Kind::InventOwner => owned(json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "nobody",
            "uid": format!("00000000-0000-4000-8000-{detail:012x}").get(..36), "controller": true,
        })),
        Kind::ChangeOwner => {
            let others = pods.iter().flat_map(ResourceExt::owner_references);
            let mine = pod.owner_references().first().map(|r| r.uid.clone());
            let others: Vec<_> = others.filter(|r| Some(&r.uid) != mine.as_ref()).collect();
            owned(json!(pick(&others, detail)?))
        }
        Kind::Deadline => json!({"spec": {"activeDeadlineSeconds": 1 + detail % 3}}),
        _ => return None,
    })
}

/// Labels that cancel the soak's own operations on a Pod.
fn undo_labels(pod: &DynamicObject) -> Value {
    let mut labels = serde_json::Map::new();
    for key in pod.labels().keys() {
        if let Some(id) = key.strip_prefix("operation-type.podopslifecycle.kusionstack.io/soak-") {
            let key = format!("undo-operation-type.podopslifecycle.kusionstack.io/soak-{id}");
            labels.insert(key, json!(format!("soak-{id}")));
        }
    }
    Value::Object(labels)
}

/// A patch that takes off the labels of the soak's own operations, of these families.
pub fn own_labels(pod: &DynamicObject, families: &[&str]) -> Value {
    let mut labels = serde_json::Map::new();
    for key in pod.labels().keys() {
        let of = |family: &&str| {
            key.starts_with(&format!("{family}.podopslifecycle.kusionstack.io/soak-"))
        };
        if families.iter().any(of) {
            labels.insert(key.clone(), Value::Null);
        }
    }
    Value::Object(labels)
}

/// A patch that adds or drops a finalizer, unless somebody else has changed the finalizers.
pub fn finalizers(pod: &DynamicObject, finalizer: &str, add: bool) -> Value {
    let mut all = pod.finalizers().to_vec();
    all.retain(|f| f != finalizer);
    if add {
        all.push(finalizer.to_owned());
    }
    json!({"metadata": {"finalizers": all, "resourceVersion": pod.resource_version()}})
}

fn owned(reference: Value) -> Value {
    json!({"metadata": {"ownerReferences": [reference]}})
}

fn number(text: &str) -> Value {
    text.parse::<u64>()
        .map_or_else(|_| json!(text), |n| json!(n))
}

fn at(number: u64, len: usize) -> usize {
    usize::try_from(number % len.max(1) as u64).unwrap_or_default()
}

fn pick<T>(all: &[T], number: u64) -> Option<&T> {
    all.get(at(number, all.len()))
}

/// Lists the Pods of a namespace.
pub async fn list(client: &Client, namespace: &str) -> Result<Vec<DynamicObject>> {
    let kind = resource("", "v1", "Pod");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    Ok(api.list(&ListParams::default()).await?.items)
}
