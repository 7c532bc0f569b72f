//! Evicts Pods in dry runs, which go through admission and write nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod as CorePod;
use kube::Client;
use kube::api::{Api, EvictParams, PostParams};

use crate::api_request::{self, ApiFailure};
use crate::domain::drain::EvictionAnswer;
use crate::domain::pod::Pod;

/// Longer than the longest timeout of Operating's webhooks (10 s).
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(15);
/// Dry runs at the same time.
const MAX_CONCURRENT: usize = 8;

/// The answers to the evictions of these Pods, in their order.
pub async fn dry_run_evictions(client: &Client, pods: &[Arc<Pod>]) -> Vec<EvictionAnswer> {
    let requests = pods.iter().map(|pod| dry_run_eviction(client, pod));
    stream::iter(requests)
        .buffered(MAX_CONCURRENT)
        .collect()
        .await
}

async fn dry_run_eviction(client: &Client, pod: &Pod) -> EvictionAnswer {
    let pods: Api<CorePod> = Api::namespaced(client.clone(), &pod.metadata.namespace);
    // The flag in the query tells every webhook that this is a dry run. The field manager must not be that of the server,
    // whose dry runs no rule holds.
    let params = EvictParams {
        post_options: PostParams {
            dry_run: true,
            field_manager: None,
        },
        ..EvictParams::default()
    };
    let request = pods.evict(&pod.metadata.name, &params);
    match api_request::within(DRY_RUN_TIMEOUT, request).await {
        Ok(_) => EvictionAnswer::Allowed,
        Err(ApiFailure::Answered(status)) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let causes: Vec<String> = causes.map(|cause| cause.message.clone()).collect();
            EvictionAnswer::from_api_refusal(status.code, &status.message, &causes)
        }
        Err(failure) => EvictionAnswer::NotChecked {
            reason: failure.text(),
        },
    }
}
