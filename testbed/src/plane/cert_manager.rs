//! cert-manager on a plane.

use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::timeout;

use super::Plane;
use crate::binaries;
use crate::process::Process;

/// Timeout for the CRDs to be applied and established.
const DEADLINE: Duration = Duration::from_secs(180);

impl Plane {
    /// Runs cert-manager (issuers, certificates, the CA injector) on this plane until the plane
    /// ends: its CRDs, its namespace `cert-manager`, then one process with the rights of an
    /// administrator.
    ///
    /// # Errors
    /// When it cannot be built, its CRDs are refused, or on a cluster that this process did not
    /// start.
    pub async fn cert_manager(&self) -> Result<()> {
        let local = self.local()?;
        let found = tokio::task::spawn_blocking(binaries::cert_manager).await??;
        let name = "cert-manager";
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(self.client()?)
            .patch(
                name,
                &PatchParams::apply("operating-plane").force(),
                &Patch::Apply(&namespace),
            )
            .await?;
        let crds = found.crds.display().to_string();
        self.run_kubectl(&["apply", "--server-side", "-f", &crds])
            .await?;
        self.run_kubectl(&["wait", "--for=condition=Established", "-f", &crds])
            .await?;
        let flag = format!("--kubeconfig={}", self.kubeconfig.display());
        let process = Process::start(name, &found.binary, [flag], &self.logs())?;
        local.adopt(process).await;
        Ok(())
    }

    async fn run_kubectl(&self, args: &[&str]) -> Result<()> {
        let output = timeout(DEADLINE, self.kubectl(args).output()).await??;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("kubectl {}: {}", args.join(" "), text.trim());
        }
        Ok(())
    }
}
