//! Runs the server under test as a child process, waits until it is ready, and reads its metrics.

mod metrics;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::{Api, Client, Config};
use rustix::process::Signal;

use crate::process::Process;
use crate::{ports, wait};

pub use metrics::Metrics;

/// The names of both webhook configurations. A cluster that has them is in use.
pub const CONFIGURATIONS: [&str; 2] = [
    "kusionstack-controller-manager-mutating",
    "kusionstack-controller-manager-validating",
];
/// The longest time from the start of the server until it enforces rules.
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time until a killed process has ended.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// How many of the last lines of the log an error shows.
const TAIL_LINES: usize = 20;

/// The path of the server's binary, for a test of the crate `operating`.
///
/// # Panics
/// Outside of such a test, because only for integration tests Cargo builds the binary and sets its path in the
/// environment.
#[must_use]
#[allow(clippy::expect_used)] // a test fails by a panic
pub fn binary() -> PathBuf {
    let binary = std::env::var_os("CARGO_BIN_EXE_operating");
    binary
        .expect("CARGO_BIN_EXE_operating: run the tests by `cargo test`")
        .into()
}

/// The addresses at which a server listens, and the URL by which the API server calls it.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// `--listen`.
    pub listen: String,
    /// `--webhook-url`.
    pub url: String,
    /// `--metrics-listen`.
    pub metrics: String,
}

impl Endpoints {
    /// Chooses free ports on loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub fn loopback() -> Result<Self> {
        let [webhook, metrics] = ports::free()?;
        Ok(Self {
            listen: format!("127.0.0.1:{webhook}"),
            url: format!("https://localhost:{webhook}"),
            metrics: format!("127.0.0.1:{metrics}"),
        })
    }

    /// The command line that installs and runs the server on an API server without it.
    #[must_use]
    pub fn arguments(&self, kubeconfig: &Path) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["serve".into(), "--install".into()];
        all.extend(["--kubeconfig".into(), kubeconfig.into()]);
        for (flag, value) in [
            ("--listen", &self.listen),
            ("--webhook-url", &self.url),
            ("--metrics-listen", &self.metrics),
        ] {
            all.extend([flag.into(), value.into()]);
        }
        all.push("--leader-elect".into());
        all
    }

    /// The metrics of the server that listens here.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.get("/metrics").await?))
    }

    async fn get(&self, path: &str) -> Result<String> {
        let mut config = Config::new(format!("http://{}", self.metrics).parse()?);
        config.connect_timeout = Some(Duration::from_secs(2));
        config.read_timeout = Some(Duration::from_secs(10));
        let request = http::Request::get(path).body(Vec::new())?;
        let text = Client::try_from(config)?.request_text(request).await?;
        Ok(text)
    }

    /// Whether the server says that it is ready.
    pub async fn is_ready(&self) -> bool {
        self.get("/readyz").await.is_ok()
    }

    /// Whether the server says that it is ready and both webhook configurations are in place.
    ///
    /// # Errors
    /// If the server is not ready, with its reason, or if the server or the API server does not answer.
    pub async fn ready(&self, client: &Client) -> Result<bool> {
        self.get("/readyz").await.context("/readyz")?;
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let [first, second] = CONFIGURATIONS;
        let mutating = mutating.get_opt(first).await?;
        let validating = validating.get_opt(second).await?;
        let mutating = mutating.and_then(|m| m.webhooks).unwrap_or_default();
        let validating = validating.and_then(|v| v.webhooks).unwrap_or_default();
        let mut trusted = mutating.iter().map(|w| &w.client_config);
        let mut trusted_too = validating.iter().map(|w| &w.client_config);
        Ok(!mutating.is_empty()
            && !validating.is_empty()
            && trusted.all(|c| c.ca_bundle.is_some())
            && trusted_too.all(|c| c.ca_bundle.is_some()))
    }
}

/// A running server. It ends when this value is dropped, and when this process ends for any reason.
#[derive(Debug)]
pub struct Server {
    /// The addresses of the server.
    pub endpoints: Endpoints,
    process: Process,
    start: Start,
}

/// The parameters for a start of the server.
#[derive(Debug)]
struct Start {
    controlplane: PathBuf,
    arguments: Vec<OsString>,
    logs: PathBuf,
}

impl Start {
    fn process(&self) -> Result<Process> {
        Process::start("operating", &self.controlplane, &self.arguments, &self.logs)
    }
}

/// Whether the command `serve` of a binary has this flag.
fn has_flag(binary: &Path, flag: &str) -> Result<bool> {
    let mut help = Command::new(binary);
    let help = help.args(["serve", "--help"]).output();
    let help = help.with_context(|| format!("running {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&help.stdout).contains(flag))
}

impl Server {
    /// Starts `binary` under the supervision of `controlplane`, with its output in
    /// `LOGS/operating.log`. `flags` are further flags of `serve`.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(
        binary: &Path,
        controlplane: &Path,
        kubeconfig: &Path,
        logs: &Path,
        endpoints: Endpoints,
        flags: &[OsString],
    ) -> Result<Self> {
        let mut args: Vec<OsString> = vec!["supervise".into(), binary.into()];
        args.extend(endpoints.arguments(kubeconfig));
        args.extend_from_slice(flags);
        // The endpoints of webhook rules run on loopback, too. Older builds without the flag refuse no address.
        let allow = "--endpoint-allow-cidrs";
        if has_flag(binary, allow)? {
            args.extend([allow.into(), "127.0.0.1,::1".into()]);
        }
        let start = Start {
            controlplane: controlplane.to_owned(),
            arguments: args,
            logs: logs.to_owned(),
        };
        let process = start.process()?;
        Ok(Self {
            endpoints,
            process,
            start,
        })
    }

    /// Kills the server, and waits until it has ended.
    ///
    /// # Errors
    /// If the server could not be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        wait::within("the server to end", END_TIMEOUT, || {
            let runs = self.runs();
            async move { Ok(!runs) }
        })
        .await
    }

    /// Starts the server again with the same command line, after [`Server::kill`].
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = self.start.process()?;
        Ok(())
    }

    /// Waits until the server enforces rules.
    ///
    /// # Errors
    /// If the server ends or is not ready in time. The error shows the end of its log.
    pub async fn ready(&mut self, client: &Client) -> Result<()> {
        let endpoints = self.endpoints.clone();
        let waiting = wait::within("the server to be ready", READY_TIMEOUT, || {
            endpoints.ready(client)
        });
        tokio::pin!(waiting);
        let mut poll = tokio::time::interval(Duration::from_millis(200));
        let result = loop {
            tokio::select! {
                result = &mut waiting => break result,
                _ = poll.tick() => {
                    if let Some(status) = self.process.exit_status() {
                        let tail = self.process.log_tail(TAIL_LINES);
                        bail!("the server ended with {status}; the end of its log:\n{tail}");
                    }
                }
            }
        };
        result.with_context(|| {
            let tail = self.process.log_tail(TAIL_LINES);
            format!("the end of the server's log:\n{tail}\n")
        })
    }

    /// Whether the server still runs.
    pub fn runs(&mut self) -> bool {
        self.process.exit_status().is_none()
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.process.log_tail(TAIL_LINES)
    }

    /// The process ID of the server, which is the only child of its supervisor.
    ///
    /// # Errors
    /// If the server does not run, or the system has no `/proc`.
    pub fn pid(&self) -> Result<u32> {
        self.process.child()
    }

    /// Asks the server to end, and kills it after one second.
    pub async fn stop(self) {
        self.process.stop(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn command_line_equals_documented_one() {
        let endpoints = Endpoints {
            listen: "127.0.0.1:9443".to_owned(),
            url: "https://localhost:9443".to_owned(),
            metrics: "127.0.0.1:8080".to_owned(),
        };
        let all: Vec<_> = endpoints
            .arguments(Path::new("/F"))
            .into_iter()
            .map(|arg| arg.into_string().unwrap())
            .collect();
        assert_eq!(
            all.join(" "),
            "serve --install --kubeconfig /F --listen 127.0.0.1:9443 --webhook-url \
             https://localhost:9443 --metrics-listen 127.0.0.1:8080 --leader-elect"
        );
    }
}
