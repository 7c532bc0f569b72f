//! The processes of a plane.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use rustix::process::Signal;
use tokio::sync::Mutex;

use super::components::{self, Ports};
use super::credentials::{Credentials, write_kubeconfig};
use super::{Options, nodes, read_config};
use crate::process::Process;
use crate::{ports, wait};

/// Timeout for one component to become ready; long, because a loaded machine runs many planes.
const READY: Duration = Duration::from_secs(300);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Number of lines of a component's log that an error shows.
const TAIL: usize = 15;

/// The administrator's kubeconfig in a plane's directory.
pub fn admin_kubeconfig(dir: &Path) -> PathBuf {
    dir.join("kubeconfig")
}

/// The processes, and the arguments for a restart of the API server.
#[derive(Debug)]
pub struct Local {
    controlplane: PathBuf,
    apiserver_flags: Vec<String>,
    etcd_flags: Vec<String>,
    /// Controller-manager and scheduler: names and flags.
    controllers: [(&'static str, Vec<String>); 2],
    /// All arguments of kwok.
    kwok: Vec<String>,
    running: Mutex<Running>,
}

/// Dropped in the order of the fields, because the API server ends late if etcd ends first.
#[derive(Debug)]
struct Running {
    clients: Vec<Process>,
    /// Kills a frozen API server when this process ends, because it cannot end by itself.
    guard: Option<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
}

impl Local {
    pub async fn start(
        dir: &Path,
        controlplane: &Path,
        kwok: &Path,
        options: &Options,
    ) -> Result<Self> {
        link_kubectl(dir, controlplane)?;
        let [apiserver, etcd, etcd_peer] = ports::free()?;
        let ports = Ports {
            apiserver,
            etcd,
            etcd_peer,
        };
        let credentials = Credentials::create(dir)?;
        let component = |name: &str, flags: Vec<String>| {
            let args = std::iter::once(name.to_owned()).chain(flags);
            Process::start(name, controlplane, args, &dir.join("logs"))
        };
        let apiserver_flags = components::apiserver(dir, ports, &credentials, options)?;
        let etcd_flags = components::etcd(dir, ports);
        let mut running = Running {
            clients: Vec::new(),
            guard: None,
            etcd: Some(component("etcd", etcd_flags.clone())?),
            apiserver: Some(component("kube-apiserver", apiserver_flags.clone())?),
        };
        let url = format!("https://127.0.0.1:{apiserver}");
        running.serving_certificate(dir).await?;
        let mut kubeconfigs = Vec::new();
        for user in &credentials.users {
            let path = match user.key {
                "admin" => admin_kubeconfig(dir),
                other => dir.join(format!("{other}.kubeconfig")),
            };
            let ca = components::serving_certificate(dir);
            write_kubeconfig(&path, &url, &ca, user.name, &user.token)?;
            kubeconfigs.push((user.key, path));
        }
        let of = |key: &str| -> Result<&Path> {
            let found = kubeconfigs.iter().find(|(user, _)| *user == key);
            Ok(&found.with_context(|| format!("no kubeconfig for {key}"))?.1)
        };
        running.apiserver_ready(dir).await?;

        let client = admin_client(dir).await?;
        nodes::authorize_kwok(&client).await?;
        nodes::restrict_kwok(&client).await?;
        if options.shared_controller_account {
            nodes::authorize_controllers(&client).await?;
        }
        let manager = of("kube-controller-manager")?;
        let controllers = [
            (
                "kube-controller-manager",
                components::controller_manager(dir, manager, &credentials, options),
            ),
            (
                "kube-scheduler",
                components::scheduler(dir, of("kube-scheduler")?)?,
            ),
        ];
        let [manager, scheduler] = &controllers;
        let kwok = components::kwok(kwok, of("kwok")?)?;
        running.clients = vec![
            component(manager.0, manager.1.clone())?,
            component(scheduler.0, scheduler.1.clone())?,
            Process::start("kwok", controlplane, &kwok, &dir.join("logs"))?,
        ];
        nodes::create(&client, options.nodes).await?;
        running.workers_ready(&client, options.nodes).await?;
        Ok(Self {
            controlplane: controlplane.to_owned(),
            apiserver_flags,
            etcd_flags,
            controllers,
            kwok,
            running: Mutex::new(running),
        })
    }

    pub async fn stop(self) {
        let running = self.running.into_inner();
        let stopping = running.clients.into_iter().map(|p| p.stop(GRACE));
        futures::future::join_all(stopping).await;
        if let Some(apiserver) = running.apiserver {
            apiserver.stop(GRACE).await;
        }
        if let Some(etcd) = running.etcd {
            etcd.stop(GRACE).await;
        }
    }

    /// Copies the current data of etcd to `backup`.
    pub async fn back_up(&self, dir: &Path, backup: &Path) -> Result<()> {
        let running = self.running.lock().await;
        let etcd = running.etcd.as_ref().context("etcd is stopped")?;
        etcd.freeze().await?;
        let copied = copy(&components::data(dir), backup);
        etcd.signal(Signal::CONT)?;
        copied
    }

    /// Replaces the data of etcd with a backup. All processes of the plane restart, as after a restore by the
    /// manual; other clients go on.
    pub async fn restore(&self, dir: &Path, backup: &Path) -> Result<()> {
        self.stop_apiserver().await;
        let mut running = self.running.lock().await;
        let mut all = self.controllers.to_vec();
        all.push(("kwok", self.kwok.clone()));
        let (own, others) = std::mem::take(&mut running.clients)
            .into_iter()
            .partition::<Vec<_>, _>(|c| all.iter().any(|(name, _)| *name == c.name()));
        running.clients = others;
        futures::future::join_all(own.into_iter().map(|p| p.stop(GRACE))).await;
        if let Some(etcd) = running.etcd.take() {
            etcd.stop(GRACE).await;
        }
        let data = components::data(dir);
        std::fs::remove_dir_all(&data)?;
        copy(backup, &data)?;
        let logs = dir.join("logs");
        let args = std::iter::once("etcd").chain(self.etcd_flags.iter().map(String::as_str));
        running.etcd = Some(Process::start("etcd", &self.controlplane, args, &logs)?);
        drop(running);
        self.start_apiserver(dir).await?;
        let mut running = self.running.lock().await;
        for (name, flags) in all {
            let of_binary = (name != "kwok").then(|| name.to_owned());
            let args = of_binary.into_iter().chain(flags);
            let client = Process::start(name, &self.controlplane, args, &logs)?;
            running.clients.push(client);
        }
        Ok(())
    }

    pub async fn stop_apiserver(&self) {
        let mut running = self.running.lock().await;
        if let Some(apiserver) = running.apiserver.take() {
            apiserver.stop(GRACE).await;
        }
        running.guard = None;
    }

    pub async fn start_apiserver(&self, dir: &Path) -> Result<()> {
        let mut running = self.running.lock().await;
        if running.apiserver.is_none() {
            let name = "kube-apiserver";
            let args = std::iter::once(name).chain(self.apiserver_flags.iter().map(String::as_str));
            let logs = dir.join("logs");
            running.apiserver = Some(Process::start(name, &self.controlplane, args, &logs)?);
        }
        running.apiserver_ready(dir).await
    }

    /// Starts a controller-manager or scheduler that has ended again, as the kubelet does with static Pods. The
    /// scheduler ends itself when its cache is corrupted, which a restart of the API server in the middle of its
    /// bindings can cause.
    pub async fn revive_controllers(&self, dir: &Path) -> Result<()> {
        let mut running = self.running.lock().await;
        for client in &mut running.clients {
            let mut all = self.controllers.iter();
            let Some((name, flags)) = all.find(|(name, _)| *name == client.name()) else {
                continue;
            };
            if let Some(status) = client.exit_status() {
                eprintln!("{name} ended with {status}: starting it again");
                let args = std::iter::once(*name).chain(flags.iter().map(String::as_str));
                *client = Process::start(name, &self.controlplane, args, &dir.join("logs"))?;
            }
        }
        Ok(())
    }

    pub async fn pause_apiserver(&self, dir: &Path) -> Result<()> {
        let mut running = self.running.lock().await;
        if running.guard.is_none() {
            let group = running.apiserver()?.id();
            running.guard = Some(guard(group, dir)?);
        }
        running.apiserver()?.freeze().await
    }

    pub async fn resume_apiserver(&self) -> Result<()> {
        let mut running = self.running.lock().await;
        running.apiserver()?.signal(Signal::CONT)?;
        running.guard = None;
        Ok(())
    }

    pub async fn process_ids(&self) -> Vec<u32> {
        let running = self.running.lock().await;
        running.list_processes().map(Process::id).collect()
    }

    /// Adds a process that ends with the plane.
    pub async fn adopt(&self, process: Process) {
        self.running.lock().await.clients.push(process);
    }
}

impl Running {
    fn apiserver(&self) -> Result<&Process> {
        let apiserver = self.apiserver.as_ref();
        apiserver.context("the API server is stopped: start it first")
    }

    fn list_processes(&self) -> impl Iterator<Item = &Process> {
        let clients = self.clients.iter();
        clients.chain(&self.apiserver).chain(&self.etcd)
    }

    /// Waits until `probe` succeeds or a process ends. The error has the end of that process's log.
    async fn ready<F, T>(&mut self, description: &str, culprit: &str, mut probe: F) -> Result<()>
    where
        F: FnMut() -> T,
        T: Future<Output = Result<bool>>,
    {
        let waiting = wait::within(description, READY, &mut probe);
        tokio::pin!(waiting);
        let mut interval = tokio::time::interval(Duration::from_millis(200));
        let result = loop {
            tokio::select! {
                result = &mut waiting => break result,
                _ = interval.tick() => {
                    let clients = self.clients.iter_mut();
                    let all = clients.chain(&mut self.apiserver).chain(&mut self.etcd);
                    for process in all {
                        if let Some(status) = process.exit_status() {
                            anyhow::bail!(
                                "{} ended with {status}; the end of its log:\n{}",
                                process.name(),
                                process.log_tail(TAIL)
                            );
                        }
                    }
                }
            }
        };
        result.with_context(|| {
            let process = self.list_processes().find(|p| p.name() == culprit);
            let tail = process.map(|p| p.log_tail(TAIL)).unwrap_or_default();
            format!("the end of the log of {culprit}:\n{tail}\n")
        })
    }

    async fn serving_certificate(&mut self, dir: &Path) -> Result<()> {
        // The key is written after the certificate, so if it exists, both are complete.
        let key = components::serving_certificate(dir).with_extension("key");
        let description = "the API server's certificate";
        self.ready(description, "kube-apiserver", || async { Ok(key.exists()) })
            .await
    }

    async fn apiserver_ready(&mut self, dir: &Path) -> Result<()> {
        let client = admin_client(dir).await?;
        self.ready("the API server", "kube-apiserver", || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(client.request_text(request).await? == "ok")
        })
        .await
    }

    async fn workers_ready(&mut self, client: &Client, expected: usize) -> Result<()> {
        self.ready("the nodes to be Ready", "kwok", || async {
            Ok(nodes::ready(client).await? >= expected)
        })
        .await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let description = "the default service account";
        self.ready(description, "kube-controller-manager", || async {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await
    }
}

/// Copies a directory with its contents.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}

async fn admin_client(dir: &Path) -> Result<Client> {
    Ok(Client::try_from(
        read_config(&admin_kubeconfig(dir)).await?,
    )?)
}

/// A shell that kills a process group when its standard input ends, because a frozen process does not notice
/// the end of its parent. The shell itself ends by being killed.
fn guard(group: u32, dir: &Path) -> Result<Process> {
    let script = r#"cat; kill -s KILL -- "-$0""#;
    let args = ["-c".to_owned(), script.to_owned(), group.to_string()];
    Process::start("guard", Path::new("/bin/sh"), args, &dir.join("logs"))
}

/// `bin/kubectl` in the directory of the plane, for the PATH of a user.
fn link_kubectl(dir: &Path, controlplane: &Path) -> Result<()> {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin)?;
    let link = bin.join("kubectl");
    if !link.exists() {
        std::os::unix::fs::symlink(controlplane, &link).context("linking kubectl")?;
    }
    Ok(())
}
