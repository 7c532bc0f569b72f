//! Waiting and looking, for the tests on a plane.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Looks until there is something to see.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, looking).await;
    found.unwrap_or_else(|_| panic!("waited for {what}"))
}

/// Whether a Pod is Ready and not on its way out.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|s| s.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True")
}
