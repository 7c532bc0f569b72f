//! `operating serve`: starts all parts of the server, in the order of their dependencies.

mod certificates;
mod controllers;
pub mod metrics;
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
use crate::cluster::deleted_collasets::DeletedCollaSets;
use crate::cluster::events::EventRecorder;
use crate::cluster::identity::Identity;
use crate::cluster::index::Index;
use crate::cluster::ledger_restore;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::presence::ObjectLookup;
use crate::cluster::rulestore::RuleStore;
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

/// After a fault, reviews in progress get no more time than this, because the state that they depend on may be
/// inconsistent.
const FAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a replica that has detected a restored etcd goes on answering after it reports not ready. It denies
/// requests that need a claim.
const HISTORY_LOST_LAME_DUCK: Duration = Duration::from_secs(1);

/// Installs what `--install` asks for, and then serves until SIGTERM or SIGINT, until a task fails, or until etcd turns
/// out to have been restored to an earlier state.
///
/// # Errors
/// What could not be set up, the error of the failed task, or that etcd was restored.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let format = match args.log_format {
        LogFormat::Text => logs::LogLineFormat::Text,
        LogFormat::Json => logs::LogLineFormat::Json,
    };
    logs::init_logging(format, &args.log)?;
    let exposition = Exposition::default();
    let own_calls = ApiCallMetrics::register(&exposition);
    let client = connect::connect_counted_client(&args.cluster, &own_calls).await?;
    let stop = CancellationToken::new();
    let _stop_all = stop.clone().drop_guard();
    let supervisor = Supervisor::new(stop.clone());
    // First, because an error in the flags must not change anything in the cluster.
    let clients = certificates::client_authorities(&args, &supervisor)?;
    if args.install {
        install::install_crds(&client, &args.cluster.namespace).await?;
        install::apply_policies(&client).await?;
    }

    let metrics = ServerMetrics::register(&exposition);
    let resolver = CertificateResolver::new(metrics.clone());
    let doors = Arc::new(PathGuard::default());
    let kept =
        certificates::start_certificates(&args, &client, &resolver, &doors, &supervisor).await?;

    let skips = match args.ignore_skip_annotations {
        true => SkipAnnotation::Ignored,
        false => SkipAnnotation::Honoured,
    };
    let caches = Caches::new(skips);
    let index = Arc::clone(&caches.index);
    let catch_up = watches::start_watches(&client, &caches, args.features.collasets(), &supervisor);
    let store = RuleStore::new(client.clone(), Arc::clone(&index), catch_up);
    let ledgers = Ledgers::new(store);
    let restore = ledger_restore::restore_lost_claims(Arc::clone(&index), Arc::clone(&ledgers));
    supervisor.spawn_supervised("the memory of the ledgers", restore);
    let reach = endpoint_reach(&args).await?;
    let endpoints = reach.networks.clone();
    let calls = Arc::new(EndpointPool::new(reach));
    let (work, denials) = (
        Arc::new(ControllerStats::default()),
        DenialCounts::default(),
    );
    let (leading, lead) = tokio::sync::watch::channel(false);
    let sight = watchdog::start_watchdog(&caches, &ledgers, &work, &supervisor)
        .context("the watchdog can't be started")?;
    process::register_process_metrics(&exposition);
    metrics::register_metrics_collector(
        &exposition,
        metrics::MetricsCollector {
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
        connections: to_usize(args.max_connections),
        unproven: to_usize(args.max_unproven_connections),
        unproven_per_address: to_usize(args.max_unproven_per_address),
        body_bytes: to_usize(args.max_review_bytes),
        lame_duck: args.lame_duck,
        drain: args.drain_timeout,
        ..Limits::default()
    };
    // Before other parts start, which would have to end if this fails.
    let socket = bind_listener("--listen", args.listen).await?;
    let metrics_socket = bind_listener("--metrics-listen", args.metrics_listen).await?;
    let owners = LiveOwners::new(&index);
    let context = Arc::new(Context {
        kinds: ObjectLookup::new(client.clone()),
        client: client.clone(),
        identity: Identity::default(),
        index: Arc::clone(&index),
        objects: Arc::clone(&caches.objects),
        disruption_budgets: Arc::clone(&caches.disruption_budgets),
        owners: Arc::clone(&owners),
        deleted_sets: DeletedCollaSets::default(),
        ledgers: Arc::clone(&ledgers),
        events: EventRecorder::new_supervised(client.clone(), clock::now, &supervisor),
        settings: AdmissionSettings {
            request_timeout: args.request_timeout,
            grace_delete: args.features.grace_delete(),
            max_rules: args.max_rules_per_namespace,
            collasets: args.features.collasets(),
            collaset_bytes: to_usize(args.max_collaset_bytes),
            endpoints,
        },
        now: clock::now,
        earliest: clock::earliest_now,
    });
    let address = socket.local_addr()?;
    let health = Health::new(shutdown.clone(), exposition);
    let own = self_check::OwnConnections::default();
    add_health_checks(&health, &index, address, &resolver, &own);
    add_liveness_checks(&health, &supervisor, sight);
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
        supervise_listener(&supervisor, "the webhook listener", webhooks),
        supervise_listener(&supervisor, "the metrics listener", probes),
    );
    info!(%address, metrics = %args.metrics_listen, "serving");

    if args.install {
        tokio::select! {
            () = index.wait_listed() => {}
            fault = supervisor.wait_for_fault() => return Err(fault.into()),
        }
        // From here on the API server sends reviews, so the server must be ready.
        let ca_bundle = kept.as_ref().map(|kept| kept.bundle.clone());
        apply_webhooks(&args, &client, ca_bundle).await?;
    }
    // After the installation, because before it missing webhook configurations are no problem.
    let needed = registration::required_configurations(&args.cluster.namespace)?;
    let told = registration::configuration_observer(&args, &doors, kept.map(|kept| kept.wake));
    watches::registration::start_registration_watches(&client, &caches, needed, &told, &supervisor);
    let controllers = controllers::start_controllers(controllers::ControllerParts {
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
        ended = wait_termination_signal() => ended.map(|()| None)?,
        fault = supervisor.wait_for_fault() => Some(fault.into()),
        why = index.timeline.wait_history_lost() => {
            // This replica will end soon, and its remaining work is of no use.
            stop.cancel();
            lame_duck = lame_duck.min(HISTORY_LOST_LAME_DUCK);
            Some(anyhow::anyhow!(why))
        }
    };
    let drain = match &fault {
        None => limits.drain,
        Some(_) => limits.drain.min(FAULT_DRAIN_TIMEOUT),
    };
    info!("ending: draining reviews");
    tokio::select! {
        served = webhooks => served.context("the webhook listener failed")?,
        () = end_webhook_listener(&shutdown, lame_duck, drain) => {}
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

/// Ends the listener of the webhooks. The listener reports its end itself.
async fn end_webhook_listener(shutdown: &Shutdown, lame_duck: Duration, drain: Duration) {
    shutdown.run(lame_duck, drain).await;
    std::future::pending().await
}

fn supervise_listener(
    supervisor: &Supervisor,
    task: &'static str,
    listener: Listener,
) -> tokio::task::JoinHandle<()> {
    let shutdown = listener.shutdown.clone();
    supervisor.spawn_supervised_until(task, move || shutdown.is_draining(), listener.serve())
}

/// Which addresses the endpoints of rules may have.
async fn endpoint_reach(args: &ServeArgs) -> anyhow::Result<AddressPolicy> {
    let config = connect::client_config(&args.cluster).await?;
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

fn to_usize(given: u32) -> usize {
    usize::try_from(given).unwrap_or(usize::MAX)
}

async fn bind_listener(flag: &str, address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("{flag}: can't listen on {address}; is the port taken, or below 1024?")
    })
}

fn add_health_checks(
    health: &Health,
    index: &Arc<Index>,
    address: std::net::SocketAddr,
    resolver: &Arc<CertificateResolver>,
    own: &self_check::OwnConnections,
) {
    let watched = Arc::clone(index);
    health.add_readiness_check("caches", move || {
        let synced = watched.listed_kinds();
        async move {
            if synced.has_decision_kinds() {
                Ok("synced".to_owned())
            } else {
                Err(format!(
                    "not yet listed: {}",
                    synced.missing_kinds().join(", ")
                ))
            }
        }
    });
    let dialled = std::net::SocketAddr::new(loopback_address(address.ip()), address.port());
    let (resolver, own) = (Arc::clone(resolver), own.clone());
    health.add_readiness_check("webhook", move || {
        self_check::check_served_certificate(dialled, Arc::clone(&resolver), own.clone())
    });
}

fn add_liveness_checks(health: &Health, supervisor: &Supervisor, sight: WatchdogStatus) {
    let supervisor = supervisor.clone();
    health.add_liveness_check(move || supervisor.fault().map(|fault| fault.to_string()));
    health.add_liveness_check(move || sight.liveness_failure(Instant::now()));
}

/// The address at which this process reaches its own listener.
fn loopback_address(ip: std::net::IpAddr) -> std::net::IpAddr {
    match ip {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    }
}

async fn apply_webhooks(
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
    install::apply_configurations(client, &settings, certificates::has_segments(args)).await
}

/// Returns at SIGTERM or SIGINT.
async fn wait_termination_signal() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM can't be listened for")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT can't be listened for")?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
