//! The minimum duration of a cold start: the time in which the API server lists the same objects.

use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use serde::Deserialize;

/// The objects that a replica lists before it is ready.
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

/// Number of objects of a page, as in `kubectl get`.
const PAGE: usize = 500;

/// Lists each kind, one after the other, in one answer as `kubectl get --raw` does; the fastest of three runs.
pub async fn whole(client: &Client) -> Result<Listing> {
    fastest(client, None).await
}

/// As [`whole`], page by page as `kubectl get` does.
pub async fn paged(client: &Client) -> Result<Listing> {
    fastest(client, Some(PAGE)).await
}

async fn fastest(client: &Client, page: Option<usize>) -> Result<Listing> {
    let mut best: Option<Listing> = None;
    for _ in 0..3 {
        let (begin, mut bytes) = (Instant::now(), 0);
        for path in PATHS {
            bytes += length(client, path, page).await?;
        }
        let took = begin.elapsed();
        if best.as_ref().is_none_or(|b| took < b.took) {
            best = Some(Listing { took, bytes });
        }
    }
    best.ok_or_else(|| anyhow::anyhow!("no list"))
}

/// Lists one kind; the length of the answers.
async fn length(client: &Client, path: &str, page: Option<usize>) -> Result<usize> {
    #[derive(Deserialize)]
    struct Page {
        metadata: ListMeta,
    }
    let (mut bytes, mut next) = (0, String::new());
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let query = page.map_or_else(String::new, |limit| {
            format!("{separator}limit={limit}&continue={next}")
        });
        let request = http::Request::get(format!("{path}{query}")).body(Vec::new())?;
        let text = client.request_text(request).await?;
        bytes += text.len();
        let token = match page {
            Some(_) => serde_json::from_str::<Page>(&text)?.metadata.continue_,
            None => None,
        };
        match token.filter(|token| !token.is_empty()) {
            Some(token) => next = token,
            None => return Ok(bytes),
        }
    }
}
