//! Flags of the `operating` command. Each can be set by an environment variable too; a flag wins.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

use super::values::{
    FeatureGate, cidr, duration, feature_gate, namespace, namespaced_name, webhook_url,
};
use crate::admission::MAX_RULES_PER_NAMESPACE;

mod reader;

pub use reader::{
    BudgetArgs, ExplainArgs, Output, PLUGIN, Plugin, ReadCommand, ReaderArgs, WhyArgs, parse,
};

/// Pod operations whose availability rules are held at admission.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "operating",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve admission reviews and run the controllers
    Serve(Box<ServeArgs>),
    /// Put namespace, CRDs, RBAC, policies and webhook configurations into a cluster
    ///
    /// May be repeated and may run several times at once. It does not start a server: until one answers, held
    /// operations are denied in namespaces that have rules, and everything else goes on as before.
    Install(InstallArgs),
    /// Take everything out of a cluster again; Pods keep running
    ///
    /// Policies and webhook configurations go first, so that nothing waits for a server that is gone; then finalizers that nobody
    /// would serve any more, CRDs with their objects, RBAC, certificates and the namespace. Pods of CollaSets are
    /// left behind without an owner. Lifecycle labels stay on Pods as they are.
    Uninstall(UninstallArgs),
    /// Read only; the plugin of kubectl.
    #[command(flatten)]
    Read(ReadCommand),
    /// Print the CustomResourceDefinitions as YAML
    Crds,
    /// Print the webhook configurations as YAML
    WebhookConfig(WebhookConfigArgs),
    /// Print the reference of this command line as Markdown
    #[command(hide = true)]
    Docs,
}

/// How to reach the API server, and where to live in it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// File with the credentials of the API server; else $KUBECONFIG, ~/.kube/config or the Pod's service account
    #[arg(long, env = "OPERATING_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; else its current one
    #[arg(
        long,
        env = "OPERATING_CONTEXT",
        value_name = "NAME",
        requires = "kubeconfig"
    )]
    pub context: Option<String>,
    /// Namespace of the server's own objects: certificates, lease, service account
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = super::install::names::NAMESPACE,
          value_parser = namespace)]
    pub namespace: String,
}

/// Where the API server finds the webhooks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct EndpointArgs {
    /// URL of the webhooks as the API server sees it, https and without a path; else the Service `operating`, port 443
    #[arg(long, env = "OPERATING_WEBHOOK_URL", value_name = "URL", value_parser = webhook_url)]
    pub webhook_url: Option<String>,
}

/// Which of the features that are off by default are on.
#[derive(Clone, Debug, Args)]
pub struct FeatureArgs {
    /// Features on or off, comma-separated. Whatever applies the webhook configurations and every replica must be given the
    /// same
    ///
    /// GraceDeleteWebhook=true (default false): deletions and evictions of managed Pods with the readiness gate go through their
    /// lifecycle first, so that rules with labelCheck and webhook in stage PreCheck hold them too.
    /// CollaSets=false (default true): the server neither reviews nor reconciles CollaSets, deletes no Pods labelled
    /// collaset.kusionstack.io/to-delete, and needs fewer rights (docs/rights.md). Delete CollaSets first, since nothing
    /// removes their finalizers afterwards.
    #[arg(long, env = "OPERATING_FEATURE_GATES", value_name = "NAME=BOOL", value_delimiter = ',',
          value_parser = feature_gate, help_heading = "Webhooks")]
    pub feature_gates: Vec<FeatureGate>,
}

impl FeatureArgs {
    /// Whether `GraceDeleteWebhook` is on; of several values the last counts.
    pub fn grace_delete(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::GraceDelete(on) => Some(on),
            _ => None,
        })
        .unwrap_or(false)
    }

    /// Whether `CollaSets` is on; of several values the last counts.
    pub fn collasets(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::CollaSets(on) => Some(on),
            _ => None,
        })
        .unwrap_or(true)
    }

    fn last_gate_value(&self, said: impl Fn(FeatureGate) -> Option<bool>) -> Option<bool> {
        self.feature_gates.iter().rev().find_map(|gate| said(*gate))
    }
}

/// Flags of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Webhooks.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Features.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// Install first what is missing: namespace, CRDs, certificates and, once serving, webhook configurations
    #[arg(long, env = "OPERATING_INSTALL", help_heading = "Cluster")]
    pub install: bool,
    /// Address of the webhooks, HTTPS
    #[arg(
        long,
        env = "OPERATING_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:9443",
        help_heading = "Webhooks"
    )]
    pub listen: SocketAddr,
    /// Directory with tls.crt and tls.key, as a mounted Secret; else the server keeps its own in Secret webhook-certs
    #[arg(
        long,
        env = "OPERATING_CERT_DIR",
        value_name = "DIR",
        help_heading = "Webhooks"
    )]
    pub cert_dir: Option<PathBuf>,
    /// Further DNS name or IP address for the self-managed certificate; may be repeated or comma-separated
    #[arg(
        long = "dns-name",
        env = "OPERATING_DNS_NAMES",
        value_name = "NAME",
        value_delimiter = ',',
        conflicts_with = "cert_dir",
        help_heading = "Webhooks"
    )]
    pub dns_names: Vec<String>,
    /// PEM file of the authorities that sign the client certificates of API servers; calls without such a certificate are
    /// refused
    ///
    /// The API server is given its certificate by an AdmissionConfiguration: docs/who-may-call.md.
    #[arg(
        long,
        env = "OPERATING_CLIENT_CA_FILE",
        value_name = "FILE",
        requires = "client_names",
        help_heading = "Webhooks"
    )]
    pub client_ca_file: Option<PathBuf>,
    /// Common or DNS name that the certificate of an API server has; may be repeated or comma-separated
    #[arg(
        long = "client-name",
        env = "OPERATING_CLIENT_NAMES",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "client_ca_file",
        help_heading = "Webhooks"
    )]
    pub client_names: Vec<String>,
    /// Let the feature gate GraceDeleteWebhook work without --client-ca-file
    ///
    /// With the gate a call to the webhook port can have a Pod deleted. Only for networks in which nobody but API servers
    /// reaches that port.
    #[arg(
        long,
        env = "OPERATING_TRUST_CALLERS",
        conflicts_with = "client_ca_file",
        help_heading = "Webhooks"
    )]
    pub trust_callers: bool,
    /// Keep the webhook paths as they are installed
    ///
    /// With self-managed certificates and without --client-ca-file, the servers put a random segment in front of the webhook
    /// paths, and change it each day, so that not everybody who reaches the port can call. Something that puts installed
    /// objects back all the time needs this.
    #[arg(long, env = "OPERATING_PLAIN_WEBHOOK_PATHS", help_heading = "Webhooks")]
    pub plain_webhook_paths: bool,
    /// Most connections of API servers that are kept open; beyond them an answer ends its connection
    ///
    /// A connection counts as one of an API server once a review that came over it has got a verdict, or once it has shown a
    /// client certificate (--client-ca-file). Until then it has five seconds for each step.
    #[arg(long, env = "OPERATING_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Webhooks")]
    pub max_connections: u32,
    /// Most other connections; beyond them the address with the most loses its oldest one
    #[arg(long, env = "OPERATING_MAX_UNPROVEN_CONNECTIONS", value_name = "COUNT", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Webhooks")]
    pub max_unproven_connections: u32,
    /// Most other connections of one IPv4 address or IPv6 /64 network; beyond them it loses its oldest one
    #[arg(long, env = "OPERATING_MAX_UNPROVEN_PER_ADDRESS", value_name = "COUNT", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Webhooks")]
    pub max_unproven_per_address: u32,
    /// Longest review that is read, up to 16 MiB; the default has room for two objects of 3 MiB, the API server's limit
    #[arg(long, env = "OPERATING_MAX_REVIEW_BYTES", value_name = "BYTES", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(65_536..=16_777_216), help_heading = "Webhooks")]
    pub max_review_bytes: u32,
    /// Largest CollaSet that is accepted, managedFields included
    ///
    /// What is parsed of a template takes many times its bytes, here and in the API server, and anybody who may create a
    /// CollaSet can send it many at once. CollaSets that were stored before can still be deleted and
    /// changed in everything but their spec.
    #[arg(long, env = "OPERATING_MAX_COLLASET_BYTES", value_name = "BYTES", default_value_t = 256 << 10,
          value_parser = clap::value_parser!(u32).range(4_096..=4_194_304), help_heading = "Webhooks")]
    pub max_collaset_bytes: u32,
    /// The API server's own --request-timeout: a claim without effect lapses no earlier
    #[arg(long, env = "OPERATING_REQUEST_TIMEOUT", value_name = "DURATION", default_value = "60s",
          value_parser = duration, help_heading = "Webhooks")]
    pub request_timeout: Duration,
    /// Let the annotation skip-rule-conditions of Pods skip no rule; every replica must be given the same
    ///
    /// Whoever may edit a Pod can set the annotation. While it has an effect, each disruption that a skipped rule would
    /// hold is told of by an audit annotation, an Event and a metric.
    #[arg(
        long,
        env = "OPERATING_IGNORE_SKIP_ANNOTATIONS",
        help_heading = "Webhooks"
    )]
    pub ignore_skip_annotations: bool,
    /// Most PodTransitionRules in a namespace; further ones are refused when they are made
    ///
    /// Each change of a Pod is matched against all of its namespace. Several that are made at once are counted by the cache,
    /// and may come to a few more.
    #[arg(long, env = "OPERATING_MAX_RULES_PER_NAMESPACE", value_name = "COUNT",
          default_value_t = MAX_RULES_PER_NAMESPACE,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Webhooks")]
    pub max_rules_per_namespace: u32,
    /// How long to go on accepting after SIGTERM, until Services have dropped this replica
    #[arg(long, env = "OPERATING_LAME_DUCK", value_name = "DURATION", default_value = "5s",
          value_parser = duration, help_heading = "Webhooks")]
    pub lame_duck: Duration,
    /// How long reviews in flight may take after that
    #[arg(long, env = "OPERATING_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "30s",
          value_parser = duration, help_heading = "Webhooks")]
    pub drain_timeout: Duration,
    /// Run the controllers only while holding the Lease; needed with more than one replica
    #[arg(long, env = "OPERATING_LEADER_ELECT", help_heading = "Controllers")]
    pub leader_elect: bool,
    /// Let webhook rules name link-local and cloud metadata addresses, such as 169.254.169.254
    ///
    /// Whoever may write rules then makes the server talk to what only its machine should reach.
    #[arg(
        long,
        env = "OPERATING_ALLOW_LINK_LOCAL_ENDPOINTS",
        help_heading = "Controllers"
    )]
    pub allow_link_local_endpoints: bool,
    /// Networks whose addresses webhook rules may not name; comma-separated, such as 10.0.0.0/8,fd00::/8
    ///
    /// Loopback addresses, the API server's (the host of the kubeconfig or of the Service kubernetes), link-local and cloud
    /// metadata addresses are refused anyway.
    #[arg(
        long,
        env = "OPERATING_ENDPOINT_DENY_CIDRS",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = cidr,
        help_heading = "Controllers"
    )]
    pub endpoint_deny_cidrs: Vec<IpNet>,
    /// Networks whose addresses webhook rules may name although they are refused otherwise; comma-separated
    ///
    /// It refuses no others: --endpoint-deny-cidrs 0.0.0.0/0,::/0 does.
    #[arg(
        long,
        env = "OPERATING_ENDPOINT_ALLOW_CIDRS",
        value_name = "CIDR",
        value_delimiter = ',',
        value_parser = cidr,
        help_heading = "Controllers"
    )]
    pub endpoint_allow_cidrs: Vec<IpNet>,
    /// Name of this replica in the Lease; else made up
    #[arg(
        long,
        env = "POD_NAME",
        value_name = "NAME",
        help_heading = "Controllers"
    )]
    pub identity: Option<String>,
    /// Waits of a Pod that last longer are told of by Events
    #[arg(long, env = "OPERATING_WAIT_NOTICE", value_name = "DURATION", default_value = "60s", hide = true,
          value_parser = duration, help_heading = "Controllers")]
    pub wait_notice: Duration,
    /// Address of /livez, /readyz and /metrics, plain HTTP
    #[arg(
        long,
        env = "OPERATING_METRICS_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8080",
        help_heading = "Telemetry"
    )]
    pub metrics_listen: SocketAddr,
    /// Form of the log
    #[arg(
        long,
        env = "OPERATING_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Telemetry"
    )]
    pub log_format: LogFormat,
    /// What to log: a level, or levels by module such as info,kube=warn
    #[arg(
        long,
        env = "OPERATING_LOG",
        value_name = "FILTER",
        default_value = "info",
        help_heading = "Telemetry"
    )]
    pub log: String,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for each event
    Text,
    /// One JSON object for each event
    Json,
}

/// Flags of `install`.
#[derive(Clone, Debug, Args)]
pub struct InstallArgs {
    /// Cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Webhooks.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Features.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// PEM file of the CA behind the webhooks; else the field is left to the server, which keeps it, or to cert-manager
    #[arg(
        long,
        env = "OPERATING_CA_FILE",
        value_name = "FILE",
        help_heading = "Webhooks"
    )]
    pub ca_file: Option<PathBuf>,
    /// Leave the webhook configurations out, for a server that applies them itself (serve --install)
    #[arg(
        long,
        env = "OPERATING_NO_WEBHOOKS",
        help_heading = "Webhooks",
        conflicts_with = "ca_file"
    )]
    pub no_webhooks: bool,
    /// Leave out, or take back, the rights to keep a certificate in Secret webhook-certs, for servers that are given theirs
    /// by --cert-dir
    #[arg(
        long,
        env = "OPERATING_MOUNTED_CERTIFICATES",
        help_heading = "Webhooks"
    )]
    pub mounted_certificates: bool,
}

/// Flags of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// Cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Keep the CRDs and the objects of their kinds
    #[arg(long, env = "OPERATING_KEEP_CRDS")]
    pub keep_crds: bool,
}

/// Flags of `webhook-config`.
#[derive(Clone, Debug, Args)]
pub struct WebhookConfigArgs {
    /// Webhooks.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Features.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// Namespace of the server and its Service
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = super::install::names::NAMESPACE,
          value_parser = namespace, help_heading = "Webhooks")]
    pub namespace: String,
    /// PEM file of the CA behind the webhooks
    #[arg(
        long,
        env = "OPERATING_CA_FILE",
        value_name = "FILE",
        help_heading = "Webhooks",
        conflicts_with = "cert_manager"
    )]
    pub ca_file: Option<PathBuf>,
    /// Let cert-manager inject the CA of this Certificate
    #[arg(long, env = "OPERATING_CERT_MANAGER", value_name = "NAMESPACE/NAME", value_parser = namespaced_name,
          help_heading = "Webhooks")]
    pub cert_manager: Option<String>,
}

#[cfg(test)]
mod tests;
