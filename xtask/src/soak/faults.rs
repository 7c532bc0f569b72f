//! The faults of the soak.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use testbed::fleet::{Fleet, REPLICAS};
use testbed::proxy::{Effect, Fault};
use tokio::time::sleep;

/// The intervals of the faults.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Interval of kills of the leader.
    pub kill: Duration,
    /// Interval of build changes of a replica.
    pub roll: Duration,
    /// Interval of stalls of the watches of one replica.
    pub stall: Duration,
    /// Duration of a stall.
    pub stalled: Duration,
}

/// Kills the leader repeatedly until the future is dropped.
pub async fn kill_leaders(fleet: &Fleet, pace: Pace) -> Result<()> {
    loop {
        sleep(pace.kill).await;
        // At times there is no leader.
        let Ok(leader) = fleet.leader().await else {
            continue;
        };
        eprintln!("killing replica {leader}, the leader");
        fleet.kill(leader).await;
        sleep(Duration::from_secs(2)).await;
        // As a kubelet, restart it until the API server is back.
        let _is_up = fleet.maintenance.lock().await;
        fleet.restart(leader).await?;
    }
}

/// Changes one replica after the other to the next build, back and forth, until the future is dropped. Each
/// round includes the leader.
pub async fn roll(fleet: &Fleet, pace: Pace) -> Result<()> {
    for index in (0..REPLICAS).cycle() {
        sleep(pace.roll).await;
        eprintln!("replica {index} gets the other build");
        fleet.change_build(index).await?;
    }
    Ok(())
}

/// Stalls the watches of one replica repeatedly until the future is dropped.
pub async fn stall_watches(fleet: &Fleet, pace: Pace) -> Result<()> {
    loop {
        sleep(pace.stall).await;
        eprintln!(
            "the watches of replica {} stall for {:?}",
            REPLICAS - 1,
            pace.stalled
        );
        fleet
            .proxy()?
            .set(Fault::new(Effect::Freeze).on(|asked| asked.watches()));
        sleep(pace.stalled).await;
        fleet.proxy()?.end_fault();
    }
}

/// Restarts the API server.
pub async fn restart_apiserver(fleet: &Fleet) -> Result<()> {
    let _alone = fleet.maintenance.lock().await;
    eprintln!("restarting the API server");
    fleet.plane.stop_apiserver().await?;
    sleep(Duration::from_secs(2)).await;
    fleet.plane.start_apiserver().await
}

/// Restarts controllers of the plane that have ended, until the future is dropped.
pub async fn revive_controllers(fleet: &Fleet) -> Result<()> {
    loop {
        sleep(Duration::from_secs(2)).await;
        fleet.plane.revive_controllers().await?;
    }
}

/// Ends Pods whose `activeDeadlineSeconds` has passed, which kwok does not, until the future is dropped.
pub async fn end_overdue_pods(client: &Client, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    loop {
        sleep(Duration::from_secs(1)).await;
        // The API server may be restarting.
        let Ok(list) = pods.list(&ListParams::default()).await else {
            continue;
        };
        for pod in list.items.iter().filter(|pod| is_overdue(pod)) {
            let patch = Patch::Strategic(json!({"status": {
                "phase": "Failed", "reason": "DeadlineExceeded",
                "conditions": [{"type": "Ready", "status": "False"}],
            }}));
            let params = PatchParams::default();
            let _ = pods.patch_status(&pod.name_any(), &params, &patch).await;
        }
    }
}

fn is_overdue(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let running = status.and_then(|s| s.phase.as_deref()) == Some("Running");
    let start = status.and_then(|s| s.start_time.as_ref());
    let deadline = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    match (start, deadline) {
        (Some(start), Some(deadline)) if running => {
            Timestamp::now().as_second() > start.0.as_second() + deadline
        }
        _ => false,
    }
}
