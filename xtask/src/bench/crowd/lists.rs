//! The floor of a cold start: what the API server takes to list the same objects.

use std::time::{Duration, Instant};

use anyhow::Result;
use kube::Client;

/// What a replica lists before it is ready.
const PATHS: [&str; 10] = [
    "/api/v1/pods?labelSelector=kusionstack.io%2Fcontrol%3Dtrue",
    "/apis/apps.kusionstack.io/v1alpha1/podtransitionrules",
    "/api/v1/namespaces",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/api/v1/replicationcontrollers",
    "/apis/apps.kusionstack.io/v1alpha1/collasets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/jobs",
];

/// All lists together.
pub struct Listing {
    /// From the first request to the last answer.
    pub took: Duration,
    /// Length of the answers.
    pub bytes: usize,
}

/// Lists each kind whole, one after the other, as `kubectl get --raw` does; the fastest of three runs.
pub async fn whole(client: &Client) -> Result<Listing> {
    let mut best: Option<Listing> = None;
    for _ in 0..3 {
        let (begin, mut bytes) = (Instant::now(), 0);
        for path in PATHS {
            let request = http::Request::get(path).body(Vec::new())?;
            bytes += client.request_text(request).await?.len();
        }
        let took = begin.elapsed();
        if best.as_ref().is_none_or(|b| took < b.took) {
            best = Some(Listing { took, bytes });
        }
    }
    best.ok_or_else(|| anyhow::anyhow!("no list"))
}
