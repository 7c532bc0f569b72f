//! Remembers whether the API server still has the history that this replica has seen.
//!
//! resourceVersions only grow, unless somebody restores etcd from a backup. After a restore, this replica knows events
//! that have not happened: in its caches, in the claims that it wrote, and in the position up to which it has seen
//! Pods. No decision may rest on them, and they cannot be corrected one by one. Therefore the process ends and starts
//! anew.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::error;

/// Whether etcd's history was lost. A clone shares the state.
#[derive(Clone, Debug, Default)]
pub struct EtcdHistory(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    lost: watch::Sender<Option<Arc<str>>>,
}

impl EtcdHistory {
    /// Records that a consistent read found `objects` at `found`, although this replica has seen it at `known`, which
    /// is later. Only the first call has an effect.
    pub fn mark_lost(&self, objects: &str, known: u64, found: u64) {
        self.0.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            if is_first {
                let reason = format!(
                    "{objects} are at resourceVersion {found}, and this replica has seen them at {known}: etcd was restored to an \
                     earlier state, so this replica starts anew"
                );
                error!(objects, known, found, "{reason}");
                *lost = Some(reason.into());
            }
            is_first
        });
    }

    /// Why this replica's knowledge is no longer valid. `None` while it is valid.
    pub fn lost_reason(&self) -> Option<Arc<str>> {
        self.0.lost.borrow().clone()
    }

    /// Returns the reason as soon as [`EtcdHistory::lost_reason`] has one.
    pub async fn wait_history_lost(&self) -> Arc<str> {
        let mut lost = self.0.lost.subscribe();
        let found = lost.wait_for(Option::is_some).await;
        let reason = found.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await, // the sender lives as long as self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_reason_is_reported_and_kept() {
        let etcd_history = EtcdHistory::default();
        assert_eq!(etcd_history.lost_reason(), None);
        let waiting = tokio::spawn({
            let etcd_history = etcd_history.clone();
            async move { etcd_history.wait_history_lost().await }
        });
        etcd_history.mark_lost("Pods", 9, 4);
        etcd_history.mark_lost("Namespaces", 8, 5);
        let why = etcd_history.lost_reason();
        assert!(
            why.as_ref()
                .is_some_and(|why| why.contains("Pods are at resourceVersion 4"))
        );
        assert_eq!(waiting.await.ok(), why);
    }
}
