//! Flags of the `operating` command. An environment variable can set each of them; a flag takes precedence
//! over its variable.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::values::{FeatureGate, feature_gate, namespace, namespaced_name, webhook_url};

mod check;
mod completion;
mod drain;
mod format;
mod plugin;
mod reader;
mod serve;
pub mod steer;
mod user;
mod why_subjects;

pub use check::CheckArgs;
pub use completion::{CompletionArgs, Shell};
pub use drain::DrainArgs;
pub use format::Output;
pub use plugin::{PLUGIN, Plugin, PluginCommand, parse};
pub use reader::{BudgetArgs, ExplainArgs, ReadCommand, ReaderArgs, WhyArgs};
pub use serve::{LogFormat, ServeArgs};
pub use steer::SteerCommand;
pub use user::UserArgs;
pub use why_subjects::{NamedKind, WhyKind, WhySubject, kind_of, named_kinds};

/// Availability rules for Pod operations, enforced at admission
#[derive(Clone, Debug, Parser)]
#[command(
    name = "operating",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Answer admission reviews and run the controllers
    Serve(Box<ServeArgs>),
    /// Install the namespace, CRDs, RBAC, policies and webhook configurations into a cluster
    ///
    /// The command may be repeated, and several may run at once. It does not start a server. Until a server
    /// answers, operations that rules may hold are denied in namespaces that have rules; all other requests
    /// pass as before.
    Install(InstallArgs),
    /// Remove everything from a cluster; Pods keep running
    ///
    /// The command names the cluster, shows what goes and what stays, and asks before it changes anything. It
    /// stops the Deployment of the server, and refuses while a server runs elsewhere.
    ///
    /// Policies and webhook configurations are removed first, so that no request waits for a server that is
    /// gone. Then follow finalizers that nobody else would remove, CRDs with their objects, RBAC,
    /// certificates, the marks of ResourceConsist on Services and their Pods, and the namespace. Pods that are
    /// off traffic get traffic again. Pods of CollaSets remain without an owner. Members stay registered at
    /// load balancers. Lifecycle labels stay on Pods as they are.
    Uninstall(UninstallArgs),
    /// The commands that only read, which the kubectl plugin has, too.
    #[command(flatten)]
    Read(ReadCommand),
    /// The other commands of the kubectl plugin.
    #[command(flatten)]
    Steer(SteerCommand),
    /// Print a script by which a shell completes command lines of this program
    ///
    /// The script calls this program, so that it also completes the names of Pods, CollaSets, nodes and namespaces. It
    /// reads them with the rights of the user. Load the script of the version that runs each time a shell starts:
    ///
    /// bash: source <(operating completion bash)
    ///
    /// zsh: source <(operating completion zsh)
    ///
    /// fish: operating completion fish | source
    ///
    /// PowerShell: operating completion powershell | Out-String | Invoke-Expression
    ///
    /// For kubectl operating, link this program as kubectl_complete-operating on the PATH instead.
    Completion(CompletionArgs),
    /// Print the CustomResourceDefinitions as YAML
    Crds,
    /// Print the webhook configurations as YAML
    WebhookConfig(WebhookConfigArgs),
    /// Print the reference of the command line as Markdown
    #[command(hide = true)]
    Docs,
}

/// How to reach the API server, and the namespace of the server's own objects.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Kubeconfig file; by default $KUBECONFIG, ~/.kube/config or the service account of the Pod
    #[arg(long, env = "OPERATING_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default its current context
    #[arg(long, env = "OPERATING_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the server's own objects: certificates, lease, service account
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = super::install::names::NAMESPACE,
          value_parser = namespace)]
    pub namespace: String,
}

/// The address at which the API server reaches the webhooks.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct EndpointArgs {
    /// URL at which the API server reaches the webhooks, https and without a path; by default the Service
    /// `operating`, port 443
    #[arg(long, env = "OPERATING_WEBHOOK_URL", value_name = "URL", value_parser = webhook_url)]
    pub webhook_url: Option<String>,
}

/// Which features are on.
#[derive(Clone, Debug, Args)]
pub struct FeatureArgs {
    /// Turn features on or off, comma-separated. Give the same value to every replica and to the command that
    /// applies the webhook configurations
    ///
    /// GraceDeleteWebhook=true (default false): deletions and evictions of managed Pods with the readiness
    /// gate go through their lifecycle first. Then rules with labelCheck and webhook in stage PreCheck hold
    /// them, too.
    ///
    /// CollaSets=false (default true): the server neither reviews nor reconciles CollaSets, deletes no Pods
    /// with the label collaset.kusionstack.io/to-delete, and needs fewer permissions (docs/rights.md). Delete
    /// all CollaSets before, because nothing removes their finalizers afterwards.
    ///
    /// ResourceConsist=false (default true): the server does not manage the traffic of Services, and needs fewer
    /// permissions. Remove the label kusionstack.io/control from all Services before (docs/traffic.md), because
    /// nothing removes finalizers afterwards.
    ///
    /// AlibabaCloudSlb=true (default false): as in Kuperator, Services with the labels kusionstack.io/control and
    /// service.k8s.alibaba/loadbalancer-id follow their load balancer of Alibaba Cloud. The key is in the
    /// environment (ALIYUN_SLB_AK_KEY, ALIYUN_SLB_AK_SECRET). For other settings, write an adapter of the type
    /// alibaba-slb into the file of --traffic-config instead.
    #[arg(long, env = "OPERATING_FEATURE_GATES", value_name = "NAME=BOOL", value_delimiter = ',',
          value_parser = feature_gate, help_heading = "Webhooks")]
    pub feature_gates: Vec<FeatureGate>,
}

impl FeatureArgs {
    /// Whether `GraceDeleteWebhook` is on; the last of several values takes effect.
    pub fn grace_delete(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::GraceDelete(on) => Some(on),
            _ => None,
        })
        .unwrap_or(false)
    }

    /// Whether `CollaSets` is on; the last of several values takes effect.
    pub fn collasets(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::CollaSets(on) => Some(on),
            _ => None,
        })
        .unwrap_or(true)
    }

    /// Whether `ResourceConsist` is on; the last of several values takes effect.
    pub fn resource_consist(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::ResourceConsist(on) => Some(on),
            _ => None,
        })
        .unwrap_or(true)
    }

    /// Whether `AlibabaCloudSlb` is on; the last of several values takes effect.
    pub fn alibaba_cloud_slb(&self) -> bool {
        self.last_gate_value(|gate| match gate {
            FeatureGate::AlibabaCloudSlb(on) => Some(on),
            _ => None,
        })
        .unwrap_or(false)
    }

    fn last_gate_value(&self, value_of: impl Fn(FeatureGate) -> Option<bool>) -> Option<bool> {
        self.feature_gates
            .iter()
            .rev()
            .find_map(|gate| value_of(*gate))
    }
}

/// Flags of `install`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct InstallArgs {
    /// The API server in which the objects are created.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The URL that is written into the webhook configurations.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// The features for which permissions and webhooks are installed.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// PEM file of the CA of the webhooks; without it, the server or cert-manager sets the CA
    #[arg(long, env = "OPERATING_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Omit the policies and the webhook configurations, for a server that applies them itself (serve --install), and
    /// beside a Kuperator that still runs
    #[arg(long, env = "OPERATING_NO_WEBHOOKS", conflicts_with = "ca_file")]
    pub no_webhooks: bool,
    /// Omit, or remove, the permission to keep a certificate in Secret webhook-certs, for servers with
    /// --cert-dir
    #[arg(long, env = "OPERATING_MOUNTED_CERTIFICATES")]
    pub mounted_certificates: bool,
    /// Omit, or remove, the permission to correct the webhook configurations, for servers with --fixed-webhooks
    #[arg(long, env = "OPERATING_FIXED_WEBHOOKS")]
    pub fixed_webhooks: bool,
}

/// Flags of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct UninstallArgs {
    /// The API server from which the objects are removed.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Keep the CRDs and the objects of their kinds
    #[arg(long, env = "OPERATING_KEEP_CRDS")]
    pub keep_crds: bool,
    /// Show what would be removed, and change nothing
    #[arg(long, env = "OPERATING_DRY_RUN", conflicts_with = "yes")]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long, env = "OPERATING_YES")]
    pub yes: bool,
}

/// Flags of `webhook-config`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub struct WebhookConfigArgs {
    /// The URL that is written into the webhook configurations.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// The features whose webhooks are printed.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// Namespace of the server and its Service
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME", default_value = super::install::names::NAMESPACE,
          value_parser = namespace)]
    pub namespace: String,
    /// PEM file of the CA of the webhooks
    #[arg(
        long,
        env = "OPERATING_CA_FILE",
        value_name = "FILE",
        conflicts_with = "cert_manager"
    )]
    pub ca_file: Option<PathBuf>,
    /// Let cert-manager inject the CA of this Certificate
    #[arg(long, env = "OPERATING_CERT_MANAGER", value_name = "NAMESPACE/NAME", value_parser = namespaced_name)]
    pub cert_manager: Option<String>,
}

#[cfg(test)]
mod tests;
