//! Employers of another kind than Service, on a real API server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt};
use operating::api::keys;
use operating::domain::traffic::names::EmployerName;
use operating::domain::traffic::report::EmployerReport;
use serde_json::{Value, json};
use testbed::fleet::{Fleet, Home, Options, Proxied, REPLICAS};
use testbed::http_double::HttpDouble;
use testbed::plane::{self, Plane};
use testbed::{Scope, wait};

const BINARY: &str = env!("CARGO_BIN_EXE_adapter-routes");

/// The servers with the adapter of Routes, and a namespace with one Route `web`.
struct Routes {
    fleet: Fleet,
    double: HttpDouble,
    scope: Scope,
    api: Api<DynamicObject>,
    name: EmployerName,
}

async fn apply(client: &Client, file: &str) {
    for document in serde_norway::Deserializer::from_str(file) {
        let object: Value = serde::Deserialize::deserialize(document).unwrap();
        let (group, version) = object["apiVersion"]
            .as_str()
            .unwrap()
            .split_once('/')
            .unwrap();
        let kind = object["kind"].as_str().unwrap();
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// When the kind is defined.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Before,
    /// After the start of the servers.
    After,
}

fn route() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Route"))
}

/// Creates the kind, and the rights of the servers on it.
async fn define(client: &Client) {
    apply(client, include_str!("../crd.yaml")).await;
    apply(client, include_str!("../rbac.yaml")).await;
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &route());
    wait::until("the kind to be served", async || {
        all.list(&ListParams::default()).await.is_ok()
    })
    .await;
}

impl Routes {
    async fn start() -> Routes {
        Routes::start_with(Kind::Before).await
    }

    async fn start_with(kind: Kind) -> Routes {
        let double = HttpDouble::start().await.unwrap();
        let dir = tempfile::tempdir().unwrap().keep();
        let file = dir.join("traffic.yaml");
        let settings = json!({ "url": double.url(), "drainSeconds": 1 });
        let config = json!({ "adapters": [
            { "name": "routes", "type": "routes", "settings": settings },
            { "name": "edge", "type": "http", "settings": settings },
        ] });
        std::fs::write(&file, config.to_string()).unwrap();
        let plane = Plane::start(plane::Options::default()).await.unwrap();
        let client = plane.client().unwrap();
        if kind == Kind::Before {
            define(&client).await;
        }
        let options = Options {
            binary: BINARY.into(),
            other: None,
            request_timeout: Duration::from_secs(60),
            proxied: Proxied::None,
            flags: Vec::new(),
            serve_flags: vec![
                "--traffic-config".to_owned(),
                file.to_str().unwrap().to_owned(),
            ],
            task_faults: false,
        };
        let fleet = Fleet::on(Home::Own(Box::new(plane)), &options)
            .await
            .unwrap();
        if kind == Kind::After {
            define(&client).await;
        }
        let namespace = fleet.plane.namespace("routes").await.unwrap();
        let api = Api::namespaced_with(client.clone(), &namespace, &route());
        let name = EmployerName::new("Route", &namespace, "web");
        let scope = Scope { client, namespace };
        let object = json!({
            "apiVersion": "example.com/v1", "kind": "Route",
            "metadata": {
                "name": "web", "labels": { (keys::CONTROL): "true" },
                "annotations": { (keys::CONSIST_ADAPTER): "routes" },
            },
            "spec": { "port": 8080, "selector": { "matchLabels": { "app": "web" } } },
        });
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
        Routes {
            fleet,
            double,
            scope,
            api,
            name,
        }
    }

    async fn pod(&self, name: &str) -> Pod {
        let labels = json!({ "metadata": { "labels": { "app": "web" } } });
        self.scope.pod(name, labels).await
    }

    async fn report(&self) -> Option<EmployerReport> {
        let route = self.api.get("web").await.unwrap();
        let text = route.annotations().get(keys::CONSIST_STATUS)?;
        Some(serde_json::from_str(text).unwrap())
    }

    async fn until(&self, description: &str, test: impl Fn(&EmployerReport) -> bool) {
        wait::until(description, async || {
            self.report().await.is_some_and(|report| test(&report))
        })
        .await;
    }

    /// Waits until a Pod has these marks: expected, protected.
    async fn marks(&self, pod: &str, wanted: (bool, bool)) {
        wait::until(&format!("{pod}: {wanted:?}"), async || {
            self.marks_of(&self.scope.get(pod).await) == wanted
        })
        .await;
    }

    fn marks_of(&self, pod: &Pod) -> (bool, bool) {
        let text = pod.annotations().get(keys::AVAILABLE_CONDITIONS);
        let value = text.map(|text| serde_json::from_str::<Value>(text).unwrap());
        let finalizer = self.name.finalizer();
        let expected = value
            .is_some_and(|value| value["expectedFinalizers"][self.name.key()] == json!(finalizer));
        (expected, pod.finalizers().contains(&finalizer))
    }

    /// Stops the servers, and uninstalls.
    async fn uninstall(&self) -> String {
        for index in 0..REPLICAS {
            self.fleet.kill(index).await;
        }
        let output = self.operating(&["uninstall", "--yes"]);
        assert!(output.status.success(), "{output:?}");
        let texts = [output.stdout, output.stderr].concat();
        String::from_utf8(texts).unwrap()
    }

    fn operating(&self, args: &[&str]) -> Output {
        let kubeconfig: &Path = self.fleet.plane.kubeconfig();
        let mut command = Command::new(BINARY);
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command.env_remove("KUBECONFIG").output().unwrap()
    }
}

#[tokio::test]
async fn pods_of_a_custom_resource_are_marked_registered_and_explained() {
    let routes = Routes::start().await;
    routes.until("the first report", |_| true).await;
    let namespace = &routes.scope.namespace;
    let born = routes.pod("web-0").await;
    assert_eq!(routes.marks_of(&born), (true, false), "from its creation");
    routes.pod("web-1").await;
    routes
        .until("two members", |report| {
            (report.registered, report.pending) == (2, 0)
        })
        .await;
    for pod in ["web-0", "web-1"] {
        routes.marks(pod, (true, true)).await;
    }
    assert_eq!(routes.double.serving(namespace), ["web-0", "web-1"]);
    let route = routes.api.get("web").await.unwrap();
    assert_eq!(route.finalizers(), [keys::CLEAN_FINALIZER]);

    // An operation waits for the Route, and says so.
    routes.double.state().down = true;
    routes.scope.begin("web-0", "manual").await.unwrap();
    routes
        .until("the failure", |report| report.last_error.is_some())
        .await;
    let failures = async || {
        let events: Api<Event> = routes.scope.api();
        let list = ListParams::default().fields("involvedObject.kind=Route");
        events.list(&list).await.unwrap().items.len()
    };
    wait::until("the Event", async || failures().await > 0).await;
    let why = routes.operating(&["why", "pod/web-0", "-n", namespace]);
    let text = String::from_utf8(why.stdout).unwrap();
    let wait = format!(
        "finalizer {} of {}, to be removed once traffic is off",
        routes.name.finalizer(),
        routes.name.key()
    );
    assert!(text.contains(&wait), "{text}");
    routes.double.state().down = false;
    routes.marks("web-0", (true, false)).await;
    assert_eq!(routes.double.serving(namespace), ["web-1"]);
    routes.scope.finish("web-0", "manual").await.unwrap();
    routes.marks("web-0", (true, true)).await;

    // An error of the Route is named, and takes nobody off.
    let port = |port: u32| Patch::Merge(json!({ "spec": { "port": port } }));
    let params = PatchParams::default();
    routes.api.patch("web", &params, &port(0)).await.unwrap();
    routes
        .until("the error", |report| {
            let error = report.last_error.as_deref().unwrap_or_default();
            error.contains("spec.port is 0")
        })
        .await;
    assert_eq!(routes.double.serving(namespace), ["web-0", "web-1"]);
    routes.api.patch("web", &params, &port(8080)).await.unwrap();
    routes
        .until("two members again", |report| {
            report.registered == 2 && report.last_error.is_none()
        })
        .await;

    // The Route goes after its members.
    let delete = DeleteParams::default();
    routes.api.delete("web", &delete).await.unwrap();
    wait::until("the Route to be gone", async || {
        routes.api.get_opt("web").await.unwrap().is_none()
    })
    .await;
    assert!(routes.double.state().members.is_empty());
    for pod in ["web-0", "web-1"] {
        routes.marks(pod, (false, false)).await;
    }
    routes.scope.all_available("app=web", 2).await;
    assert!(routes.double.state().cut.is_empty());
}

/// A kind that is missing does not stop the server.
#[tokio::test]
async fn kind_may_be_defined_after_the_start() {
    let routes = Routes::start_with(Kind::After).await;
    routes.pod("web-0").await;
    routes.marks("web-0", (true, true)).await;
}

/// A Service and a Route of one name have the same finalizer: neither takes the other's.
#[tokio::test]
async fn service_and_route_of_one_name_leave_each_others_marks() {
    let routes = Routes::start().await;
    let scope = &routes.scope;
    routes.pod("web-0").await;
    routes.marks("web-0", (true, true)).await;
    let service = json!({
        "metadata": {
            "name": "web", "labels": { (keys::CONTROL): "true" },
            "annotations": { (keys::CONSIST_ADAPTER): "edge" },
        },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
    });
    let services = scope.api::<k8s_openapi::api::core::v1::Service>();
    let service = serde_json::from_value(service).unwrap();
    let created = services.create(&PostParams::default(), &service).await;
    created.unwrap();
    wait::until("the conflict", async || {
        let service = services.get("web").await.unwrap();
        let report = service.annotations().get(keys::CONSIST_STATUS);
        report.is_some_and(|text| text.contains(&format!("is marked by {}", routes.name.key())))
    })
    .await;
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the Service to be gone", async || {
        services.get_opt("web").await.unwrap().is_none()
    })
    .await;
    assert_eq!(routes.marks_of(&scope.get("web-0").await), (true, true));
    routes
        .until("the member of the Route", |report| report.registered == 1)
        .await;
}

/// As the documents say for switching off.
#[tokio::test]
async fn route_that_loses_its_label_and_its_pods_are_free_after_uninstalling() {
    let routes = Routes::start().await;
    let pod = routes.pod("web-0").await;
    routes.marks("web-0", (true, true)).await;
    let label = json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(label));
    routes.api.patch("web", &params, &patch).await.unwrap();
    wait::until("the Route to be as before", async || {
        let route = routes.api.get("web").await.unwrap();
        let annotations: Vec<_> = route.annotations().keys().cloned().collect();
        route.finalizers().is_empty() && annotations == [keys::CONSIST_ADAPTER]
    })
    .await;
    routes.marks("web-0", (false, false)).await;
    let serving = routes.double.serving(&routes.scope.namespace);
    assert_eq!(serving, ["web-0"], "members stay registered");
    routes.uninstall().await;
    routes.scope.delete("web-0").await.unwrap();
    routes.scope.until_gone(&pod).await;
}

/// Without these steps, the Pods are free too, and the user is told how to free the Route.
#[tokio::test]
async fn uninstalling_frees_pods_of_managed_routes_and_tells_how_to_free_the_route() {
    let routes = Routes::start().await;
    routes.pod("web-0").await;
    routes.marks("web-0", (true, true)).await;
    let told = routes.uninstall().await;
    let pod = routes.scope.get("web-0").await;
    assert_eq!(routes.marks_of(&pod), (false, false));
    let route = routes.api.get("web").await.unwrap();
    assert_eq!(route.finalizers(), [keys::CLEAN_FINALIZER]);
    let namespace = &routes.scope.namespace;
    let command = format!("kubectl patch Route web -n {namespace} --type=json");
    assert!(told.contains(&command), "{told}");
}
