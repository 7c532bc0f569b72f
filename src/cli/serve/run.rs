//! The order in which the parts of a replica run.

use tokio_util::sync::CancellationToken;

use super::controllers::{ControllerParts, start_controllers};
use super::ending::{self, RunningTasks};
use super::listeners::Listeners;
use super::replica::Replica;

impl Replica {
    /// Runs the replica until it ends, and drains its reviews.
    pub async fn run(self) -> anyhow::Result<()> {
        let limits = self.limits();
        let listeners = Listeners::bind(&self.args).await?;
        let listening = listeners.start(&self, &limits)?;
        if self.args.install {
            self.install_webhooks().await?;
        }
        // After the installation, because before it missing webhook configurations are no problem.
        self.watch_registration()?;
        let candidacy = CancellationToken::new();
        let controllers = start_controllers(ControllerParts {
            args: &self.args,
            client: &self.client,
            caches: &self.caches,
            owners: &self.owners,
            ledgers: &self.ledgers,
            endpoint_caller: &self.endpoint_caller,
            traffic: &self.traffic,
            controller_stats: &self.controller_stats,
            leading: self.leading,
            candidacy: candidacy.clone(),
            supervisor: &self.supervisor,
        });
        let running = RunningTasks {
            listening,
            controllers,
            candidacy,
        };
        ending::end(&self.supervisor, &self.caches.index, &limits, running).await
    }
}
