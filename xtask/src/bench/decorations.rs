//! The cost of PodDecorations: requests per Pod of a new image of a sidecar, and requests at rest.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use testbed::wait;
use tokio::time::timeout;

use super::Bench;
use super::collaset::{self, LIMIT, containers, per_pod};
use super::report::Report;
use super::requests::{self, AuditPosition, Requests};
use super::workload::{self, NAME};
use crate::collasets::{self, is_as_wanted};

/// Timeout of all figures together.
const BOUND: Duration = Duration::from_secs(40 * 60);
/// Timeout until a set and its PodDecorations are as wanted. The creation of Pods with many PodDecorations is slow on a
/// loaded machine.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Number of Pods of the set whose sidecar is updated.
const UPDATED: usize = 100;
/// Number of PodDecorations of the set at rest.
const DECORATIONS: usize = 50;
/// Number of these that add a sidecar. The others add only a label.
const SIDECARS: usize = 2;
/// For how long requests are counted at rest.
const REST: Duration = Duration::from_secs(30);

/// Measures an update of a sidecar, and many PodDecorations at rest.
pub async fn measure(bench: &mut Bench) -> Result<()> {
    let run = timeout(BOUND, figures(bench));
    run.await
        .context("the figures of PodDecorations took too long")?
}

async fn figures(bench: &mut Bench) -> Result<()> {
    update(bench).await?;
    rest(bench).await
}

/// Updates the image of a sidecar, and then the image of the set, under the same rule. An update of the set that is not
/// counted comes first, because the first update under a new rule makes a few requests of its own.
async fn update(bench: &mut Bench) -> Result<()> {
    eprintln!("a PodDecoration of {UPDATED} Pods");
    let case = Case::create(bench, "sidecar", UPDATED, 1, 1).await?;
    let rules = workload::rules(bench.client.clone(), &case.namespace);
    workload::create_rule(&rules, json!(LIMIT)).await?;
    requests::until_rest(&bench.plane, &case.namespace).await?;
    let uids = case.uids().await?;
    let new_image = async |case: &Case, image| {
        let spec = json!({ "template": { "spec": { "containers": containers(image) } } });
        patch(&case.sets, NAME, spec).await
    };
    new_image(&case, "web:first").await?;
    case.settled().await?;
    requests::until_rest(&bench.plane, &case.namespace).await?;

    let position = requests::audit_position(&bench.plane).await?;
    let spec = json!({ "template": { "containers": sidecar(0, "side:2") } });
    patch(&case.decorations, &decoration_name(0), spec).await?;
    let of_sidecar = case.requests(bench, position).await?;
    let recreated = case.uids().await?.difference(&uids).count();

    let position = requests::audit_position(&bench.plane).await?;
    new_image(&case, "web:2").await?;
    let of_image = case.requests(bench, position).await?;

    report_update(&mut bench.report, &of_sidecar, &of_image);
    let figure = format!("PodDecoration, new image of a sidecar of {UPDATED} Pods: recreated Pods");
    let report = &mut bench.report;
    report.add_with_bar(figure, recreated.to_string(), "0");
    rules.delete(NAME, &DeleteParams::default()).await?;
    case.end().await
}

fn report_update(report: &mut Report, of_sidecar: &Requests, of_image: &Requests) {
    let subjects = [
        ("new image of a sidecar", of_sidecar),
        ("new image of the CollaSet", of_image),
    ];
    for (change, requests) in subjects {
        let figure = format!(
            "PodDecoration, {change} for {UPDATED} Pods under {LIMIT}: API requests of the server per Pod"
        );
        report.add_with_bar(figure, per_pod(requests, UPDATED), "≤ 6");
    }
    let ratio = of_sidecar.of_server() as f64 / of_image.of_server() as f64;
    let figure = "requests of the update of the sidecar, relative to the update of the CollaSet";
    report.add(figure, format!("{ratio:.2} ×"));
}

/// Counts the requests while nothing changes: those about the Pods, and all, beside those of a server without objects.
/// Such a server asks at regular times how far etcd is, for each of its watches.
async fn rest(bench: &mut Bench) -> Result<()> {
    let size = if bench.quick { 100 } else { 1_000 };
    eprintln!("{DECORATIONS} PodDecorations of {size} Pods");
    let without = requests_of_rest(bench).await?;
    let case = Case::create(bench, "decorations", size, DECORATIONS, SIDECARS).await?;
    requests::until_rest(&bench.plane, &case.namespace).await?;
    let position = requests::audit_position(&bench.plane).await?;
    let with = requests_of_rest(bench).await?;
    let about_pods = requests::since(&bench.plane, position, &case.namespace).await?;
    let subject = format!(
        "{DECORATIONS} PodDecorations of {size} Pods, {} s of rest: API requests of the server",
        REST.as_secs()
    );
    let report = &mut bench.report;
    let figure = format!("{subject} about their namespace");
    report.add_with_bar(figure, about_pods.of_server().to_string(), "0");
    report.add(format!("{subject}, all"), with.by_verb());
    let figure = "all API requests of the server in that time before their creation";
    report.add(figure, without.by_verb());
    case.end().await
}

/// All requests of the server in a time of rest.
async fn requests_of_rest(bench: &Bench) -> Result<Requests> {
    let position = requests::audit_position(&bench.plane).await?;
    tokio::time::sleep(REST).await;
    requests::of_server_since(&bench.plane, position).await
}

/// A CollaSet, all of whose Pods have the same PodDecorations.
struct Case {
    namespace: String,
    size: usize,
    sets: Api<DynamicObject>,
    decorations: Api<DynamicObject>,
    pods: Api<Pod>,
}

impl Case {
    /// Creates `count` PodDecorations, the first `sidecars` of which add a sidecar, and a set of `size` Pods. Waits
    /// until all are as wanted.
    async fn create(
        bench: &Bench,
        prefix: &str,
        size: usize,
        count: usize,
        sidecars: usize,
    ) -> Result<Case> {
        let namespace = bench.plane.namespace(prefix).await?;
        let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "PodDecoration");
        let resource = ApiResource::from_gvk_with_plural(&kind, "poddecorations");
        let client = bench.client.clone();
        let case = Case {
            size,
            sets: collasets::api(&bench.client, &namespace),
            decorations: Api::namespaced_with(client.clone(), &namespace, &resource),
            pods: Api::namespaced(client, &namespace),
            namespace,
        };
        let params = PostParams::default();
        for index in 0..count {
            let decoration = decoration(index, index < sidecars)?;
            case.decorations.create(&params, &decoration).await?;
        }
        case.sets.create(&params, &collaset::set(size)?).await?;
        case.settled().await?;
        Ok(case)
    }

    /// Waits until the set and its PodDecorations have reached their specs, and all Pods serve.
    async fn settled(&self) -> Result<()> {
        let description = "the CollaSet and its PodDecorations to be as wanted";
        wait::within(description, PATIENCE, || async {
            let decorations = self.decorations.list(&ListParams::default()).await?;
            let has_reached_all = |decoration: &DynamicObject| {
                let available = &decoration.data["status"]["updatedAvailablePods"];
                is_as_wanted(decoration) && *available == self.size
            };
            let reached = decorations.items.iter().all(has_reached_all);
            Ok(reached && is_as_wanted(&self.sets.get(NAME).await?))
        })
        .await
    }

    /// The requests since `position`, once the set and its PodDecorations are at rest.
    async fn requests(&self, bench: &Bench, position: AuditPosition) -> Result<Requests> {
        self.settled().await?;
        requests::until_rest(&bench.plane, &self.namespace).await?;
        requests::since(&bench.plane, position, &self.namespace).await
    }

    async fn uids(&self) -> Result<BTreeSet<Option<String>>> {
        let pods = self.pods.list_metadata(&ListParams::default()).await?;
        Ok(pods.items.iter().map(ResourceExt::uid).collect())
    }

    async fn end(self) -> Result<()> {
        collaset::end(&self.sets, &self.pods).await
    }
}

fn decoration_name(index: usize) -> String {
    format!("decoration-{index:02}")
}

/// A PodDecoration of all Pods of the set.
fn decoration(index: usize, has_sidecar: bool) -> Result<DynamicObject> {
    let name = decoration_name(index);
    let label = format!("bench.example.com/{name}");
    let containers = match has_sidecar {
        true => sidecar(index, "side:1"),
        false => json!([]),
    };
    Ok(serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "PodDecoration",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": NAME } },
            "template": {
                "metadata": [{ "patchPolicy": "Retain", "labels": { label: "on" } }],
                "containers": containers,
            },
        },
    }))?)
}

/// The sidecar that a PodDecoration adds.
fn sidecar(index: usize, image: &str) -> Value {
    json!([{ "name": format!("side-{index:02}"), "image": image }])
}

async fn patch(api: &Api<DynamicObject>, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}
