//! Faults of the API server, on purpose.

use anyhow::Result;

use super::Plane;

impl Plane {
    /// Ends the API server; its port stays its own and etcd keeps the data.
    ///
    /// # Errors
    /// On a cluster that this process did not start.
    pub async fn stop_apiserver(&self) -> Result<()> {
        self.local()?.stop_apiserver().await;
        Ok(())
    }

    /// Starts the API server again and waits until it is ready; nothing when it runs.
    ///
    /// # Errors
    /// When it does not get ready; on a cluster that this process did not start.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.local()?.start_apiserver(self.scratch.path()).await
    }

    /// Freezes the API server (SIGSTOP): connections open, nothing answers.
    ///
    /// # Errors
    /// When it does not run; on a cluster that this process did not start.
    pub async fn pause_apiserver(&self) -> Result<()> {
        self.local()?.pause_apiserver(self.scratch.path()).await
    }

    /// Lets a frozen API server go on (SIGCONT).
    ///
    /// # Errors
    /// As [`Plane::pause_apiserver`].
    pub async fn resume_apiserver(&self) -> Result<()> {
        self.local()?.resume_apiserver().await
    }

    /// Process ids of all that this plane started.
    pub async fn process_ids(&self) -> Vec<u32> {
        match &self.local {
            Some(local) => local.process_ids().await,
            None => Vec::new(),
        }
    }
}
