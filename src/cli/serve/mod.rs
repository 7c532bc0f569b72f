//! `operating serve`: wires the layers together, in the order in which they depend on each other.

mod certificates;
mod controllers;
mod reads;
mod registration;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::args::{LogFormat, ServeArgs};
use super::{connect, install};
use crate::admission::{self, Context, Settings};
use crate::cluster;
use crate::cluster::events::Recorder;
use crate::cluster::index::Index;
use crate::cluster::rulestore::RuleStore;
use crate::cluster::sizes::LiveOwners;
use crate::cluster::sources;
use crate::controllers::webhooks::Pool;
use crate::domain::rules::Skips;
use crate::ledger::commit::Ledgers;
use crate::server::connections::Listener;
use crate::server::health::Health;
use crate::server::{Limits, Shutdown, dial, webhooks};
use crate::telemetry::logs;
use crate::telemetry::metrics::{Exposition, ServerMetrics};
use crate::tls::{Resolver, server_config};

/// Installs what `--install` asks for, then serves until SIGTERM or SIGINT.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let format = match args.log_format {
        LogFormat::Text => logs::Format::Text,
        LogFormat::Json => logs::Format::Json,
    };
    logs::init(format, &args.log)?;
    let client = connect::client(&args.cluster).await?;
    let stop = CancellationToken::new();
    let _stop_all = stop.clone().drop_guard();
    if args.install {
        install::prepare(&client, &args.cluster.namespace).await?;
        install::guard(&client).await?;
    }

    let exposition = Exposition::default();
    let metrics = ServerMetrics::register(&exposition);
    let resolver = Resolver::new(metrics.clone());
    let ca_bundle = certificates::start(&args, &client, &resolver, &stop).await?;

    let clients = certificates::clients(&args, &stop)?;

    let skips = match args.ignore_skip_annotations {
        true => Skips::Ignored,
        false => Skips::Honoured,
    };
    let index = Arc::new(Index::new(skips));
    let relist = sources::start(&client, &index, &stop);
    let store = RuleStore::new(client.clone(), Arc::clone(&index), relist);
    let ledgers = Ledgers::new(store);
    let calls = Arc::new(Pool::default());
    reads::register(&exposition, &index, &ledgers, &calls);

    let (shutdown, last) = (Shutdown::default(), Shutdown::default()); // probes answer until the end
    let limits = Limits {
        connections: count(args.max_connections),
        unproven: count(args.max_unproven_connections),
        unproven_per_address: count(args.max_unproven_per_address),
        body_bytes: count(args.max_review_bytes),
        lame_duck: args.lame_duck,
        drain: args.drain_timeout,
        ..Limits::default()
    };
    let owners = LiveOwners::new(&index);
    let context = Arc::new(Context {
        client: client.clone(),
        index: Arc::clone(&index),
        owners: Arc::clone(&owners),
        ledgers: Arc::clone(&ledgers),
        events: Recorder::new(client.clone(), Timestamp::now),
        settings: Settings {
            request_timeout: args.request_timeout,
            grace_delete: args.features.grace_delete(),
            collaset_bytes: count(args.max_collaset_bytes),
        },
        now: Timestamp::now,
    });
    let socket = bind("--listen", args.listen).await?;
    let address = socket.local_addr()?;
    let health = Health::new(shutdown.clone(), exposition);
    let own = dial::Own::default();
    add_checks(&health, &index, address, &resolver, &own);
    let webhooks = Listener {
        name: "webhook",
        socket,
        tls: Some(
            server_config(Arc::clone(&resolver), clients.clone()).context("TLS can't be set up")?,
        ),
        clients,
        router: webhooks::router(admission::handlers(&context), &limits, &metrics),
        limits: limits.clone(),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
        own,
    };
    let probes = Listener {
        name: "metrics",
        socket: bind("--metrics-listen", args.metrics_listen).await?,
        tls: None,
        clients: None,
        router: health.router(),
        limits: limits.clone(),
        metrics,
        shutdown: last.clone(),
        own: dial::Own::default(),
    };
    let (webhooks, probes) = (tokio::spawn(webhooks.serve()), tokio::spawn(probes.serve()));
    info!(%address, metrics = %args.metrics_listen, "serving");

    if args.install {
        index.wait_synced().await; // from here on the API server asks; answer well from the first review
        enforce(&args, &client, ca_bundle).await?;
    }
    // After the installation: until then it is no fault that the webhook configurations are missing.
    let needed = registration::needed(&args.cluster.namespace)?;
    cluster::registration::start(&client, &index, needed, &stop);
    let controllers = controllers::start(&args, &client, &index, &owners, &ledgers, &calls, &stop);

    ended().await?;
    info!("ending: draining reviews");
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move { shutdown.run(limits.lame_duck, limits.drain).await }
    });
    webhooks.await.context("the webhook listener failed")?;
    stop.cancel();
    if tokio::time::timeout(Duration::from_secs(5), controllers)
        .await
        .is_err()
    {
        warn!("the controllers did not end in time");
    }
    last.abort();
    probes.await.context("the metrics listener failed")?;
    info!("ended");
    Ok(())
}

fn count(given: u32) -> usize {
    usize::try_from(given).unwrap_or(usize::MAX)
}

async fn bind(flag: &str, address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("{flag}: can't listen on {address}; is the port taken, or below 1024?")
    })
}

fn add_checks(
    health: &Health,
    index: &Arc<Index>,
    address: std::net::SocketAddr,
    resolver: &Arc<Resolver>,
    own: &dial::Own,
) {
    let watched = Arc::clone(index);
    health.check("caches", move || {
        let synced = watched.synced();
        async move {
            if synced.all() {
                Ok("synced".to_owned())
            } else {
                Err(format!("not yet listed: {}", synced.missing().join(", ")))
            }
        }
    });
    let dialled = std::net::SocketAddr::new(loopback(address.ip()), address.port());
    let (resolver, own) = (Arc::clone(resolver), own.clone());
    health.check("webhook", move || {
        dial::check(dialled, Arc::clone(&resolver), own.clone())
    });
}

/// Where this process reaches its own listener.
fn loopback(ip: std::net::IpAddr) -> std::net::IpAddr {
    match ip {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    }
}

async fn enforce(
    args: &ServeArgs,
    client: &Client,
    ca_bundle: Option<Vec<u8>>,
) -> anyhow::Result<()> {
    let namespace = &args.cluster.namespace;
    let settings = admission::routes::Settings {
        client: install::client_config(args.endpoint.webhook_url.as_deref(), namespace),
        namespace: namespace.clone(),
        ca_bundle,
        grace_delete: args.features.grace_delete(),
        cert_manager: None,
    };
    install::enforce(client, &settings).await
}

/// Returns at SIGTERM or SIGINT.
async fn ended() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be listened for")?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
