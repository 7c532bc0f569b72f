//! How a user reaches the API server.

use std::path::PathBuf;

use clap::Args;

/// The API server, with the credentials of a user.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct UserArgs {
    /// Kubeconfig file; by default $KUBECONFIG or ~/.kube/config
    #[arg(long, env = "OPERATING_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default its current context
    #[arg(long, env = "OPERATING_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
}
