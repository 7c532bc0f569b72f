//! The commands `rollout status`, `history`, `undo`, `pause`, `resume` and `restart` for CollaSets, with the rights of
//! their user.

mod history;
mod progress;
mod revisions;
mod status;
mod undo;
mod writes;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube::api::Api;

use super::args::steer::{CollaSetArgs, RolloutCommand};
use super::connect;
use super::retries::Retries;
use super::why::api_reads;
use crate::api::collaset::CollaSet;
use crate::api_request;
use crate::cluster::request_path;

/// Longest time of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a command of `rollout` and returns its exit code.
pub async fn command(command: RolloutCommand) -> anyhow::Result<ExitCode> {
    match command {
        RolloutCommand::Status(args) => return status::wait_for_rollout(args).await,
        RolloutCommand::History(args) => history::show_history(args).await,
        RolloutCommand::Undo(args) => undo::undo_rollout(args).await,
        RolloutCommand::Pause(args) => writes::set_paused(args, true).await,
        RolloutCommand::Resume(args) => writes::set_paused(args, false).await,
        RolloutCommand::Restart(args) => writes::restart(args).await,
    }
    .map(|()| ExitCode::SUCCESS)
}

/// The CollaSet that a command is about.
struct Target {
    client: Client,
    namespace: String,
    name: String,
}

impl Target {
    async fn connect(args: &CollaSetArgs) -> anyhow::Result<Target> {
        let name = args.name().map_err(anyhow::Error::msg)?.to_owned();
        request_path::checked_name(&name)?;
        let (client, namespace) = connect::connect_reader(&args.reader).await?;
        Ok(Target {
            client,
            namespace,
            name,
        })
    }

    fn api(&self) -> anyhow::Result<Api<CollaSet>> {
        Ok(request_path::namespaced_api(&self.client, &self.namespace)?)
    }

    fn missing(&self) -> String {
        api_reads::no_such_object("CollaSet", "collasets", &self.namespace, &self.name)
    }

    async fn read(&self) -> anyhow::Result<CollaSet> {
        self.read_with(Retries::none()).await
    }

    /// Reads the set, and repeats the request after failures that pass by themselves.
    async fn read_with(&self, mut retries: Retries) -> anyhow::Result<CollaSet> {
        let sets = self.api()?;
        loop {
            let failure = match api_request::within(READ_TIMEOUT, sets.get_opt(&self.name)).await {
                Ok(set) => return set.with_context(|| self.missing()),
                Err(failure) => failure,
            };
            if let Err(failure) = retries.pause_after(failure).await {
                let namespace = Some(self.namespace.as_str());
                return Err(api_reads::explain_failure(
                    "get",
                    "collasets",
                    namespace,
                    failure,
                ));
            }
        }
    }
}
