//! Waits until the caches contain the writes on which a plan must rest: the writes of a former leader, and a
//! controller's own writes of Pods.

use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::OnceCell;
use tracing::warn;

use super::ControllerContext;
use crate::cluster::objects::cache_positions::{self, CachePositions};
use crate::cluster::work_queue::ReconcileOutcome;
use crate::ledger::store::LedgerStore;

/// If the first lists of the caches are not complete, a key is retried after this time.
pub const UNSYNCED_RETRY: Duration = Duration::from_millis(200);
/// Maximum wait until a cache contains the writes of this controller or of a former leader.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// The positions of etcd at the first reconcile of a controller in this term, read once. Everything that a former
/// leader wrote is at or below these positions.
pub struct TermStart {
    /// The watched paths whose caches must be current.
    paths: Vec<&'static str>,
    positions: OnceCell<StartPositions>,
    caught_up: OnceCell<()>,
}

impl Default for TermStart {
    /// For the caches of CollaSets, PodDecorations, OperationJobs and their objects.
    fn default() -> TermStart {
        TermStart::for_paths(cache_positions::workload_paths())
    }
}

struct StartPositions {
    pod_position: u64,
    cache_positions: CachePositions,
}

impl TermStart {
    /// For the caches of these watched paths.
    pub fn for_paths(paths: Vec<&'static str>) -> TermStart {
        TermStart {
            paths,
            positions: OnceCell::new(),
            caught_up: OnceCell::new(),
        }
    }

    /// As [`Self::wait_caught_up`]. If the caches are behind, the key is tried again.
    pub async fn wait_until_current(
        &self,
        context: &ControllerContext,
        namespace: &str,
    ) -> Result<u64, ReconcileOutcome> {
        let caught_up = self.wait_caught_up(context, namespace).await;
        caught_up.map_err(|error| {
            warn!(%error, "the writes of a former leader are not known yet; planning waits until they are");
            ReconcileOutcome::Retry
        })
    }

    /// Waits until the caches contain the writes of a former leader. Returns the position that the Pod cache must reach for the same.
    ///
    /// # Errors
    /// If a position can't be read, or a cache does not reach its position in time.
    async fn wait_caught_up(
        &self,
        context: &ControllerContext,
        namespace: &str,
    ) -> anyhow::Result<u64> {
        let read_positions = async || -> anyhow::Result<StartPositions> {
            let store = context.ledgers.store();
            let registry = &context.watch_registry;
            Ok(StartPositions {
                pod_position: store.read_present_position(namespace).await?,
                cache_positions: cache_positions::read_positions(
                    &context.client,
                    registry,
                    &self.paths,
                )
                .await?,
            })
        };
        // The positions are read once, even if the API server is slow: a position that is read again moves on, and the
        // caches would never reach it.
        let start = self.positions.get_or_try_init(read_positions).await?;
        let catch_up = async || {
            let reached = start.cache_positions.wait_reached();
            tokio::time::timeout(CATCH_UP_TIMEOUT, reached).await
        };
        let caught_up = self.caught_up.get_or_try_init(catch_up).await;
        caught_up.with_context(|| {
            format!(
                "the caches of {} have not reached the writes of the former leader after {CATCH_UP_TIMEOUT:?}",
                self.paths.join(", ")
            )
        })?;
        Ok(start.pod_position)
    }
}

/// Waits until the Pod cache has reached this resourceVersion.
///
/// # Errors
/// If the cache does not reach it in time, or the Pod watch is silent.
pub async fn wait_for_pod_cache(
    context: &ControllerContext,
    version: u64,
) -> Result<(), ReconcileOutcome> {
    let store = context.ledgers.store();
    let caught_up = async {
        store.wait_followed().await;
        store.wait_position(version).await;
    };
    let result = tokio::time::timeout(CATCH_UP_TIMEOUT, caught_up).await;
    result.map_err(|_| {
        warn!("the Pod cache is behind, or its watch is silent; planning waits until the cache is current");
        ReconcileOutcome::Retry
    })
}
