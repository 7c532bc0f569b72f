//! A Service whose traffic is managed, and the marks of its Pods.

use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::domain::traffic::names::EmployerName;
use operating::domain::traffic::report::EmployerReport;
use serde_json::{Value, json};
use testbed::{Scope, wait};

use crate::bed::TrafficBed;
use crate::policies::Policy;
use crate::sets::Set;

/// A Service of the namespace, which selects `app=<name>`.
pub struct Employer<'a> {
    pub scope: &'a Scope,
    pub name: EmployerName,
    pub api: Api<Service>,
}

/// The object of a Service whose traffic is managed, with `part` merged into it. Pods are drained for a second.
pub fn object(name: &str, part: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "labels": { (keys::CONTROL): "true" },
            "annotations": { (keys::CONSIST_DRAIN_SECONDS): "1" },
        },
        "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] },
    });
    json_patch::merge(&mut object, &part);
    object
}

/// The part of a Service that the HTTP adapter manages.
pub fn edge() -> Value {
    managed_by("edge")
}

/// The part of a Service that the HTTP adapter of this name manages.
pub fn managed_by(adapter: &str) -> Value {
    json!({
        "metadata": { "annotations": { (keys::CONSIST_ADAPTER): adapter } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

/// A Service and a set of Pods that serve.
pub async fn serving<'a>(scope: &'a Scope, replicas: i32) -> (Employer<'a>, Set<'a>) {
    serving_by(scope, "edge", replicas).await
}

/// A Service of this HTTP adapter, and a set of Pods that serve.
pub async fn serving_by<'a>(
    scope: &'a Scope,
    adapter: &str,
    replicas: i32,
) -> (Employer<'a>, Set<'a>) {
    let web = Employer::new(scope, "web", managed_by(adapter)).await;
    let set = Set::new(scope, "web", replicas, json!({})).await;
    web.consistent(usize::try_from(replicas).unwrap()).await;
    (web, set)
}

/// The names of the Pods of a set, in order.
pub async fn names(set: &Set<'_>) -> Vec<String> {
    let mut names = set.names().await;
    names.sort();
    names
}

/// The names and addresses of so many Pods of a set, once they have some.
pub async fn addresses(set: &Set<'_>, count: usize) -> Vec<(String, String)> {
    wait::value("Pods with addresses", async || {
        let pods = set.pods().await;
        let address = |pod: &Pod| {
            let address = pod.status.as_ref()?.pod_ip.clone()?;
            Some((pod.name_any(), address))
        };
        let found: Vec<_> = pods.values().filter_map(address).collect();
        (found.len() == count).then_some(found)
    })
    .await
}

/// The annotation that chooses an adapter.
pub fn adapter(name: &str) -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } })
}

/// The adapters that may have registered members, as recorded.
pub async fn in_use(web: &Employer<'_>) -> String {
    let service = web.get().await;
    let record = service.annotations().get(keys::CONSIST_ADAPTER_IN_USE);
    record.cloned().unwrap_or_default()
}

/// Begins a move to the adapter `guarded`, whose load balancer is down.
pub async fn move_to_one_that_is_down(bed: &TrafficBed, web: &Employer<'_>) {
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |report| {
        report.last_error.is_some() && report.adapter == "guarded"
    })
    .await;
}

/// A Service of `endpoints` with two Pods. An operation drains the first one, for this many seconds.
pub async fn draining_behind_endpoints(scope: &Scope, seconds: u64) -> (Employer<'_>, Vec<String>) {
    let seconds = seconds.to_string();
    let drain =
        json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): seconds } } });
    let web = Employer::new(scope, "web", drain).await;
    let set = Set::new(scope, "web", 2, json!({})).await;
    let pods = names(&set).await;
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    scope.begin(&pods[0], "manual").await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    (web, pods)
}

/// Checks that each of these Pods serves at the load balancer of `edge` or at that of `guarded`.
pub fn assert_each_serves(bed: &TrafficBed, scope: &Scope, pods: &[String]) {
    // Read in this order, because members go from the first to the second.
    let (before, after) = (
        bed.http.serving(&scope.namespace),
        bed.guarded.serving(&scope.namespace),
    );
    let serves = |pod: &String| before.contains(pod) || after.contains(pod);
    assert!(pods.iter().all(serves), "{before:?} {after:?}");
}

/// Makes the API server refuse a record that is shorter than before, so that the end of a move can't be recorded.
pub async fn refuse_ends_of_moves(scope: &Scope) -> Policy<'_> {
    refuse_records(scope, ">=").await
}

/// Makes the API server refuse a record that is longer than before, so that the begin of a move can't be recorded.
pub async fn refuse_begins_of_moves(scope: &Scope) -> Policy<'_> {
    refuse_records(scope, "<=").await
}

/// Lets only records pass whose size compares in this way with that of the former one.
async fn refuse_records<'a>(scope: &'a Scope, order: &str) -> Policy<'a> {
    let key = keys::CONSIST_ADAPTER_IN_USE;
    let record = |object: &str| format!("{object}.metadata.annotations['{key}']");
    let (old, new) = (record("oldObject"), record("object"));
    let passes = format!("size({new}) {order} size({old})");
    Policy::new(scope, ("UPDATE", "services"), &passes, "Invalid").await
}

impl<'a> Employer<'a> {
    /// Creates a Service with `part` merged into it.
    pub async fn new(scope: &'a Scope, name: &str, part: Value) -> Employer<'a> {
        let api: Api<Service> = Api::namespaced(scope.client.clone(), &scope.namespace);
        let service = serde_json::from_value(object(name, part)).unwrap();
        api.create(&PostParams::default(), &service).await.unwrap();
        Employer {
            name: EmployerName::new("Service", &scope.namespace, name),
            scope,
            api,
        }
    }

    pub async fn get(&self) -> Service {
        self.api.get(&self.name.name).await.unwrap()
    }

    /// Merges a part into the object.
    pub async fn edit(&self, part: Value) {
        let patch = Patch::Merge(part);
        let params = PatchParams::default();
        self.api
            .patch(&self.name.name, &params, &patch)
            .await
            .unwrap();
    }

    pub async fn delete(&self) {
        let params = DeleteParams::default();
        self.api.delete(&self.name.name, &params).await.unwrap();
    }

    /// Waits until the Service is gone.
    pub async fn gone(&self) {
        wait::until("the Service to be gone", async || {
            self.api.get_opt(&self.name.name).await.unwrap().is_none()
        })
        .await;
    }

    /// The stored report; `None` if there is none yet.
    pub async fn report(&self) -> Option<EmployerReport> {
        let service = self.get().await;
        let text = service.annotations().get(keys::CONSIST_STATUS)?;
        Some(serde_json::from_str(text).unwrap())
    }

    /// Waits for a report.
    pub async fn until(
        &self,
        description: &str,
        test: impl Fn(&EmployerReport) -> bool,
    ) -> EmployerReport {
        let probe = async || self.report().await.filter(|report| test(report));
        match wait::found(probe).await {
            Some(report) => report,
            None => panic!(
                "waited for {description}: {}\n{}",
                json!(self.get().await),
                self.describe_pods().await
            ),
        }
    }

    /// Waits until this many members serve, and none waits.
    pub async fn consistent(&self, registered: usize) {
        self.until("all members to serve", |report| {
            report.registered == registered
                && report.pending + report.draining + report.failed == 0
                && report.last_error.is_none()
        })
        .await;
    }

    async fn describe_pods(&self) -> String {
        let pods = self.scope.list("").await;
        let pods = pods.iter().map(|pod| {
            format!(
                "{}: {:?} {:?} {:?} {}\n",
                pod.name_any(),
                pod.labels(),
                pod.annotations().get(keys::AVAILABLE_CONDITIONS),
                pod.finalizers(),
                json!(pod.status.as_ref().unwrap().conditions)
            )
        });
        pods.collect()
    }

    /// The condition of the Service: its status, reason and message.
    pub async fn condition(&self) -> Option<(String, String, String)> {
        let status = self.get().await.status?;
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        let ours = conditions.find(|c| c.type_ == keys::CONSIST_CONDITION)?;
        Some((ours.status, ours.reason, ours.message))
    }

    /// The messages of the Events about failures of this Service.
    pub async fn failures(&self) -> Vec<String> {
        let list = ListParams::default().fields(&format!("involvedObject.name={}", self.name.name));
        let events = self.scope.api::<Event>().list(&list).await.unwrap();
        let failures = events.items.into_iter();
        let failures =
            failures.filter(|event| event.reason.as_deref() == Some("SyncEmployeesFailed"));
        failures.filter_map(|event| event.message).collect()
    }

    /// Whether a Pod is protected by this Service.
    pub fn protects(&self, pod: &Pod) -> bool {
        pod.finalizers().contains(&self.name.finalizer())
    }

    /// Whether a Pod is not available before this Service protects it.
    pub fn is_expected(&self, pod: &Pod) -> bool {
        let text = pod.annotations().get(keys::AVAILABLE_CONDITIONS);
        let value = text.map(|text| serde_json::from_str::<Value>(text).unwrap());
        value.is_some_and(|value| {
            value["expectedFinalizers"][self.name.key()] == json!(self.name.finalizer())
        })
    }

    /// Waits until a Pod has these marks: expected, protected.
    pub async fn marks(&self, pod: &str, wanted: (bool, bool)) -> Pod {
        let probe = async || {
            let pod = self.scope.pods().get_opt(pod).await.unwrap()?;
            ((self.is_expected(&pod), self.protects(&pod)) == wanted).then_some(pod)
        };
        match wait::found(probe).await {
            Some(pod) => pod,
            None => panic!(
                "Pod {pod} does not get the marks {wanted:?}: {}\n{}",
                json!(self.get().await),
                self.describe_pods().await
            ),
        }
    }
}
