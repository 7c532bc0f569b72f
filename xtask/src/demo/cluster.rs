//! The cluster of the demo: its own plane with a server, or an existing cluster.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use testbed::binaries::{self, Kubernetes};
use testbed::plane::{self, Options, Plane};
use testbed::ports;
use testbed::server::{CONFIGURATIONS, Endpoints, Server};

use super::workload::Workload;
use super::{Args, keep};
use crate::build::build;
use crate::daemon;

/// Number of nodes of the demo's own plane: with 10 Pods on 3 nodes, a node has at least 4 Pods, more than
/// the limit.
const NODES: usize = 3;
/// Name of the adapter of the server that calls [`Cluster::bridge`].
pub const ADAPTER: &str = "edge";
/// Drain time of the adapter in seconds, longer than any request of the demo takes.
const DRAIN_SECONDS: u32 = 5;

/// A cluster with the server in it.
#[derive(Debug)]
pub struct Cluster {
    /// The cluster.
    pub plane: Plane,
    /// The server's binary.
    binary: PathBuf,
    server: Option<Server>,
    /// Port of 127.0.0.1 that the adapter [`ADAPTER`] calls. `None` if the cluster exists already: its Pods cannot be
    /// reached on loopback.
    pub bridge: Option<u16>,
    foreign: bool,
}

impl Cluster {
    /// Starts the cluster, with the progress on standard error.
    pub async fn up(args: &Args) -> Result<Self> {
        let foreign = plane::existing_cluster();
        if foreign.is_some() && args.keep {
            bail!("--keep needs a plane of its own: unset KUBECONFIG");
        }
        let endpoints = match &foreign {
            Some(kubeconfig) => {
                check_reachable(kubeconfig, args.webhook_url.as_deref()).await?;
                endpoints(args.webhook_url.as_deref())?
            }
            None => Endpoints::loopback()?,
        };
        let binary = match &args.bin {
            Some(path) => absolute(path)?,
            None => {
                eprintln!("building the server (the first time takes some minutes)");
                build(args.release).await?
            }
        };
        let bridge = match &foreign {
            Some(_) => None,
            None => Some(ports::free::<1>()?[0]),
        };
        if bridge.is_some() {
            // A build of Caddy would interrupt the scene that needs it.
            tokio::task::spawn_blocking(binaries::caddy).await??;
        }
        let plane = match &foreign {
            Some(kubeconfig) => Plane::attach(&absolute(kubeconfig)?).await?,
            None if args.keep => {
                eprintln!("starting a control plane");
                let state = daemon::up(keep::PLANE, NODES, Kubernetes::default()).await?;
                Plane::attach(&state.kubeconfig).await?
            }
            None => {
                eprintln!("starting a control plane");
                Plane::start(Options {
                    nodes: NODES,
                    ..Options::default()
                })
                .await?
            }
        };
        let mut cluster = Self {
            plane,
            binary,
            server: None,
            bridge,
            foreign: foreign.is_some(),
        };
        let started = cluster.serve(args, endpoints).await;
        match started {
            Ok(()) => Ok(cluster),
            Err(error) => {
                cluster.down(args).await?;
                Err(error)
            }
        }
    }

    async fn serve(&mut self, args: &Args, endpoints: Endpoints) -> Result<()> {
        let client = self.plane.client()?;
        if self.foreign {
            let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
            if webhooks.get_opt(CONFIGURATIONS[0]).await?.is_some() {
                // The demo did not create it, so the demo does not remove it.
                self.foreign = false;
                bail!(
                    "the cluster of KUBECONFIG has the webhook configuration {} already, which \
                     the demo would replace: run `operating uninstall` first, or unset KUBECONFIG",
                    CONFIGURATIONS[0]
                );
            }
        }
        eprintln!("starting the server");
        let logs = match args.keep {
            true => keep::logs()?,
            false => self.plane.logs(),
        };
        let flags = self.flags(&logs)?;
        if args.keep {
            return keep::serve(&self.plane, &self.binary, endpoints, &flags).await;
        }
        let mut server = Server::start(
            &self.binary,
            self.plane.controlplane_binary(),
            self.plane.kubeconfig(),
            &logs,
            endpoints,
            &flags,
        )?;
        let ready = server.ready(&client).await;
        self.server = Some(server);
        ready
    }

    /// Further flags of the server. Writes the configuration that they name into the directory.
    fn flags(&self, directory: &Path) -> Result<Vec<OsString>> {
        let Some(bridge) = self.bridge else {
            return Ok(Vec::new());
        };
        let config = json!({ "adapters": [{
            "name": ADAPTER,
            "type": "http",
            "settings": { "url": format!("http://127.0.0.1:{bridge}"), "drainSeconds": DRAIN_SECONDS },
        }] });
        let file = directory.join("traffic.yaml");
        std::fs::write(&file, config.to_string())
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(vec!["--traffic-config".into(), file.into()])
    }

    /// A namespace for the demo, with a workload that is not created yet.
    pub async fn workload(&self) -> Result<Workload> {
        let namespace = self.plane.namespace("demo").await?;
        Ok(Workload::new(self.plane.client()?, &namespace))
    }

    /// Removes the objects of the demo from an existing cluster.
    pub async fn clear(&self, workload: &Workload) -> Result<()> {
        if !self.foreign {
            return Ok(());
        }
        eprintln!("cleaning up the cluster");
        workload.set_nodes_schedulable(false).await?;
        Api::<Namespace>::all(self.plane.client()?)
            .delete(&workload.namespace, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Ends all parts. With `--keep`, only parts that did not start are removed.
    pub async fn down(mut self, args: &Args) -> Result<()> {
        let server = self.server.take();
        let has_installed = server.is_some();
        if let Some(server) = server {
            server.stop().await;
        }
        if self.foreign && has_installed {
            let uninstalled = tokio::process::Command::new(&self.binary)
                .args([
                    "uninstall".as_ref(),
                    "--yes".as_ref(),
                    "--kubeconfig".as_ref(),
                    self.plane.kubeconfig(),
                ])
                .kill_on_drop(true)
                .status()
                .await;
            if !uninstalled.is_ok_and(|status| status.success()) {
                eprintln!("`operating uninstall` failed: run it again by hand");
            }
        }
        self.plane.stop().await;
        if args.keep {
            daemon::down(keep::PLANE).await?;
        }
        Ok(())
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("{}: not there", path.display()))
}

/// Fails if an API server on another machine could not call the server.
async fn check_reachable(kubeconfig: &Path, webhook_url: Option<&str>) -> Result<()> {
    let plane = Plane::attach(kubeconfig).await?;
    let url: http::Uri = plane.apiserver_url().parse()?;
    let host = url.host().unwrap_or_default();
    if webhook_url.is_none() && !is_loopback(host) {
        bail!(
            "the API server of KUBECONFIG ({host}) is not on this machine, so it cannot reach the \
             demo's server at localhost: give --webhook-url https://HOST:PORT, an address of this \
             machine that it can reach, or unset KUBECONFIG for a control plane on this machine"
        );
    }
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// The address to listen on for `webhook_url`.
fn endpoints(webhook_url: Option<&str>) -> Result<Endpoints> {
    let loopback = Endpoints::loopback()?;
    let Some(url) = webhook_url else {
        return Ok(loopback);
    };
    let parsed: http::Uri = url.parse().context("--webhook-url")?;
    let port = parsed.port_u16().unwrap_or(443);
    Ok(Endpoints {
        listen: format!("0.0.0.0:{port}"),
        url: url.to_owned(),
        ..loopback
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn api_server_elsewhere_is_told_from_one_here() {
        for host in ["127.0.0.1", "localhost", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for elsewhere in ["10.0.0.1", "example.org", ""] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn given_url_is_listened_for_on_all_addresses() {
        let found = endpoints(Some("https://host.example:9443")).unwrap();
        assert_eq!(found.listen, "0.0.0.0:9443");
        assert_eq!(found.url, "https://host.example:9443");
        assert!(endpoints(None).unwrap().listen.starts_with("127.0.0.1:"));
    }
}
