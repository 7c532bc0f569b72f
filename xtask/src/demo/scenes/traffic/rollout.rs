//! An update of Pods behind a real proxy under load, with and without the adapter.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use testbed::containers::Containers;
use testbed::edge::{Edge, GROUP};
use testbed::load::{Limits, Load, LoadReport};
use testbed::{ports, wait};
use tokio::time::sleep;

use super::super::super::Stage;
use super::super::super::cluster::ADAPTER;
use super::objects::{Objects, PATIENCE};

/// Pods of each set.
const PODS: usize = 3;
/// The set behind the adapter.
const MANAGED: &str = "shop";
/// The set whose members follow readiness.
const UNMANAGED: &str = "plain";
/// The load of each set.
const LOAD: Limits = Limits {
    workers: 4,
    per_second: 200,
    timeout: Duration::from_secs(10),
    longest: Duration::from_secs(240),
};
/// How long the load runs before and after the update.
const MARGIN: Duration = Duration::from_secs(1);

/// Plays this part of the scene. The server calls the port `bridge`.
pub async fn play(stage: &mut Stage<'_>, bridge: u16) -> Result<()> {
    stage.narrator.say(format!(
        "Caddy, a real proxy, now sends requests to the {PODS} Pods of the CollaSet {MANAGED}, which are processes on\n\
         this machine. The server changes the members of Caddy by the HTTP adapter. For comparison, the\n\
         same Caddy serves {PODS} Pods of the CollaSet {UNMANAGED}, whose members follow only the condition Ready. Both\n\
         sets get a new image under load, and a rule lets one Pod at a time be deleted and made again."
    ));
    let client = stage.cluster.plane.client()?;
    let namespace = stage.workload.namespace.as_str();
    let edge = Edge::start(bridge, &[(namespace, MANAGED), (namespace, UNMANAGED)]).await?;
    let _containers = Containers::start(&client, &[namespace])?;
    let [port, unmanaged_port] = ports::free()?;
    let objects = Objects::of(stage)?;
    let service = json!({
        "metadata": { "annotations": { "resource-consist.kusionstack.io/adapter": ADAPTER } },
        "spec": { "ports": [{ "name": GROUP, "port": 80, "targetPort": port }] },
    });
    objects.create_service(MANAGED, service).await?;
    tokio::try_join!(
        objects.create_set(MANAGED, PODS, port),
        objects.create_set(UNMANAGED, PODS, unmanaged_port),
    )?;
    let labels = format!("app={UNMANAGED}");
    let follower =
        edge.follow_readiness(&client, (namespace, UNMANAGED), &labels, unmanaged_port)?;

    let (managed, unmanaged) = loads(&edge, &objects).await?;
    let seen = |report: &LoadReport| {
        let (sent, failed) = (report.sent(), report.failed());
        format!("{sent} requests, {failed} failed")
    };
    let is_graceful = managed.failed() == 0 && managed.sent() > 0;
    let narrator = &mut stage.narrator;
    narrator.check(
        "no request fails with the adapter",
        seen(&managed),
        is_graceful,
    );
    if !is_graceful {
        narrator.quote(managed.to_string());
    }
    narrator.say(format!(
        "The set whose members follow readiness: {}.",
        seen(&unmanaged)
    ));

    // The server must take the members off while the proxy still runs.
    drop(follower);
    tokio::try_join!(objects.delete_set(MANAGED), objects.delete_set(UNMANAGED))?;
    objects.delete_service(MANAGED).await
}

/// Updates both sets under load, and returns how the requests ended.
async fn loads(edge: &Edge, objects: &Objects) -> Result<(LoadReport, LoadReport)> {
    let (url, unmanaged_url) = (edge.url(0), edge.url(1));
    tokio::try_join!(until_served(&url), until_served(&unmanaged_url))?;
    let managed = Load::start(&url, LOAD)?;
    let unmanaged = Load::start(&unmanaged_url, LOAD)?;
    sleep(MARGIN).await;
    tokio::try_join!(objects.update(MANAGED), objects.update(UNMANAGED))?;
    sleep(MARGIN).await;
    Ok(tokio::join!(managed.stop(), unmanaged.stop()))
}

/// Waits until the proxy answers a request.
async fn until_served(url: &str) -> Result<()> {
    let once = Limits {
        workers: 1,
        longest: Duration::from_millis(100),
        ..LOAD
    };
    wait::within("the proxy to answer", PATIENCE, || async {
        let load = Load::start(url, once)?;
        sleep(once.longest).await;
        Ok(load.stop().await.succeeded() > 0)
    })
    .await
}
