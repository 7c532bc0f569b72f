//! The cost of ResourceConsist: calls to a load balancer, and requests to the API server.

mod rest;
mod rollout;

use std::ffi::OsString;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use testbed::http_double::HttpDouble;
use testbed::plane::Plane;

use super::Bench;

/// Number of nodes: 10,000 Pods at rest, and those of the rollouts.
pub const NODES: usize = 3;
/// Name of the HTTP adapter in the configuration of the server.
const HTTP: &str = "http";
/// Name of the built-in adapter.
const ENDPOINTS: &str = "endpoints";
/// Metric of the server that counts the calls of adapters.
const CALLS: &str = "operating_traffic_calls_total";
/// How often the HTTP adapter reads the members of a Service at rest, in seconds. It is also the time of rest, so that
/// each Service is read once.
const RESYNC_SECONDS: u64 = 60;
/// Most calls of the HTTP adapter in each second. 1,000 Services that are read at the same time need 10 seconds.
const CALLS_PER_SECOND: u32 = 100;

/// The flags of a server whose HTTP adapter calls the provider. Writes the configuration into the logs of the plane.
pub fn flags(plane: &Plane, provider: &HttpDouble) -> Result<Vec<OsString>> {
    let config = json!({ "adapters": [{
        "name": HTTP,
        "type": "http",
        "settings": {
            "url": provider.url(),
            "resyncSeconds": RESYNC_SECONDS,
            "callsPerSecond": CALLS_PER_SECOND,
        },
    }] });
    let file = plane.logs().join("traffic.yaml");
    std::fs::write(&file, config.to_string())
        .with_context(|| format!("writing {}", file.display()))?;
    Ok(vec!["--traffic-config".into(), file.into()])
}

/// Measures rollouts, and Services at rest.
pub async fn measure(bench: &mut Bench, provider: &HttpDouble) -> Result<()> {
    rollout::measure(bench, provider).await?;
    rest::measure(bench, provider).await
}

/// Creates a Service whose traffic the adapter manages.
async fn create_service(
    services: &Api<Service>,
    adapter: &str,
    name: &str,
    selector: (&str, &str),
) -> Result<()> {
    let (key, value) = selector;
    let service = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": { "kusionstack.io/control": "true" },
            "annotations": {
                "resource-consist.kusionstack.io/adapter": adapter,
                "resource-consist.kusionstack.io/drain-seconds": "1",
            },
        },
        "spec": { "selector": { key: value }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    services.create(&PostParams::default(), &service).await?;
    Ok(())
}
