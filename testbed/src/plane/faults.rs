//! Injects faults of the API server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::Client;
use kube::config::AuthInfo;

use super::{Plane, credentials};
use crate::proxy::FaultProxy;

impl Plane {
    /// Stops the API server. Its port stays reserved, and etcd keeps the data.
    ///
    /// # Errors
    /// On a cluster that this process did not start.
    pub async fn stop_apiserver(&self) -> Result<()> {
        self.local()?.stop_apiserver().await;
        Ok(())
    }

    /// Starts the API server unless it runs, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not get ready; on a cluster that this process did not start.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.local()?.start_apiserver(self.scratch.path()).await
    }

    /// Creates a backup of the current data of etcd. The backup is removed with the plane.
    ///
    /// # Errors
    /// When the data cannot be copied; on a cluster that this process did not start.
    pub async fn back_up_etcd(&self) -> Result<PathBuf> {
        let name = format!("backup-{}", credentials::random_hex(4)?);
        let backup = self.scratch.path().join(name);
        self.local()?.back_up(self.scratch.path(), &backup).await?;
        Ok(backup)
    }

    /// Restores etcd from a backup, so that resourceVersions go back. The API server and the controllers of
    /// the plane restart.
    ///
    /// # Errors
    /// When something does not start; on a cluster that this process did not start.
    pub async fn restore_etcd(&self, backup: &Path) -> Result<()> {
        let scratch = self.scratch.path();
        self.local()?.restore(scratch, backup).await
    }

    /// Restarts the controller-manager or the scheduler if it has ended.
    pub async fn revive_controllers(&self) -> Result<()> {
        let scratch = self.scratch.path();
        self.local()?.revive_controllers(scratch).await
    }

    /// Freezes the API server (SIGSTOP): connections can be opened, but get no answer.
    ///
    /// # Errors
    /// When it does not run; on a cluster that this process did not start.
    pub async fn pause_apiserver(&self) -> Result<()> {
        self.local()?.pause_apiserver(self.scratch.path()).await
    }

    /// Resumes a frozen API server (SIGCONT).
    ///
    /// # Errors
    /// As [`Plane::pause_apiserver`].
    pub async fn resume_apiserver(&self) -> Result<()> {
        self.local()?.resume_apiserver().await
    }

    /// A proxy in front of the API server that injects faults into the requests of a kubeconfig from
    /// [`Plane::kubeconfig_via`].
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn fault_proxy(&self) -> Result<FaultProxy> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        config.headers.clear();
        FaultProxy::start(Client::try_from(config)?).await
    }

    /// Writes a kubeconfig with the credentials of another one, a bearer token, that goes through
    /// a proxy, and returns its path. The file is removed with the plane.
    ///
    /// # Errors
    /// When the other one cannot be read or the new one not be written.
    pub fn kubeconfig_via(&self, proxy: &FaultProxy, kubeconfig: &Path) -> Result<PathBuf> {
        let name = kubeconfig.file_stem().context("a file name")?;
        let path = self.scratch.path().join(name);
        let path = path.with_added_extension("proxied.kubeconfig");
        credentials::write_kubeconfig_at(kubeconfig, &path, &proxy.url())?;
        Ok(path)
    }

    /// Process ids of all processes of this plane.
    pub async fn process_ids(&self) -> Vec<u32> {
        match &self.local {
            Some(local) => local.process_ids().await,
            None => Vec::new(),
        }
    }
}
