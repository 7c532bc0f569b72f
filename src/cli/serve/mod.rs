//! `operating serve`: builds all parts of a replica, and then runs them until they end.

mod certificates;
mod controllers;
mod ending;
mod installed;
mod listeners;
pub mod metrics;
mod registration;
mod replica;
mod run;
mod traffic;
mod traffic_figures;
mod watchdog;
pub(in crate::cli) mod webhook_upkeep;

use tokio_util::sync::CancellationToken;

use super::adapter_types::AdapterTypes;
use super::args::{LogFormat, ServeArgs};
use crate::tasks::Supervisor;
use crate::telemetry::logs;

use replica::Replica;

/// Installs what `--install` asks for, and then serves until SIGTERM or SIGINT, until a task fails, or until etcd turns
/// out to have been restored to an earlier state.
///
/// # Errors
/// What could not be set up, the error of the failed task, or that etcd was restored.
pub async fn serve(args: ServeArgs, types: &AdapterTypes) -> anyhow::Result<()> {
    let format = match args.telemetry.log_format {
        LogFormat::Text => logs::LogLineFormat::Text,
        LogFormat::Json => logs::LogLineFormat::Json,
    };
    logs::init_logging(format, &args.telemetry.log)?;
    let stop = CancellationToken::new();
    let _stop_all = stop.clone().drop_guard();
    let replica = Replica::build(args, types, Supervisor::new(stop)).await?;
    replica.run().await
}
