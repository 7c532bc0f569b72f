//! The commands `rollout status`, `history`, `undo`, `pause`, `resume` and `restart` for CollaSets, with the rights of
//! their user.

mod history;
mod progress;
mod revisions;
mod status;
mod undo;
mod writes;

use std::process::ExitCode;

use anyhow::Context as _;
use kube::Client;
use kube::api::Api;

use super::args::steer::{CollaSetArgs, RolloutCommand};
use super::connect;
use super::why::api_reads;
use crate::api::collaset::CollaSet;
use crate::cluster::request_path;

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
        let sets = self.api()?;
        let read = sets.get_opt(&self.name);
        let namespace = Some(self.namespace.as_str());
        let read = api_reads::call_with_timeout("get", "collasets", namespace, read);
        read.await?.with_context(|| self.missing())
    }
}
