//! Waiting with a generous deadline: nothing here says how fast something must be.

use std::time::Duration;

/// Far beyond what anything takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Looks until `probe` says yes.
pub async fn until(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    value(what, async || probe().await.then_some(())).await;
}

/// Looks until `probe` finds something.
pub async fn value<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    let found = found(probe).await;
    found.unwrap_or_else(|| panic!("waited {PATIENCE:?} for {what}"))
}

/// As [`value`]; `None` when the patience is over.
pub async fn found<T>(mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let looking = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.ok()
}
