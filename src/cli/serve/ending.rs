//! How a replica ends: why, and in which order its tasks end.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::listeners::Listening;
use crate::cluster::index::Index;
use crate::server::{Limits, Shutdown};
use crate::tasks::Supervisor;

/// After a fault, reviews in progress get no more time than this, because the state that they depend on may be
/// inconsistent.
const FAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a replica that has detected a restored etcd goes on answering after it reports not ready. It denies
/// requests that need a claim.
const HISTORY_LOST_LAME_DUCK: Duration = Duration::from_secs(1);

/// How long the controllers may take to end.
const CONTROLLERS_TIMEOUT: Duration = Duration::from_secs(5);

/// The tasks that are awaited at the end.
pub(super) struct RunningTasks {
    pub listening: Listening,
    pub controllers: JoinHandle<()>,
    /// Cancelled when the replica begins to end. From then on, a replica that does not lead does not become the leader.
    pub candidacy: CancellationToken,
}

/// Waits for a signal, a fault or a restored etcd, drains the reviews, and ends the tasks.
///
/// # Errors
/// The fault, or that etcd was restored.
pub(super) async fn end(
    supervisor: &Supervisor,
    index: &Index,
    limits: &Limits,
    running: RunningTasks,
) -> anyhow::Result<()> {
    let mut lame_duck = limits.lame_duck;
    let fault: Option<anyhow::Error> = tokio::select! {
        ended = wait_termination_signal() => ended.map(|()| None)?,
        fault = supervisor.wait_for_fault() => Some(fault.into()),
        reason = index.etcd_history.wait_history_lost() => {
            // This replica will end soon, and its remaining work is of no use.
            supervisor.stop().cancel();
            lame_duck = lame_duck.min(HISTORY_LOST_LAME_DUCK);
            Some(anyhow::anyhow!(reason))
        }
    };
    let drain = match &fault {
        None => limits.drain,
        Some(_) => limits.drain.min(FAULT_DRAIN_TIMEOUT),
    };
    let RunningTasks {
        listening,
        controllers,
        candidacy,
    } = running;
    candidacy.cancel();
    info!("ending: draining reviews");
    tokio::select! {
        served = listening.webhooks => served.context("the webhook listener failed")?,
        () = end_webhook_listener(&listening.shutdown, lame_duck, drain) => {}
    }
    supervisor.stop().cancel();
    if tokio::time::timeout(CONTROLLERS_TIMEOUT, controllers)
        .await
        .is_err()
    {
        warn!("the controllers did not end in time; the process ends without them");
    }
    listening.probes_shutdown.abort();
    listening
        .probes
        .await
        .context("the metrics listener failed")?;
    info!("ended");
    fault.map_or(Ok(()), Err)
}

/// Ends the listener of the webhooks. The listener reports its end itself.
async fn end_webhook_listener(shutdown: &Shutdown, lame_duck: Duration, drain: Duration) {
    shutdown.run(lame_duck, drain).await;
    std::future::pending().await
}

/// Returns at SIGTERM or SIGINT.
async fn wait_termination_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be listened for")?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
