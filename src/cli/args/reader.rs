//! Flags of the commands that only read. The kubectl plugin has these commands, too.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::format::FormatArgs;
use super::{CheckArgs, DrainArgs, FeatureArgs, UserArgs, namespace};

/// The commands that only read.
#[derive(Clone, Debug, Subcommand)]
pub enum ReadCommand {
    /// Show why Pods wait, and what rollouts, OperationJobs and the traffic of Services wait for
    ///
    /// For a Pod: its operations, the rules that cover it, which Pods use up their budgets, and the next step.
    /// For a CollaSet, Deployment, StatefulSet, DaemonSet or ReplicaSet: what its rollout or scaling waits for,
    /// the Pods grouped by what they wait for, and the rules and PodDisruptionBudgets that cover them. For an
    /// OperationJob: which targets wait, and why. For a Service: what its traffic waits for.
    ///
    /// The command writes nothing and uses the rights of the user. The output names the objects that the user
    /// may not read. For a Pod it reads the Pod, the rules of its namespace with their status, the managed Pods
    /// and the OperationJobs of the namespace, and the controller of the Pod; for a Pod of a CollaSet also the
    /// PodDecorations; and the Services whose finalizers the Pod waits for. If the user may delete the Pod, a
    /// dry-run DELETE shows what holds a deletion, and whether it goes through the lifecycle (feature gate
    /// GraceDeleteWebhook). For a workload it reads the workload, and the Pods, rules, OperationJobs and
    /// PodDisruptionBudgets of the namespace; for a Deployment also its ReplicaSets. For an OperationJob it
    /// reads only the job. For a Service it reads the Service and the managed Pods of the namespace.
    ///
    /// Several objects are explained one after the other. With -o json, each is one line. The exit code is 1 if
    /// one of them can't be explained; the others are shown before.
    Why(WhyArgs),
    /// List rules with their remaining budgets, the smallest first
    Budget(BudgetArgs),
    /// Check whether the server answers, and whether its objects are as this version needs them
    ///
    /// The command asks through the API server which version answers for rules, by a dry run of an invalid rule. It
    /// compares the webhook configurations, their authorities, the CRDs and the policies with those of this version,
    /// looks at the Deployment, the Lease, the clocks, the labels of namespaces with rules and the rights of the server,
    /// and for leftovers of Kuperator. Each line says what was found, and for a problem what to do.
    ///
    /// The command writes nothing and uses the rights of the user. What the user may not read is unknown, not OK. Exit
    /// code 0: all is well; 1: there are problems; 2: there are no problems, but something could not be checked.
    Check(Box<CheckArgs>),
    /// Show what kubectl drain of a node would get, and evict nothing
    ///
    /// The preview shows the Pods in waves. Wave 1 is what the first evictions of kubectl drain get. Each further wave
    /// becomes possible when the Pods of the waves before it are replaced. Then come the Pods that no wave reaches, with
    /// what holds them and what to do, and the Pods that kubectl leaves on the node.
    ///
    /// The command writes nothing, does not cordon the node, and uses the rights of the user. It asks the API server about
    /// each Pod by a dry-run eviction, which needs the right to create pods/eviction. It reads the node, its Pods and
    /// their DaemonSets, and of each namespace the rules, the PodDisruptionBudgets and the Pods that their budgets
    /// count. Exit code 0: each Pod goes in a wave; 1: a Pod does not go, or kubectl refuses the node; 2: nothing is
    /// known to hold a Pod, but something could not be checked.
    Drain(Box<DrainArgs>),
    /// Decide an AdmissionReview offline, with the code of the server
    ///
    /// The command connects to no server. Exit code 0: allowed; 1: denied; 2: the input can't be used.
    Explain(ExplainArgs),
}

/// The API server, with the credentials of a user, and a namespace.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ReaderArgs {
    /// The API server.
    #[command(flatten)]
    pub user: UserArgs,
    /// Namespace; by default the namespace of the context
    #[arg(short, long, env = "OPERATING_NAMESPACE", value_name = "NAME", value_parser = namespace)]
    pub namespace: Option<String>,
}

/// Flags of `why`.
#[derive(Clone, Debug, Args)]
pub struct WhyArgs {
    /// What to explain: KIND/NAME ..., KIND NAME ... or the NAME of a Pod. Kinds are pod, cls (CollaSet), deploy,
    /// sts, ds, rs, opj (OperationJob) and svc, also in the long forms and with the group, as for kubectl
    #[arg(required = true, value_name = "OBJECT")]
    pub objects: Vec<String>,
    /// The API server that is read.
    #[command(flatten)]
    pub reader: ReaderArgs,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
    /// Show every change until the object is deleted; for one object only
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
