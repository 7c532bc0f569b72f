//! Flags of the commands that only read. The kubectl plugin has these commands only.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::{Cli, Command, FeatureArgs, namespace};
use crate::api::keys;

/// Name of the program under which kubectl finds its plugin `operating`.
pub const PLUGIN: &str = "kubectl-operating";

/// The commands that only read.
#[derive(Clone, Debug, Subcommand)]
pub enum ReadCommand {
    /// Show why a Pod waits: its operations, the rules that cover it, which Pods use up their budgets, and
    /// the next step; which targets of an OperationJob wait, and why; or what the traffic of a Service waits for
    ///
    /// The command reads the Pod, the rules of its namespace with their status, the managed Pods and the
    /// OperationJobs of the namespace and the controller of the Pod, and writes nothing. For a Pod of a
    /// CollaSet, it also reads the PodDecorations of the namespace. The output names the objects that the user
    /// may not read. If the user may delete the Pod, a dry-run DELETE shows what holds a deletion, and
    /// whether it goes through the lifecycle (feature gate GraceDeleteWebhook).
    ///
    /// If the Pod waits for the finalizer of a Service, the command also reads the Service and shows what its
    /// report says about the Pod.
    ///
    /// For an OperationJob, the command reads only the job. For a Service, it reads the Service and the
    /// managed Pods of the namespace.
    Why(WhyArgs),
    /// List rules with their remaining budgets, the smallest first
    Budget(BudgetArgs),
    /// Decide an AdmissionReview offline, with the code of the server
    ///
    /// The command connects to no server. Exit code 0: allowed; 1: denied; 2: the input can't be used.
    Explain(ExplainArgs),
}

/// How to reach the API server with the credentials of a user.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ReaderArgs {
    /// Kubeconfig file; by default $KUBECONFIG or ~/.kube/config
    #[arg(long, env = "OPERATING_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default its current context
    #[arg(long, env = "OPERATING_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace; by default the namespace of the context
    #[arg(short, long, env = "OPERATING_NAMESPACE", value_name = "NAME", value_parser = namespace)]
    pub namespace: Option<String>,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// For programs; with --watch, each state is one line
    Json,
}

/// The flag for the format of the output.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatArgs {
    /// Format of the output
    #[arg(
        short,
        long,
        env = "OPERATING_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    pub output: Output,
}

/// Flags of `why`.
#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// The Pod, the OperationJob or the Service: pod/NAME, pod NAME or NAME; opj/NAME or opj NAME; svc/NAME or
    /// svc NAME
    #[arg(required = true, num_args = 1..=2, value_name = "OBJECT")]
    pub object: Vec<String>,
    /// The API server that is read.
    #[command(flatten)]
    pub reader: ReaderArgs,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
    /// Show every change until the object is deleted
    #[arg(short, long, env = "OPERATING_WATCH")]
    pub watch: bool,
}

/// Flags of `budget`.
#[derive(Clone, Debug, Args)]
pub struct BudgetArgs {
    /// The API server that is read.
    #[command(flatten)]
    pub reader: ReaderArgs,
    /// Rules of all namespaces
    #[arg(
        short = 'A',
        long,
        env = "OPERATING_ALL_NAMESPACES",
        conflicts_with = "namespace"
    )]
    pub all_namespaces: bool,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
    /// Show every change
    #[arg(short, long, env = "OPERATING_WATCH")]
    pub watch: bool,
}

/// Flags of `explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// AdmissionReview of admission.k8s.io/v1, JSON or YAML
    #[arg(value_name = "REVIEW")]
    pub review: PathBuf,
    /// YAML or JSON with PodTransitionRules, such as the output of kubectl get podtransitionrules -o yaml;
    /// may be repeated
    #[arg(long, env = "OPERATING_RULES", value_name = "FILE", required = true)]
    pub rules: Vec<PathBuf>,
    /// YAML or JSON with the other Pods of the namespace and the workloads that own Pods; may be repeated
    #[arg(long, env = "OPERATING_PODS", value_name = "FILE")]
    pub pods: Vec<PathBuf>,
    /// The features of the server whose decision is repeated.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The object that `why` explains, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhySubject<'a> {
    /// A Pod.
    Pod(&'a str),
    /// An OperationJob.
    OperationJob(&'a str),
    /// A Service.
    Service(&'a str),
}

impl WhyArgs {
    /// The object to explain. `kubectl get -o name` writes the kind with its group.
    ///
    /// # Errors
    /// The expected form, if the user names another kind or no name.
    pub fn subject(&self) -> Result<WhySubject<'_>, String> {
        let (kind, name) = match &self.object[..] {
            [kind, name] => (kind.as_str(), name.as_str()),
            [argument] => argument.split_once('/').unwrap_or(("pod", argument)),
            _ => ("pod", ""),
        };
        let plain_kind = match kind.split_once('.') {
            Some((plain_kind, keys::GROUP)) => plain_kind,
            _ => kind,
        };
        let (subject, form) = match plain_kind {
            "operationjob" | "operationjobs" | "opj" => {
                (WhySubject::OperationJob(name), "opj/NAME")
            }
            _ if ["pod", "pods", "po"].contains(&kind) => (WhySubject::Pod(name), "pod/NAME"),
            _ if ["service", "services", "svc"].contains(&kind) => {
                (WhySubject::Service(name), "svc/NAME")
            }
            _ => {
                return Err(format!(
                    "{kind} is not supported: operating why accepts only Pods, OperationJobs and Services; write pod/NAME, opj/NAME or svc/NAME"
                ));
            }
        };
        match name {
            "" => Err(format!("the name is missing: write {form}")),
            name if name.contains('/') => Err(format!("{name} is not a name: write {form}")),
            _ => Ok(subject),
        }
    }
}

/// The command as kubectl starts it.
#[derive(Clone, Debug, Parser)]
#[command(
    name = PLUGIN,
    bin_name = "kubectl operating",
    about = "Why is my Pod waiting?",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Plugin {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ReadCommand,
}

/// Parses the command line. If the name of the program is [`PLUGIN`], the plugin's commands are parsed. Ends
/// the process on `--help` and on errors.
pub fn parse(args: Vec<OsString>) -> Cli {
    let called = args.first().map(Path::new).and_then(Path::file_stem);
    if called.is_some_and(|name| name == PLUGIN) {
        let Plugin { command } = Plugin::parse_from(args);
        return Cli {
            command: Command::Read(command),
        };
    }
    Cli::parse_from(args)
}
