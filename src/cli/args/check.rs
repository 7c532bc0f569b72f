//! Flags of `check`.

use std::time::Duration;

use clap::Args;

use super::super::values::{duration, namespace};
use super::format::FormatArgs;
use super::{ClusterArgs, FeatureArgs};
use crate::cli::answering_server::DEFAULT_NAMESPACE;

/// Flags of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// The API server that is asked, and the namespace of the server.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The features of the server.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// The server has --cert-dir, and needs no right to keep a certificate in Secret webhook-certs
    #[arg(long, env = "OPERATING_MOUNTED_CERTIFICATES")]
    pub mounted_certificates: bool,
    /// The server has --fixed-webhooks, and needs no right to correct the webhook configurations
    #[arg(long, env = "OPERATING_FIXED_WEBHOOKS")]
    pub fixed_webhooks: bool,
    /// Namespace of the invalid rule, of which only a dry run is sent. It needs the right to create
    /// PodTransitionRules there, and must be another one than the server's
    #[arg(long, env = "OPERATING_ASK_IN", value_name = "NAME", default_value = DEFAULT_NAMESPACE, value_parser = namespace)]
    pub ask_in: String,
    /// Check again until all is well, at most for this time, such as 2m
    #[arg(long, env = "OPERATING_WAIT", value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
}
