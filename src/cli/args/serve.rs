//! Flags of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::{ClusterArgs, EndpointArgs, FeatureArgs};
use crate::admission::MAX_RULES_PER_NAMESPACE;
use crate::cli::values::{cidr, duration, restart_method};
use crate::domain::operationjob::restart::settings::RestartMethod;

/// Flags of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The API server whose objects this server controls.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The URL at which the API server reaches this server.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// The features that this replica serves.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// First install missing objects: namespace, CRDs, certificates and, when the server is ready, webhook
    /// configurations
    #[arg(long, env = "OPERATING_INSTALL", help_heading = "Cluster")]
    pub install: bool,
    /// Do not correct the webhook configurations when they are not as this version needs them
    #[arg(long, env = "OPERATING_FIXED_WEBHOOKS", help_heading = "Webhooks")]
    pub fixed_webhooks: bool,
    /// How the webhooks are served.
    #[command(flatten)]
    pub webhooks: WebhookArgs,
    /// What the controllers may do.
    #[command(flatten)]
    pub controllers: ControllerArgs,
    /// The probes, the metrics and the log.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Who may call the webhooks, how much they accept, and how they end.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct WebhookArgs {
    /// Address of the webhooks (HTTPS)
    #[arg(
        long,
        env = "OPERATING_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:9443"
    )]
    pub listen: SocketAddr,
    /// Directory with tls.crt and tls.key, such as a mounted Secret; by default the server maintains a
    /// certificate in Secret webhook-certs
    #[arg(long, env = "OPERATING_CERT_DIR", value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Additional DNS name or IP address for the self-managed certificate; may be repeated or comma-separated
    #[arg(
        long = "dns-name",
        env = "OPERATING_DNS_NAMES",
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "cert_dir"
    )]
    pub dns_names: Vec<String>,
    /// PEM file with the CAs of the client certificates of API servers; calls without such a certificate are
    /// refused
    ///
    /// An AdmissionConfiguration gives the API server its client certificate: docs/who-may-call.md.
    #[arg(
        long,
        env = "OPERATING_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "client_names"
    )]
    pub client_ca_file: Option<PathBuf>,
    /// Common name or DNS name in the client certificate of an API server; may be repeated or comma-separated
    #[arg(
        long = "client-name",
        env = "OPERATING_CLIENT_NAMES",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "client_ca_file"
    )]
    pub client_names: Vec<String>,
    /// Allow the feature gate GraceDeleteWebhook without --client-ca-file
    ///
    /// With the feature gate, a call to the webhook port can cause the deletion of a Pod. Use this flag only
    /// in networks in which only API servers can reach that port.
    #[arg(
        long,
        env = "OPERATING_TRUST_CALLERS",
        conflicts_with = "client_ca_file"
    )]
    pub trust_callers: bool,
    /// Do not add a random segment to the webhook paths
    ///
    /// With self-managed certificates and without --client-ca-file, the servers put a random segment in front
    /// of the webhook paths and change it every day, so that a client needs more than access to the port. Use
    /// this flag if a tool, such as a GitOps controller, reverts changes of the installed webhook
    /// configurations.
    #[arg(long, env = "OPERATING_PLAIN_WEBHOOK_PATHS")]
    pub plain_webhook_paths: bool,
    /// Limit of open connections from API servers; beyond it, the server closes a connection after an answer
    ///
    /// A connection counts as one of an API server after a review on it got a verdict, or after the client
    /// presented a certificate (--client-ca-file). Until then, the client has five seconds for each step.
    #[arg(long, env = "OPERATING_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,
    /// Limit of connections whose client is not yet known to be an API server; beyond it, the address with
    /// the most such connections loses its oldest one
    #[arg(long, env = "OPERATING_MAX_UNPROVEN_CONNECTIONS", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_unproven_connections: u32,
    /// Limit of connections of one IPv4 address or IPv6 /64 network whose client is not yet known to be an API
    /// server; beyond it, the address loses its oldest one
    ///
    /// --max-unproven-connections limits the connections of all addresses together.
    #[arg(long, env = "OPERATING_MAX_UNPROVEN_PER_ADDRESS", value_name = "COUNT", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_unproven_per_address: u32,
    /// Limit of the size of a review, up to 16 MiB; the default suffices for two objects of 3 MiB, the API
    /// server's limit
    #[arg(long, env = "OPERATING_MAX_REVIEW_BYTES", value_name = "BYTES", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(65_536..=16_777_216))]
    pub max_review_bytes: u32,
    /// Limit of the size of a CollaSet, including managedFields
    ///
    /// A parsed template takes many times its size in memory, in this server and in the API server, and a
    /// user who may create a CollaSet can send it many times at once. A larger CollaSet that is already
    /// stored can still be deleted, and changed outside of its spec.
    #[arg(long, env = "OPERATING_MAX_COLLASET_BYTES", value_name = "BYTES", default_value_t = 256 << 10,
          value_parser = clap::value_parser!(u32).range(4_096..=4_194_304))]
    pub max_collaset_bytes: u32,
    /// The value of --request-timeout of the API server; a claim without effect is not released before this
    /// time
    #[arg(long, env = "OPERATING_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "60s",
          value_parser = duration)]
    pub request_timeout: Duration,
    /// Ignore the annotation skip-rule-conditions of Pods; give the same value to every replica
    ///
    /// Every user who may edit a Pod can set the annotation. If the annotation has an effect, an audit
    /// annotation, an Event and a metric report each disruption that a skipped rule would hold.
    #[arg(long, env = "OPERATING_IGNORE_SKIP_ANNOTATIONS")]
    pub ignore_skip_annotations: bool,
    /// Limit of PodTransitionRules in a namespace; the server refuses to create more
    ///
    /// Each change of a Pod is compared with all rules of its namespace. The server counts the rules in its
    /// cache, so rules that are created at the same time may exceed the limit by a few.
    #[arg(long, env = "OPERATING_MAX_RULES_PER_NAMESPACE", value_name = "COUNT",
          default_value_t = MAX_RULES_PER_NAMESPACE,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_rules_per_namespace: u32,
    /// Time after SIGTERM during which the server still accepts calls, until Services no longer select this
    /// replica
    #[arg(long, env = "OPERATING_LAME_DUCK", value_name = "DURATION", default_value = "5s",
          value_parser = duration)]
    pub lame_duck: Duration,
    /// Time for reviews in progress after --lame-duck
    #[arg(long, env = "OPERATING_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "30s",
          value_parser = duration)]
    pub drain_timeout: Duration,
}

/// When the controllers run and what they may call.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Controllers")]
pub struct ControllerArgs {
    /// YAML file with the adapters of load balancers; give the same file to every replica
    ///
    /// Without it, the traffic of a Service with the label kusionstack.io/control follows its EndpointSlices:
    /// docs/traffic.md.
    #[arg(long, env = "OPERATING_TRAFFIC_CONFIG", value_name = "FILE")]
    pub traffic_config: Option<PathBuf>,
    /// Run the controllers only while this replica holds the Lease; needed with more than one replica
    #[arg(long, env = "OPERATING_LEADER_ELECT")]
    pub leader_elect: bool,
    /// Allow link-local and cloud metadata addresses, such as 169.254.169.254, in webhook rules
    ///
    /// A user who may write rules can then make the server call services that only its own machine should
    /// reach.
    #[arg(long, env = "OPERATING_ALLOW_LINK_LOCAL_ENDPOINTS")]
    pub allow_link_local_endpoints: bool,
    /// Networks that are forbidden in webhook rules; comma-separated, such as 10.0.0.0/8,fd00::/8
    ///
    /// Loopback addresses, addresses of the API server (the host of the kubeconfig or of the Service
    /// kubernetes), link-local and cloud metadata addresses are also forbidden, unless --endpoint-allow-cidrs
    /// or --allow-link-local-endpoints allows them.
    #[arg(
        long,
        env = "OPERATING_ENDPOINT_DENY_CIDRS",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = cidr,
    )]
    pub endpoint_deny_cidrs: Vec<IpNet>,
    /// Networks that are allowed in webhook rules although another setting forbids them; comma-separated
    ///
    /// This flag does not forbid other addresses; to forbid them, also set --endpoint-deny-cidrs
    /// 0.0.0.0/0,::/0.
    #[arg(
        long,
        env = "OPERATING_ENDPOINT_ALLOW_CIDRS",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = cidr,
    )]
    pub endpoint_allow_cidrs: Vec<IpNet>,
    /// Name of this replica in the Lease; by default a generated name
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// How OperationJobs restart containers: ContainerRecreateRequest, ImageReference or auto
    #[arg(long, env = "OPERATING_RESTART_BY", value_name = "METHOD", default_value = "ContainerRecreateRequest",
          value_parser = restart_method)]
    pub restart_by: RestartMethod,
    /// Time after which Events report that a Pod waits
    #[arg(long, env = "OPERATING_WAIT_NOTICE", value_name = "DURATION", default_value = "60s", hide = true,
          value_parser = duration)]
    pub wait_notice: Duration,
}

/// What the server tells of itself.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub struct TelemetryArgs {
    /// Address of /livez, /readyz and /metrics (HTTP)
    #[arg(
        long,
        env = "OPERATING_METRICS_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080"
    )]
    pub metrics_listen: SocketAddr,
    /// Format of the log
    #[arg(
        long,
        env = "OPERATING_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
    /// Log level, or levels by module, such as info,kube=warn
    #[arg(
        long,
        env = "OPERATING_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for each event
    Text,
    /// One JSON object for each event
    Json,
}
