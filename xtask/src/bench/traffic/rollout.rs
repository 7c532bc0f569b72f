//! Calls and requests of an update in place of a CollaSet, with and without a Service whose traffic is managed.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::http_double::{Calls, HttpDouble};

use super::{ENDPOINTS, HTTP};
use crate::bench::collaset::{self, LIMIT, containers, per_pod};
use crate::bench::requests::{self, Requests};
use crate::bench::workload::{self, NAME, PATIENCE};
use crate::bench::{Bench, report::Report};
use crate::collasets;

/// Pods of the set.
const PODS: usize = 100;
/// Bar of the calls per Pod.
const MOST_CALLS: f64 = 2.0;

/// Measures the same rollout without a Service, with `endpoints`, and with the HTTP adapter.
pub async fn measure(bench: &mut Bench, provider: &HttpDouble) -> Result<()> {
    let mut without = None;
    for adapter in [None, Some(ENDPOINTS), Some(HTTP)] {
        let (requests, calls) = rollout(bench, provider, adapter).await?;
        let service = match adapter {
            None => "no Service".to_owned(),
            Some(adapter) => format!("a Service of the adapter {adapter}"),
        };
        let subject = format!("new image for {PODS} Pods under {LIMIT}, {service}");
        let count = requests.of_server();
        let more = without.map_or(String::new(), |without| {
            let more = count as f64 / PODS as f64 - without as f64 / PODS as f64;
            format!("; {more:+.2} than without a Service")
        });
        without.get_or_insert(count);
        let figure = format!("{subject}: API requests of the server per Pod");
        let value = format!("{}{more}", per_pod(&requests, PODS));
        bench.report.add(figure, value);
        if adapter == Some(HTTP) {
            report_calls(&mut bench.report, &subject, calls);
        }
    }
    Ok(())
}

fn report_calls(report: &mut Report, subject: &str, calls: Calls) {
    let per = |count: usize| count as f64 / PODS as f64;
    let value = format!(
        "{:.2} (apply {:.2}, observe {:.2})",
        per(calls.all()),
        per(calls.apply),
        per(calls.observe)
    );
    let figure = format!("{subject}: calls to the provider per Pod");
    let holds = per(calls.all()) <= MOST_CALLS;
    report.judge(figure, value, format!("≤ {MOST_CALLS}"), holds);
}

/// The requests and the calls of an update. The Pods are created before.
async fn rollout(
    bench: &Bench,
    provider: &HttpDouble,
    adapter: Option<&str>,
) -> Result<(Requests, Calls)> {
    eprintln!("a rollout of {PODS} Pods, adapter: {adapter:?}");
    let namespace = bench.plane.namespace("traffic").await?;
    let client = || bench.client.clone();
    let services: Api<Service> = Api::namespaced(client(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client(), &namespace);
    let sets = collasets::api(&bench.client, &namespace);
    let rules = workload::rules(client(), &namespace);
    if let Some(adapter) = adapter {
        super::create_service(&services, adapter, NAME, ("app", NAME)).await?;
    }
    sets.create(&PostParams::default(), &collaset::set(PODS)?)
        .await?;
    collasets::reached(&sets, NAME, PATIENCE).await?;
    workload::create_rule(&rules, json!(LIMIT)).await?;
    requests::until_rest(&bench.plane, &namespace).await?;

    let position = requests::audit_position(&bench.plane).await?;
    let before = provider.calls_by_name();
    let spec = json!({ "template": { "spec": { "containers": containers("web:2") } } });
    let patch = Patch::Merge(json!({ "spec": spec }));
    sets.patch(NAME, &PatchParams::default(), &patch).await?;
    collasets::reached(&sets, NAME, PATIENCE).await?;
    requests::until_rest(&bench.plane, &namespace).await?;
    let calls = provider.calls_by_name().since(before);
    let requests = requests::since(&bench.plane, position, &namespace).await?;

    rules.delete(NAME, &DeleteParams::default()).await?;
    collaset::end(&sets, &pods).await?;
    if adapter.is_some() {
        // Calls for a Service that is left would be counted with the next figure.
        services.delete(NAME, &DeleteParams::default()).await?;
        requests::until_rest(&bench.plane, &namespace).await?;
    }
    Ok((requests, calls))
}
