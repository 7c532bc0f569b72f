//! `operating serve`: wires the layers together, in the order in which they depend on each other.

mod certificates;
mod controllers;
pub mod reads;
mod registration;
mod watchdog;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Client;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::args::{LogFormat, ServeArgs};
use super::{connect, install};
use crate::admission::guarded::{DenialCounts, guard_handlers};
use crate::admission::{self, AdmissionSettings, Context};
use crate::cluster::caches::Caches;
use crate::cluster::clock;
use crate::cluster::deletedsets::DeletedSets;
use crate::cluster::events::Recorder;
use crate::cluster::identity::Identity;
use crate::cluster::index::Index;
use crate::cluster::presence::Kinds;
use crate::cluster::restoring;
use crate::cluster::rulestore::RuleStore;
use crate::cluster::sizes::LiveOwners;
use crate::cluster::watches;
use crate::controllers::ControllerStats;
use crate::controllers::rule_endpoints::{AddressPolicy, ApiServer, EndpointPool};
use crate::domain::rules::SkipAnnotation;
use crate::domain::rules::webhook::EndpointNetworks;
use crate::ledger::commit::Ledgers;
use crate::server::connections::Listener;
use crate::server::health::Health;
use crate::server::path_filter::filter_paths;
use crate::server::{Limits, Shutdown, self_check, webhooks};
use crate::tasks::Supervisor;
use crate::telemetry::api_calls::ApiCallMetrics;
use crate::telemetry::metrics::{Exposition, ServerMetrics};
use crate::telemetry::watchdog::WatchdogStatus;
use crate::telemetry::{logs, process};
use crate::tls::path_guard::PathGuard;
use crate::tls::{CertificateResolver, server_config};

/// After a fault, reviews in flight are given no longer than this: the state that they are decided on may be torn.
const FAULT_DRAIN: Duration = Duration::from_secs(2);

/// How long a replica that has lost the history goes on answering after its readiness is gone: it denies what needs a
/// claim.
const LOST_LAME_DUCK: Duration = Duration::from_secs(1);

/// Installs what `--install` asks for, then serves until SIGTERM or SIGINT, until a task can't go on, or until etcd turns out
/// to have been restored to an earlier state.
///
/// # Errors
/// What could not be set up, what the task says, or that etcd was restored.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let format = match args.log_format {
        LogFormat::Text => logs::LogLineFormat::Text,
        LogFormat::Json => logs::LogLineFormat::Json,
    };
    logs::init_logging(format, &args.log)?;
    let exposition = Exposition::default();
    let own_calls = ApiCallMetrics::register(&exposition);
    let client = connect::counted(&args.cluster, &own_calls).await?;
    let stop = CancellationToken::new();
    let _stop_all = stop.clone().drop_guard();
    let supervisor = Supervisor::new(stop.clone());
    // First: an error in the flags changes nothing in the cluster.
    let clients = certificates::clients(&args, &supervisor)?;
    if args.install {
        install::prepare(&client, &args.cluster.namespace).await?;
        install::guard(&client).await?;
    }

    let metrics = ServerMetrics::register(&exposition);
    let resolver = CertificateResolver::new(metrics.clone());
    let doors = Arc::new(PathGuard::default());
    let kept = certificates::start(&args, &client, &resolver, &doors, &supervisor).await?;

    let skips = match args.ignore_skip_annotations {
        true => SkipAnnotation::Ignored,
        false => SkipAnnotation::Honoured,
    };
    let caches = Caches::new(skips);
    let index = Arc::clone(&caches.index);
    let catch_up = watches::start(&client, &caches, args.features.collasets(), &supervisor);
    let store = RuleStore::new(client.clone(), Arc::clone(&index), catch_up);
    let ledgers = Ledgers::new(store);
    let restore = restoring::run(Arc::clone(&index), Arc::clone(&ledgers));
    supervisor.spawn_supervised("the memory of the ledgers", restore);
    let reach = reach(&args).await?;
    let endpoints = reach.networks.clone();
    let calls = Arc::new(EndpointPool::new(reach));
    let (work, denials) = (
        Arc::new(ControllerStats::default()),
        DenialCounts::default(),
    );
    let (leading, lead) = tokio::sync::watch::channel(false);
    let sight = watchdog::start(&caches, &ledgers, &work, &supervisor)
        .context("the watchdog can't be started")?;
    process::register_process_metrics(&exposition);
    reads::register(
        &exposition,
        reads::Reads {
            caches: caches.clone(),
            ledgers: Arc::clone(&ledgers),
            calls: Arc::clone(&calls),
            denials: denials.clone(),
            work: Arc::clone(&work),
            lead,
            sight: sight.clone(),
            now: clock::now,
            clock: Instant::now,
        },
    );

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
    // Before there is anything that ends with a fault when this fails.
    let socket = bind("--listen", args.listen).await?;
    let metrics_socket = bind("--metrics-listen", args.metrics_listen).await?;
    let owners = LiveOwners::new(&index);
    let context = Arc::new(Context {
        kinds: Kinds::new(client.clone()),
        client: client.clone(),
        identity: Identity::default(),
        index: Arc::clone(&index),
        objects: Arc::clone(&caches.objects),
        disruption_budgets: Arc::clone(&caches.disruption_budgets),
        owners: Arc::clone(&owners),
        deleted_sets: DeletedSets::default(),
        ledgers: Arc::clone(&ledgers),
        events: Recorder::supervised(client.clone(), clock::now, &supervisor),
        settings: AdmissionSettings {
            request_timeout: args.request_timeout,
            grace_delete: args.features.grace_delete(),
            max_rules: args.max_rules_per_namespace,
            collasets: args.features.collasets(),
            collaset_bytes: count(args.max_collaset_bytes),
            endpoints,
        },
        now: clock::now,
        earliest: clock::earliest,
    });
    let address = socket.local_addr()?;
    let health = Health::new(shutdown.clone(), exposition);
    let own = self_check::OwnConnections::default();
    add_checks(&health, &index, address, &resolver, &own);
    add_life(&health, &supervisor, sight);
    let webhooks = Listener {
        name: "webhook",
        socket,
        tls: Some(
            server_config(Arc::clone(&resolver), clients.clone()).context("TLS can't be set up")?,
        ),
        clients,
        router: filter_paths(
            webhooks::webhook_router(
                guard_handlers(
                    admission::handlers(&context),
                    &supervisor,
                    &index.timeline,
                    &denials,
                ),
                &limits,
                &metrics,
            ),
            Arc::clone(&doors),
            &metrics,
        ),
        limits: limits.clone(),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
        own,
    };
    let probes = Listener {
        name: "metrics",
        socket: metrics_socket,
        tls: None,
        clients: None,
        router: health.router(),
        limits: limits.clone(),
        metrics,
        shutdown: last.clone(),
        own: self_check::OwnConnections::default(),
    };
    let (webhooks, probes) = (
        keep_listener(&supervisor, "the webhook listener", webhooks),
        keep_listener(&supervisor, "the metrics listener", probes),
    );
    info!(%address, metrics = %args.metrics_listen, "serving");

    if args.install {
        tokio::select! {
            () = index.wait_listed() => {}
            fault = supervisor.wait_for_fault() => return Err(fault.into()),
        }
        // From here on the API server asks; answer well from the first review
        let ca_bundle = kept.as_ref().map(|kept| kept.bundle.clone());
        enforce(&args, &client, ca_bundle).await?;
    }
    // After the installation: until then it is no fault that the webhook configurations are missing.
    let needed = registration::needed(&args.cluster.namespace)?;
    let told = registration::told(&args, &doors, kept.map(|kept| kept.wake));
    watches::registration::start(&client, &caches, needed, &told, &supervisor);
    let controllers = controllers::start(controllers::Parts {
        args: &args,
        client: &client,
        caches: &caches,
        owners: &owners,
        ledgers: &ledgers,
        calls: &calls,
        work: &work,
        leading,
        supervisor: &supervisor,
    });

    let mut lame_duck = limits.lame_duck;
    let fault: Option<anyhow::Error> = tokio::select! {
        ended = ended() => ended.map(|()| None)?,
        fault = supervisor.wait_for_fault() => Some(fault.into()),
        why = index.timeline.wait_lost() => {
            // Whoever has lost the history leaves soon: nothing that it would do is of use.
            stop.cancel();
            lame_duck = lame_duck.min(LOST_LAME_DUCK);
            Some(anyhow::anyhow!(why))
        }
    };
    let drain = match &fault {
        None => limits.drain,
        Some(_) => limits.drain.min(FAULT_DRAIN),
    };
    info!("ending: draining reviews");
    tokio::select! {
        served = webhooks => served.context("the webhook listener failed")?,
        () = end(&shutdown, lame_duck, drain) => {}
    }
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
    fault.map_or(Ok(()), Err)
}

/// Ends the listener of the webhooks, which says itself when it has ended.
async fn end(shutdown: &Shutdown, lame_duck: Duration, drain: Duration) {
    shutdown.run(lame_duck, drain).await;
    std::future::pending().await
}

fn keep_listener(
    supervisor: &Supervisor,
    task: &'static str,
    listener: Listener,
) -> tokio::task::JoinHandle<()> {
    let shutdown = listener.shutdown.clone();
    supervisor.spawn_supervised_until(task, move || shutdown.is_draining(), listener.serve())
}

/// What the endpoints of rules may be.
async fn reach(args: &ServeArgs) -> anyhow::Result<AddressPolicy> {
    let config = connect::config(&args.cluster).await?;
    let named = config.cluster_url.host().map(str::to_owned);
    let service = std::env::var("KUBERNETES_SERVICE_HOST").ok();
    let api_server = ApiServer::new(named.into_iter().chain(service));
    let networks = EndpointNetworks {
        allowed: args.endpoint_allow_cidrs.clone(),
        denied: args.endpoint_deny_cidrs.clone(),
        link_local: args.allow_link_local_endpoints,
        api_server: api_server.literal_addresses(),
    };
    Ok(AddressPolicy {
        networks,
        api_server,
    })
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
    resolver: &Arc<CertificateResolver>,
    own: &self_check::OwnConnections,
) {
    let watched = Arc::clone(index);
    health.add_readiness_check("caches", move || {
        let synced = watched.listed();
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
    health.add_readiness_check("webhook", move || {
        self_check::check_served_certificate(dialled, Arc::clone(&resolver), own.clone())
    });
}

fn add_life(health: &Health, supervisor: &Supervisor, sight: WatchdogStatus) {
    let supervisor = supervisor.clone();
    health.add_liveness_check(move || supervisor.fault().map(|fault| fault.to_string()));
    health.add_liveness_check(move || sight.liveness_failure(Instant::now()));
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
    let settings = admission::routes::ConfigurationSettings {
        client: install::client_config(args.endpoint.webhook_url.as_deref(), namespace),
        namespace: namespace.clone(),
        ca_bundle,
        grace_delete: args.features.grace_delete(),
        collasets: args.features.collasets(),
        cert_manager: None,
        segment: None,
    };
    install::enforce(client, &settings, certificates::has_segments(args)).await
}

/// Returns at SIGTERM or SIGINT.
async fn ended() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be listened for")?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
