//! Caddy's admin API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::StatusCode;
use http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use reqwest::{Client, Response, Url};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde_json::Value;

/// Longest duration of a call to Caddy.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often a read is tried.
const MAX_TRIES: usize = 3;

/// Pause before a read is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// Caddy's admin API.
#[derive(Clone, Debug)]
pub(crate) struct Caddy {
    client: Client,
    config: Url,
    members: Url,
    upstreams: Url,
}

/// What can be read and replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// Caddy's configuration. Caddy restarts its servers when it is replaced.
    Config,
    /// The members of all groups, in the module `operating_members`.
    Members,
}

/// Why a document is not replaced.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Somebody else has changed it meanwhile.
    Outdated,
    /// Caddy refuses it, and keeps the former one.
    Invalid(String),
    /// It may be replaced all the same.
    Lost(anyhow::Error),
}

#[derive(Deserialize)]
struct Upstream {
    address: String,
    num_requests: u64,
}

impl Caddy {
    pub fn new(admin: &str) -> Result<Caddy> {
        let admin = Url::parse(admin).context("`--admin` is no URL")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // The admin API has no TLS on loopback, but reqwest wants a TLS configuration in any case.
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .no_proxy()
            .timeout(TIMEOUT)
            // Caddy closes the connections of its admin API when its configuration changes.
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Caddy {
            client,
            config: admin.join("/config/")?,
            members: admin.join("/operating/members")?,
            upstreams: admin.join("/reverse_proxy/upstreams")?,
        })
    }

    /// Reads from Caddy. Tries again, because Caddy drops new connections of its admin API for a moment when its
    /// configuration changes.
    async fn get(&self, url: &Url) -> Result<Response> {
        let mut tries = 1;
        loop {
            match self.client.get(url.clone()).send().await {
                Err(error) if tries < MAX_TRIES && !error.is_timeout() => {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(no_answer(error)),
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                Ok(answer) if answer.status() == StatusCode::NOT_FOUND && *url == self.members => {
                    bail!(
                        "Caddy answered 404 to {}: it lacks the module `operating_members`; build Caddy with it, or start the bridge without `--members-module`",
                        url.path()
                    )
                }
                Ok(answer) => bail!("Caddy answered {} to {}", answer.status(), url.path()),
            }
        }
    }

    fn url(&self, document: Document) -> &Url {
        match document {
            Document::Config => &self.config,
            Document::Members => &self.members,
        }
    }

    /// A document, and its version.
    pub async fn read(&self, document: Document) -> Result<(Value, String)> {
        let answer = self.get(self.url(document)).await?;
        let version = answer
            .headers()
            .get(ETAG)
            .context("Caddy's answer has no Etag")?;
        let version = version.to_str()?.to_owned();
        let body = answer.bytes().await.map_err(no_answer)?;
        Ok((serde_json::from_slice(&body)?, version))
    }

    /// Replaces a document if it still has this version. Caddy answers when the new one is in effect.
    pub async fn replace(
        &self,
        document: Document,
        content: &Value,
        version: &str,
    ) -> Result<(), Refused> {
        let body = serde_json::to_vec(content).map_err(|error| Refused::Lost(error.into()))?;
        let request = self.client.post(self.url(document).clone()).body(body);
        let request = request.header(CONTENT_TYPE, "application/json");
        let answer = request.header(IF_MATCH, version).send().await;
        let answer = answer.map_err(|error| Refused::Lost(no_answer(error)))?;
        match answer.status() {
            StatusCode::OK => Ok(()),
            StatusCode::PRECONDITION_FAILED => Err(Refused::Outdated),
            status if status.is_client_error() => {
                Err(Refused::Invalid(answer.text().await.unwrap_or_default()))
            }
            status => Err(Refused::Lost(anyhow::anyhow!("Caddy answered {status}"))),
        }
    }

    /// Number of requests at each address. Caddy may list an address twice, in two of its counters.
    pub async fn requests(&self) -> Result<BTreeMap<String, u64>> {
        let answer = self.get(&self.upstreams).await?;
        let body = answer.bytes().await.map_err(no_answer)?;
        let upstreams: Vec<Upstream> = serde_json::from_slice(&body)?;
        let mut counts = BTreeMap::new();
        for upstream in upstreams {
            let count: &mut u64 = counts.entry(upstream.address).or_default();
            *count = upstream.num_requests.max(*count);
        }
        Ok(counts)
    }
}

/// The owner of the Service reads the error, and need not know the address of the admin API.
fn no_answer(error: reqwest::Error) -> anyhow::Error {
    anyhow::Error::new(error.without_url()).context("no answer of Caddy")
}
