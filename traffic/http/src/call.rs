//! One bounded call: no redirects, no proxy of the environment, a limited duration and a limited answer.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use jiff::Timestamp;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde::Serialize;
use traffic::{AdapterError, one_line};

use crate::answer::{Answer, decode};
use crate::credentials::{Credentials, TlsFiles};
use crate::refusal::refusal;
use crate::sign::{SIGNATURE_HEADER, TIMESTAMP_HEADER, signature};
use crate::{Config, ConfigError};

/// Header with an ID that no other request has.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// Maximum length of an answer, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// How much of an answer is read that is no success, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The two calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Observe,
    Apply,
}

/// The endpoint. It has no `Debug`, because its clients contain a private key.
pub(crate) struct Endpoint {
    config: Config,
    observe: Url,
    apply: Url,
    /// The client, and the files that it was built from.
    client: Mutex<Option<(TlsFiles, Client)>>,
}

impl Endpoint {
    /// Checks the settings. Reads no file and makes no call.
    pub fn new(config: Config) -> Result<Endpoint, ConfigError> {
        let (observe, apply) = config.check()?;
        Ok(Endpoint {
            config,
            observe,
            apply,
            client: Mutex::new(None),
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes a call.
    pub async fn call<A: Answer>(
        &self,
        call: Call,
        body: &impl Serialize,
    ) -> Result<A, AdapterError> {
        let body = serde_json::to_vec(body).map_err(|error| {
            let text = format!("the request can't be written: {error}");
            AdapterError::Permanent(text)
        })?;
        let credentials = Credentials::read(&self.config).await?;
        let client = self.client(&credentials.tls)?;
        let (name, url) = match call {
            Call::Observe => ("observe", &self.observe),
            Call::Apply => ("apply", &self.apply),
        };
        let id = format!("{:032x}", rand::random::<u128>());
        let mut request = client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "operating")
            .header(REQUEST_ID_HEADER, &id);
        if let Some(value) = credentials.authorization() {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(key) = &credentials.hmac_key {
            let now = Timestamp::now().as_second();
            request = request
                .header(TIMESTAMP_HEADER, now)
                .header(SIGNATURE_HEADER, signature(key, now, &id, name, &body));
        }
        let answer = request.body(body).send().await;
        let answer = answer.map_err(|error| failed(error, self.config.timeout()))?;
        self.read(answer, &credentials).await
    }

    async fn read<A: Answer>(
        &self,
        mut answer: Response,
        credentials: &Credentials,
    ) -> Result<A, AdapterError> {
        let status = answer.status();
        if !status.is_success() {
            // The status is the reason; the text only explains it.
            let body = bytes(&mut answer, MAX_REFUSAL, true)
                .await
                .unwrap_or_default();
            let text = String::from_utf8_lossy(&body);
            let shown = |text: &str| credentials.shown(text);
            return Err(refusal(status, answer.headers(), &text, shown));
        }
        let body = bytes(&mut answer, MAX_ANSWER, false).await;
        let body = body.map_err(|reason| match reason {
            Unread::TooLong => AdapterError::Transient(
                "the answer is longer than 1 MiB, which is enough for about 4,500 members; split the Service"
                    .to_owned(),
            ),
            Unread::Failed(error) => failed(error, self.config.timeout()),
        })?;
        decode(&body, credentials)
    }

    /// The client for these files; a new client if they have changed.
    fn client(&self, files: &TlsFiles) -> Result<Client, AdapterError> {
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = kept.as_ref().filter(|(known, _)| known == files) {
            return Ok(client.clone());
        }
        let client = Client::builder()
            .tls_backend_preconfigured(files.client_config()?)
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(self.config.timeout())
            .build()
            .map_err(|error| AdapterError::Unavailable {
                text: format!("no client: {}", cause(&error)),
                wait: None,
            })?;
        *kept = Some((files.clone(), client.clone()));
        Ok(client)
    }
}

enum Unread {
    TooLong,
    Failed(reqwest::Error),
}

/// The body of an answer. A longer one is an error, or is cut.
async fn bytes(answer: &mut Response, limit: usize, cut: bool) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(Unread::Failed)? {
        let room = limit.saturating_sub(body.len());
        body.extend(chunk.iter().take(room));
        match (chunk.len() > room, cut) {
            (true, true) => break,
            (true, false) => return Err(Unread::TooLong),
            (false, _) => {}
        }
    }
    Ok(body)
}

/// A call without a complete answer. The URL is in no error: the owner of a Service need not know it.
fn failed(error: reqwest::Error, timeout: Duration) -> AdapterError {
    let error = error.without_url();
    if error.is_connect() {
        let text = format!("no connection to the endpoint: {}", cause(&error));
        return AdapterError::Unavailable { text, wait: None };
    }
    if error.is_timeout() {
        let text = format!("no complete answer within {} s", timeout.as_secs());
        return AdapterError::Transient(text);
    }
    AdapterError::Transient(format!("no complete answer: {}", cause(&error)))
}

/// The innermost cause of an error.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    one_line(&innermost.to_string())
}
