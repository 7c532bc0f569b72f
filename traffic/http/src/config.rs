//! The settings of the adapter, and their bounds.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use traffic::{Control, Settings};

/// Time that the framework waits longer than a call may take, so that the error of the call reaches the user.
const GRACE: Duration = Duration::from_secs(2);

/// The settings of an adapter, as the configuration of the server has them. Credentials are paths of files; the files
/// are read again before each call.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The endpoint: an absolute https URL. `/v1/observe` and `/v1/apply` are appended. An http URL is allowed if its
    /// host is a loopback address or `localhost`.
    pub url: String,
    /// Allows an http URL to any host. Then everybody on the way can read the calls and the token, and change the
    /// answers.
    #[serde(default)]
    pub allow_plain_http: bool,
    /// PEM file with the certificates that sign the certificate of the endpoint. Without it, the root certificates of
    /// the system do.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the certificate that the adapter shows, and its chain. Needs `clientKeyFile`.
    pub client_cert_file: Option<PathBuf>,
    /// PEM file with the private key of `clientCertFile`.
    pub client_key_file: Option<PathBuf>,
    /// File with a token that is sent as `Authorization: Bearer …`.
    pub token_file: Option<PathBuf>,
    /// File with the key of the [signature](crate::signature) of each request.
    pub hmac_key_file: Option<PathBuf>,
    /// Who changes members, and whether a member can be drained.
    #[serde(default)]
    pub control: ControlSetting,
    /// How long a member that gets no new requests stays protected, in seconds; at most 3600.
    #[serde(default = "drain_seconds")]
    pub drain_seconds: u64,
    /// Most members in each list of an `apply` call; 1 to 1000.
    #[serde(default = "batch")]
    pub batch: usize,
    /// How often members are read although nothing is open, in seconds. 0: never.
    #[serde(default = "resync_seconds")]
    pub resync_seconds: u64,
    /// Longest duration of a call, in seconds; 1 to 300.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,
    /// Most calls in each second; 1 to 1000.
    #[serde(default = "calls_per_second")]
    pub calls_per_second: u32,
    /// Weight of each member; at least 1.
    #[serde(default = "weight")]
    pub weight: u32,
    /// Name of the only port of each Service that gets members. Without it, all ports do.
    pub port_name: Option<String>,
    /// Protocols of the ports that get members: `TCP`, `UDP`, `SCTP`.
    #[serde(default = "protocols")]
    pub protocols: Vec<String>,
    /// Annotations of the Service that are sent besides those that begin with `resource-consist.kusionstack.io/`.
    #[serde(default)]
    pub forward_annotations: Vec<String>,
    /// Labels of the Service and its Pods that are sent besides those that begin with
    /// `resource-consist.kusionstack.io/`.
    #[serde(default)]
    pub forward_labels: Vec<String>,
}

/// Who changes members; see [`Control`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ControlSetting {
    /// The endpoint can stop new requests to a member that stays registered.
    #[default]
    Drains,
    /// The endpoint registers and deregisters; the load balancer drains a deregistered member by itself.
    Deregisters,
    /// Somebody else changes members. `apply` is never called.
    Observes,
}

/// Leaves out the fields: until the URL is checked, it may contain a password.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").finish_non_exhaustive()
    }
}

/// A field of a [`Config`] that can't be used: which, why, and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong, and what is expected.
    pub problem: String,
}

fn drain_seconds() -> u64 {
    15
}
fn batch() -> usize {
    20
}
fn resync_seconds() -> u64 {
    300
}
fn timeout_seconds() -> u64 {
    10
}
fn calls_per_second() -> u32 {
    20
}
fn weight() -> u32 {
    100
}
fn protocols() -> Vec<String> {
    vec!["TCP".to_owned()]
}

fn wrong<T>(field: &'static str, problem: impl Into<String>) -> Result<T, ConfigError> {
    let problem = problem.into();
    Err(ConfigError { field, problem })
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    wrong(field, format!("is {value}; set it to {least} to {most}"))
}

impl Config {
    /// Checks all fields, and returns the URLs of `observe` and `apply`.
    pub(crate) fn check(&self) -> Result<(Url, Url), ConfigError> {
        within("batch", self.batch as u64, 1, 1000)?;
        within("drainSeconds", self.drain_seconds, 0, 3600)?;
        within("resyncSeconds", self.resync_seconds, 0, 86_400)?;
        within("timeoutSeconds", self.timeout_seconds, 1, 300)?;
        within("callsPerSecond", self.calls_per_second.into(), 1, 1000)?;
        // Load balancers send no request to a member with weight 0.
        within("weight", self.weight.into(), 1, u32::MAX.into())?;
        if self.protocols.is_empty() {
            return wrong("protocols", "is empty; list TCP, UDP or SCTP");
        }
        for protocol in &self.protocols {
            if !["TCP", "UDP", "SCTP"].contains(&protocol.as_str()) {
                let problem = format!("has {protocol:?}; list TCP, UDP or SCTP");
                return wrong("protocols", problem);
            }
        }
        if self.port_name.as_deref() == Some("") {
            return wrong("portName", "is empty; name a port, or leave the field out");
        }
        let url = self.check_url()?;
        self.check_files(&url)?;
        let call = |name: &str| {
            let mut url = url.clone();
            let path = format!("{}/v1/{name}", url.path().trim_end_matches('/'));
            url.set_path(&path);
            url
        };
        Ok((call("observe"), call("apply")))
    }

    fn check_url(&self) -> Result<Url, ConfigError> {
        // The URL itself is in no error: it may contain a password.
        let Ok(url) = Url::parse(&self.url) else {
            return wrong("url", "can't be parsed; write an absolute https URL");
        };
        if !url.username().is_empty() || url.password().is_some() {
            return wrong(
                "url",
                "has user info; put a token into the file `tokenFile`",
            );
        }
        if url.query().is_some() || url.fragment().is_some() {
            return wrong("url", "has a query or a fragment; write a URL without them");
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return wrong("url", "has no host; write an absolute https URL");
        };
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let address: Option<std::net::IpAddr> = address.parse().ok();
        let is_local = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        match url.scheme() {
            "https" => Ok(url),
            "http" if is_local || self.allow_plain_http => Ok(url),
            "http" => wrong(
                "url",
                "is an http URL to another host; write an https URL, or set `allowPlainHttp`",
            ),
            _ => wrong("url", "has another scheme; write an absolute https URL"),
        }
    }

    fn check_files(&self, url: &Url) -> Result<(), ConfigError> {
        match (&self.client_cert_file, &self.client_key_file) {
            (Some(_), None) => return wrong("clientKeyFile", "is missing beside `clientCertFile`"),
            (None, Some(_)) => return wrong("clientCertFile", "is missing beside `clientKeyFile`"),
            _ => {}
        }
        if url.scheme() == "http" && self.ca_file.is_some() {
            return wrong("caFile", "has no effect on an http URL; write an https URL");
        }
        if url.scheme() == "http" && self.client_cert_file.is_some() {
            return wrong(
                "clientCertFile",
                "has no effect on an http URL; write an https URL",
            );
        }
        Ok(())
    }

    /// How the framework should drive the adapter.
    pub(crate) fn settings(&self) -> Settings {
        let resync = Duration::from_secs(self.resync_seconds);
        Settings {
            control: match self.control {
                ControlSetting::Drains => Control::Drains,
                ControlSetting::Deregisters => Control::Deregisters,
                ControlSetting::Observes => Control::Observes,
            },
            batch: self.batch,
            drain_time: Duration::from_secs(self.drain_seconds),
            resync: (!resync.is_zero()).then_some(resync),
            timeout: self.timeout() + GRACE,
            calls_per_second: self.calls_per_second,
            ..Settings::default()
        }
    }

    /// Longest duration of a call.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
