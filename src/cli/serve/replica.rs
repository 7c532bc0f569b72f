//! One replica of the server: its parts, and how they are built.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use kube::Client;
use tokio::sync::{Notify, watch};

use super::certificates::{self, SelfManagedCertificates};
use super::webhook_upkeep::WebhookUpkeep;
use super::{installed, metrics, registration, traffic, watchdog};
use crate::admission::denial_counts::DenialCounts;
use crate::admission::routes::ConfigurationSettings;
use crate::admission::{AdmissionContext, AdmissionSettings};
use crate::cli::adapter_types::AdapterTypes;
use crate::cli::args::ServeArgs;
use crate::cli::{connect, install};
use crate::cluster::caches::Caches;
use crate::cluster::clock;
use crate::cluster::deleted_collasets::DeletedCollaSets;
use crate::cluster::events::EventRecorder;
use crate::cluster::identity::Identity;
use crate::cluster::ledger_restore;
use crate::cluster::owner_sizes::LiveOwners;
use crate::cluster::presence::ObjectLookup;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::traffic::Traffic;
use crate::cluster::watches;
use crate::controllers::ControllerStats;
use crate::controllers::rule_endpoints::{AddressPolicy, ApiServer, EndpointCaller};
use crate::domain::rules::SkipAnnotation;
use crate::domain::rules::webhook::EndpointNetworks;
use crate::ledger::commit::Ledgers;
use crate::server::Limits;
use crate::tasks::Supervisor;
use crate::telemetry::api_calls::ApiCallMetrics;
use crate::telemetry::metrics::{Exposition, ServerMetrics};
use crate::telemetry::process;
use crate::telemetry::watchdog::WatchdogStatus;
use crate::tls::CertificateResolver;
use crate::tls::client_authorities::ClientAuthorities;
use crate::tls::path_guard::PathGuard;

/// The parts of a replica. Its watches run and its certificates are loaded; it does not listen yet.
pub(super) struct Replica {
    pub args: ServeArgs,
    pub client: Client,
    pub supervisor: Supervisor,
    pub exposition: Exposition,
    pub metrics: ServerMetrics,
    /// The authorities that vouch for API servers; `None` if every client may call.
    pub client_authorities: Option<Arc<ClientAuthorities>>,
    pub resolver: Arc<CertificateResolver>,
    pub path_guard: Arc<PathGuard>,
    /// `None` with certificates from a directory.
    pub certificates: Option<SelfManagedCertificates>,
    pub caches: Caches,
    pub ledgers: Arc<Ledgers<RuleStore>>,
    pub owners: Arc<LiveOwners>,
    /// The addresses that endpoints of rules may have.
    pub endpoint_networks: EndpointNetworks,
    pub endpoint_caller: Arc<EndpointCaller>,
    /// The adapters of ResourceConsist.
    pub traffic: Arc<Traffic>,
    pub controller_stats: Arc<ControllerStats>,
    pub denials: DenialCounts,
    pub leading: watch::Sender<bool>,
    pub watchdog: WatchdogStatus,
}

impl Replica {
    /// Builds the parts in the order of their dependencies. With `--install` it first installs the CRDs and the
    /// policies.
    pub async fn build(
        args: ServeArgs,
        types: &AdapterTypes,
        supervisor: Supervisor,
    ) -> anyhow::Result<Replica> {
        let exposition = Exposition::default();
        let own_calls = ApiCallMetrics::register(&exposition);
        let client = connect::connect_counted_client(&args.cluster, &own_calls).await?;
        // First, because an error in the flags must not change anything in the cluster.
        let client_authorities = certificates::client_authorities(&args, &supervisor)?;
        let traffic = traffic::configured(&args, types)?;
        if args.install {
            install::install_crds(&client, &args.cluster.namespace).await?;
            install::apply_policies(&client).await?;
        } else {
            installed::check_installed(&client).await?;
        }
        let metrics = ServerMetrics::register(&exposition);
        let resolver = CertificateResolver::new(metrics.clone());
        let path_guard = Arc::new(PathGuard::default());
        let certificates =
            certificates::start_certificates(&args, &client, &resolver, &path_guard, &supervisor)
                .await?;

        let skips = match args.webhooks.ignore_skip_annotations {
            true => SkipAnnotation::Ignored,
            false => SkipAnnotation::Honoured,
        };
        let caches = Caches::new(skips);
        let collasets = args.features.collasets();
        let catch_up = watches::start_watches(&client, &caches, collasets, &supervisor);
        watches::start_traffic_watches(&client, &caches, &traffic, &supervisor);
        let index = &caches.index;
        let store = RuleStore::new(client.clone(), Arc::clone(index), catch_up);
        let ledgers = Ledgers::new(store);
        let restore = ledger_restore::restore_lost_claims(Arc::clone(index), Arc::clone(&ledgers));
        supervisor.spawn_supervised("the memory of the ledgers", restore);
        let address_policy = endpoint_address_policy(&args).await?;
        let endpoint_networks = address_policy.networks.clone();
        let controller_stats = Arc::<ControllerStats>::default();
        let (leading, is_leading) = watch::channel(false);
        let watchdog = watchdog::start_watchdog(&caches, &ledgers, &controller_stats, &supervisor)
            .context("the watchdog can't be started")?;
        let replica = Replica {
            owners: LiveOwners::new(index),
            endpoint_networks,
            traffic,
            endpoint_caller: Arc::new(EndpointCaller::new(address_policy)),
            denials: DenialCounts::default(),
            args,
            client,
            supervisor,
            exposition,
            metrics,
            client_authorities,
            resolver,
            path_guard,
            certificates,
            caches,
            ledgers,
            controller_stats,
            leading,
            watchdog,
        };
        replica.register_metrics(is_leading);
        Ok(replica)
    }

    fn register_metrics(&self, is_leading: watch::Receiver<bool>) {
        process::register_process_metrics(&self.exposition);
        let counters = &self.traffic.counters;
        self.exposition
            .register(|registry| counters.register(registry));
        let collector = metrics::MetricsCollector {
            caches: self.caches.clone(),
            traffic: Arc::clone(&self.traffic),
            ledgers: Arc::clone(&self.ledgers),
            endpoint_caller: Arc::clone(&self.endpoint_caller),
            denials: self.denials.clone(),
            controller_stats: Arc::clone(&self.controller_stats),
            is_leading,
            watchdog: self.watchdog.clone(),
            now: clock::now,
            clock: Instant::now,
        };
        metrics::register_metrics_collector(&self.exposition, collector);
    }

    pub(super) fn limits(&self) -> Limits {
        let args = &self.args;
        Limits {
            connections: to_usize(args.webhooks.max_connections),
            unproven: to_usize(args.webhooks.max_unproven_connections),
            unproven_per_address: to_usize(args.webhooks.max_unproven_per_address),
            body_bytes: to_usize(args.webhooks.max_review_bytes),
            lame_duck: args.webhooks.lame_duck,
            drain: args.webhooks.drain_timeout,
            ..Limits::default()
        }
    }

    /// What the handlers of admission work with.
    pub fn admission_context(&self) -> Arc<AdmissionContext> {
        let (args, client) = (&self.args, &self.client);
        Arc::new(AdmissionContext {
            object_lookup: ObjectLookup::new(client.clone()),
            client: client.clone(),
            identity: Identity::default(),
            index: Arc::clone(&self.caches.index),
            objects: Arc::clone(&self.caches.objects),
            traffic: Arc::clone(&self.traffic),
            disruption_budgets: Arc::clone(&self.caches.disruption_budgets),
            owners: Arc::clone(&self.owners),
            deleted_collasets: DeletedCollaSets::default(),
            ledgers: Arc::clone(&self.ledgers),
            events: EventRecorder::new_supervised(client.clone(), clock::now, &self.supervisor),
            settings: AdmissionSettings {
                request_timeout: args.webhooks.request_timeout,
                grace_delete: args.features.grace_delete(),
                max_rules: args.webhooks.max_rules_per_namespace,
                collasets: args.features.collasets(),
                collaset_bytes: to_usize(args.webhooks.max_collaset_bytes),
                endpoints: self.endpoint_networks.clone(),
            },
            now: clock::now,
            earliest: clock::earliest_now,
        })
    }

    /// Waits until the caches are listed, and applies the webhook configurations.
    pub(super) async fn install_webhooks(&self) -> anyhow::Result<()> {
        tokio::select! {
            () = self.caches.index.wait_listed() => {}
            fault = self.supervisor.wait_for_fault() => return Err(fault.into()),
        }
        // From here on the API server sends reviews, so the server must be ready.
        let has_segments = certificates::has_segments(&self.args);
        install::apply_configurations(&self.client, &self.configuration_settings(), has_segments)
            .await
    }

    /// The settings of the webhook configurations that this server installs.
    fn configuration_settings(&self) -> ConfigurationSettings {
        let args = &self.args;
        let namespace = &args.cluster.namespace;
        ConfigurationSettings {
            client: install::client_config(args.endpoint.webhook_url.as_deref(), namespace),
            namespace: namespace.clone(),
            ca_bundle: self.certificates.as_ref().map(|own| own.bundle.clone()),
            grace_delete: args.features.grace_delete(),
            collasets: args.features.collasets(),
            cert_manager: None,
            segment: None,
        }
    }

    /// Watches the webhook configurations, and corrects them while this replica leads.
    pub(super) fn watch_registration(&self) -> anyhow::Result<()> {
        let needed = registration::required_configurations(&self.args.cluster.namespace)?;
        let wake = self.certificates.as_ref().map(|own| Arc::clone(&own.wake));
        let changed = Arc::<Notify>::default();
        if !self.args.fixed_webhooks {
            let settings = self.configuration_settings();
            let upkeep = WebhookUpkeep::new(&self.client, &settings, Arc::clone(&changed))
                .context("the own webhook configurations can't be written")?;
            let stop = self.supervisor.stop().clone();
            self.supervisor.spawn_supervised(
                "the upkeep of the webhook configurations",
                upkeep.run(self.leading.subscribe(), stop),
            );
        }
        let observer =
            registration::configuration_observer(&self.args, &self.path_guard, wake, changed);
        watches::registration::start_registration_watches(
            &self.client,
            &self.caches,
            needed,
            &observer,
            &self.supervisor,
        );
        Ok(())
    }
}

/// Which addresses the endpoints of rules may have.
async fn endpoint_address_policy(args: &ServeArgs) -> anyhow::Result<AddressPolicy> {
    let config = connect::client_config(&args.cluster).await?;
    let named = config.cluster_url.host().map(str::to_owned);
    let service = std::env::var("KUBERNETES_SERVICE_HOST").ok();
    let api_server = ApiServer::new(named.into_iter().chain(service));
    let networks = EndpointNetworks {
        allowed: args.controllers.endpoint_allow_cidrs.clone(),
        denied: args.controllers.endpoint_deny_cidrs.clone(),
        link_local: args.controllers.allow_link_local_endpoints,
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
