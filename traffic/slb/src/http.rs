//! Sends requests. It follows no redirect, trusts the roots of the system, and bounds the time and size of answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use traffic::AdapterError;

use crate::failure::{Failure, cut, cut_and_hide};
use crate::secret::Credentials;
use crate::wire::ErrorBody;

/// Largest answer in bytes.
const LARGEST: usize = 8 * 1024 * 1024;
/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// The HTTP client.
#[derive(Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
}

/// A request; the method is POST.
pub(crate) struct Post<'a> {
    pub action: &'static str,
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub form: Option<String>,
    /// Hidden in what the answer quotes.
    pub credentials: Option<&'a Credentials>,
}

impl Http {
    /// A client whose requests end after this time, and which trusts the authorities in this file in addition to those
    /// of the system.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`] if the TLS configuration can't be built.
    pub(crate) fn new(timeout: Duration, ca_file: Option<&Path>) -> Result<Http, AdapterError> {
        let failed = |error: &dyn std::error::Error| {
            AdapterError::Permanent(format!("can't build the client of the API: {error}"))
        };
        let mut roots = RootCertStore::empty();
        let (_, _) =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(file) = ca_file {
            add_authorities(&mut roots, file)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            // A proxy from the environment would see tokens of plain requests.
            .no_proxy()
            // The client must not repeat a call by itself, since the adapter counts calls.
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT)
            .timeout(timeout)
            .user_agent(concat!("operating/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(&error))?;
        Ok(Http { client })
    }

    /// Sends a request, and returns the body of a good answer.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn send(&self, post: Post<'_>) -> Result<Vec<u8>, Failure> {
        let action = post.action;
        let mut request = self
            .client
            .post(post.url)
            .header("accept", "application/json");
        for (name, value) in post.headers {
            request = request.header(name, value);
        }
        if let Some(form) = post.form {
            request = request
                .header("content-type", "application/x-www-form-urlencoded")
                .body(form);
        }
        let mut answer = request
            .send()
            .await
            .map_err(|error| unsent(action, error))?;
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get("retry-after")
            .and_then(|value| value.to_str().ok())
            .and_then(|seconds| seconds.parse().ok())
            .map(|seconds: u64| Duration::from_secs(seconds.min(300)));
        let mut body = Vec::new();
        loop {
            let chunk = answer.chunk().await.map_err(|error| lost(action, error))?;
            let Some(chunk) = chunk else { break };
            if body.len() + chunk.len() > LARGEST {
                let reason = format!("the answer is larger than {LARGEST} bytes");
                return Err(Failure::Lost { action, reason });
            }
            body.extend_from_slice(&chunk);
        }
        if status == 200 {
            return Ok(body);
        }
        let error: ErrorBody = serde_json::from_slice(&body).unwrap_or_default();
        let message = match error.code.as_str() {
            // This message quotes the headers of the request.
            "SignatureDoesNotMatch" => "the secret does not belong to the key".to_owned(),
            "" => "the answer has no code; is the endpoint right?".to_owned(),
            _ => error.message,
        };
        let shown = |text: &str| match post.credentials {
            Some(credentials) => cut_and_hide(text, |text| credentials.hide_in(text)),
            None => cut(text),
        };
        Err(Failure::Refused {
            action,
            status,
            code: shown(&error.code),
            message: shown(&message),
            retry_after,
        })
    }
}

fn add_authorities(roots: &mut RootCertStore, file: &Path) -> Result<(), AdapterError> {
    let failed = |reason: &dyn std::fmt::Display| {
        let file = file.display();
        AdapterError::Permanent(format!(
            "caFile must be a PEM file with certificates; {file}: {reason}"
        ))
    };
    let mut count = 0;
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| failed(&error))? {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
        count += 1;
    }
    match count {
        0 => Err(failed(&"it has no certificate")),
        _ => Ok(()),
    }
}

fn unsent(action: &'static str, error: reqwest::Error) -> Failure {
    match error.is_connect() || error.is_builder() {
        true => {
            let text = format!("{action}: can't reach the API: {}", text(error));
            Failure::NotSent(AdapterError::Transient(text))
        }
        false => lost(action, error),
    }
}

fn lost(action: &'static str, error: reqwest::Error) -> Failure {
    let reason = match error.is_timeout() {
        true => "the time is up".to_owned(),
        false => text(error),
    };
    Failure::Lost { action, reason }
}

/// The text of an error and its causes, without the URL, whose query has the parameters.
fn text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    cut(&text)
}
