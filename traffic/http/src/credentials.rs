//! Files with certificates, keys and tokens. They may change at any time, so they are read before each call.
//!
//! Errors name the field of the configuration. They contain neither the content of a file nor its path, because the
//! owner of a Service can read them.

use std::path::Path;
use std::sync::Arc;

use http::HeaderValue;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use traffic::{AdapterError, foreign_text};

use crate::Config;

/// Maximum size of a file.
const MAX_BYTES: u64 = 1024 * 1024;

/// Secrets shorter than this are not removed from texts: they would occur in words and numbers.
const SHORTEST_SECRET: usize = 8;

/// Longest text of the endpoint in an error, in characters.
const MAX_TEXT: usize = 300;

/// Shortest key of a signature, in bytes. A shorter key can be guessed from a signature.
const SHORTEST_KEY: usize = 16;

/// What a TLS client is built from. It has no `Debug`, because it contains a private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// The content of all files. It has no `Debug`, because it contains secrets.
pub(crate) struct Credentials {
    pub tls: TlsFiles,
    token: Option<String>,
    pub hmac_key: Option<Vec<u8>>,
}

impl Credentials {
    /// Reads all files.
    ///
    /// # Errors
    /// `Unavailable`: a file may be mounted or replaced later.
    pub async fn read(config: &Config) -> Result<Credentials, AdapterError> {
        let certificate = read("clientCertFile", config.client_cert_file.as_deref()).await?;
        let key = read("clientKeyFile", config.client_key_file.as_deref()).await?;
        let token = match read("tokenFile", config.token_file.as_deref()).await? {
            Some(bytes) => Some(token(&bytes)?),
            None => None,
        };
        let hmac_key = read("hmacKeyFile", config.hmac_key_file.as_deref()).await?;
        let hmac_key = hmac_key.map(|key| key.trim_ascii().to_vec());
        if hmac_key
            .as_ref()
            .is_some_and(|key| key.len() < SHORTEST_KEY)
        {
            let text = format!("has less than {SHORTEST_KEY} bytes; write a random key into it");
            return Err(problem("hmacKeyFile", &text));
        }
        Ok(Credentials {
            tls: TlsFiles {
                ca: read("caFile", config.ca_file.as_deref()).await?,
                client: certificate.zip(key),
            },
            token,
            hmac_key,
        })
    }

    /// The value of the header `Authorization`.
    pub fn authorization(&self) -> Option<HeaderValue> {
        let token = self.token.as_ref()?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// A text that the endpoint has sent, as an error shows it.
    pub fn shown(&self, text: &str) -> String {
        foreign_text(text, MAX_TEXT, |text| self.redact(text))
    }

    /// Removes the secrets from a text that the endpoint has sent: it may repeat what it got.
    pub fn redact(&self, text: &str) -> String {
        let key = self.hmac_key.as_ref();
        let key = key.and_then(|key| std::str::from_utf8(key).ok());
        let secrets = [self.token.as_deref(), key].into_iter().flatten();
        let long = secrets.filter(|secret| secret.len() >= SHORTEST_SECRET);
        long.fold(text.to_owned(), |text, secret| {
            text.replace(secret, "[secret]")
        })
    }
}

fn problem(field: &str, what: &str) -> AdapterError {
    AdapterError::Unavailable {
        text: format!("the file of `{field}` {what}"),
        wait: None,
    }
}

async fn read(field: &str, path: Option<&Path>) -> Result<Option<Vec<u8>>, AdapterError> {
    let Some(path) = path else { return Ok(None) };
    let unreadable = |error: std::io::Error| {
        let text = format!(
            "can't be read ({}); mount it, and permit to read it",
            error.kind()
        );
        problem(field, &text)
    };
    let size = tokio::fs::metadata(path).await.map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(problem(field, "is larger than 1 MiB; name another file"));
    }
    tokio::fs::read(path).await.map(Some).map_err(unreadable)
}

fn token(bytes: &[u8]) -> Result<String, AdapterError> {
    let bytes = bytes.trim_ascii();
    if bytes.is_empty() {
        return Err(problem("tokenFile", "is empty; write the token into it"));
    }
    match std::str::from_utf8(bytes) {
        Ok(token) if bytes.iter().all(u8::is_ascii_graphic) => Ok(token.to_owned()),
        _ => Err(problem(
            "tokenFile",
            "has more than a token; write one line of visible ASCII characters into it",
        )),
    }
}

impl TlsFiles {
    /// The TLS settings: ring, and the roots of `caFile` or of the system.
    pub fn client_config(&self) -> Result<ClientConfig, AdapterError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| AdapterError::Unavailable {
                text: format!("no TLS: {error}"),
                wait: None,
            })?
            .with_root_certificates(self.roots()?);
        let Some((certificate, key)) = &self.client else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates("clientCertFile", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            problem(
                "clientKeyFile",
                "has no private key in PEM; write one into it",
            )
        })?;
        builder.with_client_auth_cert(chain, key).map_err(|_| {
            problem(
                "clientKeyFile",
                "does not fit the certificate in `clientCertFile`",
            )
        })
    }

    fn roots(&self) -> Result<RootCertStore, AdapterError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                for certificate in certificates("caFile", pem)? {
                    let added = roots.add(certificate);
                    added.map_err(|_| problem("caFile", "has a certificate that can't be read"))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        Ok(roots)
    }
}

fn certificates(field: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AdapterError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(problem(
            field,
            "has no certificates in PEM; write them into it",
        )),
    }
}
