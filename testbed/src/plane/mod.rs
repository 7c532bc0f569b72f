//! A control plane on loopback ports, for tests and experiments.

pub mod audit;
mod callers;
mod cert_manager;
mod components;
mod credentials;

pub mod directory;
mod faults;
mod local;
mod nodes;

mod shared;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::{HeaderValue, USER_AGENT};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::binaries::{self, Kubernetes};
use crate::wait;
use local::Local;
pub use shared::{existing_cluster, shared};

/// Settings of a plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its Kubernetes; without, the one that the environment names ([`Kubernetes::of_environment`]).
    pub kubernetes: Option<Kubernetes>,
    /// Number of simulated nodes; each has room for 5,000 Pods.
    pub nodes: usize,
    /// Whether the API server writes an audit log (level Metadata, one line per request).
    pub audit: bool,
    /// Further flags of kube-apiserver, as `--name=value`; they override those of the plane.
    pub apiserver_flags: Vec<String>,
    /// Whether kube-controller-manager runs without `--use-service-account-credentials`: all its controllers then act
    /// as the user `system:kube-controller-manager`, who gets the rights of an administrator for it.
    pub shared_controller_account: bool,
    /// Name of its directory; random by default.
    pub name: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kubernetes: None,
            nodes: 2,
            audit: true,
            apiserver_flags: Vec::new(),
            shared_controller_account: false,
            name: None,
        }
    }
}

impl Options {
    /// A plane without nodes and without an audit log, for tests whose Pods need not run.
    #[must_use]
    pub fn bare() -> Self {
        Self {
            nodes: 0,
            audit: false,
            ..Self::default()
        }
    }
}

/// A running control plane, or an existing cluster. The processes that the plane started end when it is
/// stopped or dropped, or when this process ends in any way.
#[derive(Debug)]
pub struct Plane {
    kubeconfig: PathBuf,
    config: Config,
    controlplane: PathBuf,
    local: Option<Local>,
    scratch: directory::Directory,
}

impl Plane {
    /// Starts a plane and waits until its nodes are Ready. Builds the binaries when they are
    /// not in the cache.
    ///
    /// # Errors
    /// When Go is missing, a build fails, or a component does not get ready in time; the
    /// message holds the end of its log.
    pub async fn start(options: Options) -> Result<Self> {
        let kubernetes = options.kubernetes;
        let (controlplane, kwok) = tokio::task::spawn_blocking(move || {
            let kubernetes = kubernetes.map_or_else(Kubernetes::of_environment, Ok)?;
            let controlplane = binaries::controlplane(kubernetes)?;
            Ok::<_, anyhow::Error>((controlplane, binaries::kwok()?))
        })
        .await??;
        // Another process may bind a free port before the component does.
        let mut attempt = 0;
        loop {
            attempt += 1;
            let scratch = directory::Directory::create(options.name.as_deref())?;
            match Local::start(scratch.path(), &controlplane, &kwok, &options).await {
                Ok(local) => {
                    let kubeconfig = local::admin_kubeconfig(scratch.path());
                    return Ok(Self {
                        config: read_config(&kubeconfig).await?,
                        kubeconfig,
                        controlplane,
                        local: Some(local),
                        scratch,
                    });
                }
                Err(error)
                    if attempt < 3 && format!("{error:#}").contains("address already in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Uses an existing cluster. Functions that need the processes of a plane return an error.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn attach(kubeconfig: &Path) -> Result<Self> {
        let kubectl = || binaries::controlplane(Kubernetes::of_environment()?);
        let controlplane = tokio::task::spawn_blocking(kubectl).await??;
        Ok(Self {
            config: read_config(kubeconfig).await?,
            kubeconfig: kubeconfig.to_owned(),
            controlplane,
            local: None,
            scratch: directory::Directory::create(None)?,
        })
    }

    /// Kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The CA file and the name by which a webhook recognises this plane's API server. `None` for an existing
    /// cluster.
    #[must_use]
    pub fn webhook_caller(&self) -> Option<(PathBuf, &'static str)> {
        let _started = self.local.as_ref()?;
        Some((callers::authority(self.scratch.path()), callers::NAME))
    }

    /// URL of the API server.
    #[must_use]
    pub fn apiserver_url(&self) -> String {
        self.config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned()
    }

    /// A new client of the administrator. A client cannot outlive the runtime in which it was created, which
    /// is that of one test. The client does not retry, so that a test that expects a 429 receives it.
    ///
    /// # Errors
    /// When the kubeconfig's certificates cannot be used.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config.clone())?)
    }

    /// A client that acts with the credentials of another kubeconfig, as [`Plane::client`].
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client_from(&self, kubeconfig: &Path) -> Result<Client> {
        Ok(Client::try_from(read_config(kubeconfig).await?)?)
    }

    /// Writes a kubeconfig for this API server and a bearer token, and returns its path. The
    /// file is removed with the plane.
    ///
    /// # Errors
    /// When the administrator's kubeconfig cannot be read or the new one not be written.
    pub fn kubeconfig_for_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.scratch.path().join(format!("{name}.kubeconfig"));
        credentials::write_kubeconfig_like(&self.kubeconfig, &path, name, token)?;
        Ok(path)
    }

    /// A kubeconfig for an existing service account, with a token of the API server that is valid for a day.
    ///
    /// # Errors
    /// When the service account does not exist or the token is refused.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(24 * 60 * 60),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("asking for a token of {namespace}/{name}"))?;
        let token = answer.status.and_then(|status| status.token);
        let token = token.context("no token in the API server's answer")?;
        self.kubeconfig_for_token(&format!("{namespace}-{name}"), &token)
    }

    /// The binary of etcd, the Kubernetes components and kubectl; its first argument selects the program.
    #[must_use]
    pub fn controlplane_binary(&self) -> &Path {
        &self.controlplane
    }

    /// `kubectl ARGS…` as the administrator. kubectl is killed when the future is dropped.
    pub fn kubectl<I, S>(&self, args: I) -> tokio::process::Command
    where
        I: IntoIterator<Item = S>,
        S: AsRef<std::ffi::OsStr>,
    {
        let mut command = tokio::process::Command::new(&self.controlplane);
        command
            .arg("kubectl")
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", self.scratch.path().join("kubectl-cache"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// A new namespace `PREFIX-xxxxxxxx`, whose default service account exists.
    ///
    /// # Errors
    /// When the API server refuses, or the service account does not come within 30 s.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let name = format!("{prefix}-{}", credentials::random_hex(4)?);
        let client = self.client()?;
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.clone());
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("creating namespace {name}"))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        let description = format!("the default service account of {name}");
        wait::within(&description, Duration::from_secs(180), || async {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await?;
        Ok(name)
    }

    /// Directory of the components' logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.scratch.path().join("logs")
    }

    /// The API server's audit log, a JSON object per line.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        components::audit_log(self.scratch.path())
    }

    /// Ends the plane in order, the API server before etcd. Dropping it does the same at once.
    pub async fn stop(self) {
        if let Some(local) = self.local {
            local.stop().await;
        }
    }

    fn local(&self) -> Result<&Local> {
        self.local.as_ref().context(
            "this needs a plane of its own, and KUBECONFIG names a cluster that was there \
             before: unset KUBECONFIG",
        )
    }
}

/// A client configuration without retries and with a known user agent.
async fn read_config(kubeconfig: &Path) -> Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("reading {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    let agent = HeaderValue::from_static(audit::TEST_USER_AGENT);
    config.headers.push((USER_AGENT, agent));
    Ok(config)
}
