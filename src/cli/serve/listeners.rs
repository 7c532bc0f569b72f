//! The two listeners of a replica: the webhooks over TLS, and probes with metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::info;

use super::replica::Replica;
use crate::admission;
use crate::admission::handler_guard::guard_handlers;
use crate::cli::args::ServeArgs;
use crate::cluster::index::Index;
use crate::server::connections::Listener;
use crate::server::health::Health;
use crate::server::path_filter::filter_paths;
use crate::server::{Limits, Shutdown, self_check, webhooks};
use crate::tasks::Supervisor;
use crate::telemetry::watchdog::WatchdogStatus;
use crate::tls::{CertificateResolver, server_config};

/// The sockets of both listeners. They are bound before other parts start, which would have to end if this fails.
pub(super) struct Listeners {
    webhooks: TcpListener,
    metrics: TcpListener,
}

/// The tasks of both listeners, and how each is told to end. Probes answer until the end.
pub(super) struct Listening {
    pub webhooks: JoinHandle<()>,
    pub shutdown: Shutdown,
    pub probes: JoinHandle<()>,
    pub probes_shutdown: Shutdown,
}

impl Listeners {
    pub async fn bind(args: &ServeArgs) -> anyhow::Result<Listeners> {
        Ok(Listeners {
            webhooks: bind_listener("--listen", args.webhooks.listen).await?,
            metrics: bind_listener("--metrics-listen", args.telemetry.metrics_listen).await?,
        })
    }

    pub fn start(self, replica: &Replica, limits: &Limits) -> anyhow::Result<Listening> {
        let (shutdown, probes_shutdown) = (Shutdown::default(), Shutdown::default());
        let address = self.webhooks.local_addr()?;
        let health = Health::new(shutdown.clone(), replica.exposition.clone());
        let own_connections = self_check::OwnConnections::default();
        let (index, resolver) = (&replica.caches.index, &replica.resolver);
        add_health_checks(&health, index, address, resolver, &own_connections);
        add_liveness_checks(&health, &replica.supervisor, replica.watchdog.clone());
        let handlers = guard_handlers(
            admission::handlers(&replica.admission_context()),
            &replica.supervisor,
            &index.etcd_history,
            &replica.denials,
        );
        let metrics = &replica.metrics;
        let router = webhooks::webhook_router(handlers, limits, metrics);
        let tls = server_config(Arc::clone(resolver), replica.client_authorities.clone());
        let webhooks = Listener {
            name: "webhook",
            socket: self.webhooks,
            tls: Some(tls.context("TLS can't be set up")?),
            clients: replica.client_authorities.clone(),
            router: filter_paths(router, Arc::clone(&replica.path_guard), metrics),
            limits: limits.clone(),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
            own: own_connections,
        };
        let probes = Listener {
            name: "metrics",
            socket: self.metrics,
            tls: None,
            clients: None,
            router: health.router(),
            limits: limits.clone(),
            metrics: metrics.clone(),
            shutdown: probes_shutdown.clone(),
            own: self_check::OwnConnections::default(),
        };
        let supervisor = &replica.supervisor;
        let listening = Listening {
            webhooks: supervise_listener(supervisor, "the webhook listener", webhooks),
            shutdown,
            probes: supervise_listener(supervisor, "the metrics listener", probes),
            probes_shutdown,
        };
        info!(%address, metrics = %replica.args.telemetry.metrics_listen, "serving");
        Ok(listening)
    }
}

fn supervise_listener(
    supervisor: &Supervisor,
    task: &'static str,
    listener: Listener,
) -> JoinHandle<()> {
    let shutdown = listener.shutdown.clone();
    supervisor.spawn_supervised_until(task, move || shutdown.is_draining(), listener.serve())
}

async fn bind_listener(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("{flag}: can't listen on {address}; is the port taken, or below 1024?")
    })
}

fn add_health_checks(
    health: &Health,
    index: &Arc<Index>,
    address: SocketAddr,
    resolver: &Arc<CertificateResolver>,
    own_connections: &self_check::OwnConnections,
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
    let (resolver, own_connections) = (Arc::clone(resolver), own_connections.clone());
    health.add_readiness_check("webhook", move || {
        self_check::check_served_certificate(
            address,
            Arc::clone(&resolver),
            own_connections.clone(),
        )
    });
}

fn add_liveness_checks(health: &Health, supervisor: &Supervisor, watchdog: WatchdogStatus) {
    let supervisor = supervisor.clone();
    health.add_liveness_check(move || supervisor.fault().map(|fault| fault.to_string()));
    health.add_liveness_check(move || watchdog.liveness_failure(Instant::now()));
}
