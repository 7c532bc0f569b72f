//! Faults of the API server, on purpose.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::Client;
use kube::config::AuthInfo;

use super::{Plane, credentials};
use crate::proxy::FaultProxy;

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

    /// Makes a backup of etcd as it is at this moment. It is removed with the plane.
    ///
    /// # Errors
    /// When the data cannot be copied; on a cluster that this process did not start.
    pub async fn back_up_etcd(&self) -> Result<PathBuf> {
        let name = format!("backup-{}", credentials::random_hex(4)?);
        let backup = self.scratch.path().join(name);
        self.local()?.back_up(self.scratch.path(), &backup).await?;
        Ok(backup)
    }

    /// Restores etcd from a backup: resourceVersions go back. The API server and the plane's own controllers start anew.
    ///
    /// # Errors
    /// When something does not start; on a cluster that this process did not start.
    pub async fn restore_etcd(&self, backup: &Path) -> Result<()> {
        let scratch = self.scratch.path();
        self.local()?.restore(scratch, backup).await
    }

    /// Starts a controller-manager or scheduler that has ended again.
    pub async fn revive_controllers(&self) -> Result<()> {
        let scratch = self.scratch.path();
        self.local()?.revive_controllers(scratch).await
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

    /// A proxy in front of the API server, with faults at will for whoever uses a kubeconfig made by
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

    /// Process ids of all that this plane started.
    pub async fn process_ids(&self) -> Vec<u32> {
        match &self.local {
            Some(local) => local.process_ids().await,
            None => Vec::new(),
        }
    }
}
