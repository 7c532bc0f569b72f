//! Identifies API servers by their client certificates. A certificate authority of `--client-ca-file` must have signed
//! the certificate, and the certificate must have a name of `--client-name`.
//!
//! The handshake also accepts a connection without a certificate, so that the server can tell the caller what is
//! missing. The server refuses calls on such a connection before it reads their bodies.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::certificate_pair::parse_certificates;
use super::crypto_provider;

/// Maximum number of bytes of the file that are read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The clients that may call.
pub struct ClientAuthorities {
    file: PathBuf,
    /// Common or DNS names. A certificate must have one of them.
    names: Vec<String>,
    current: ArcSwap<TrustedRoots>,
}

struct TrustedRoots {
    pem: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    /// Reads the authorities from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or has no certificate authority.
    pub fn from_file(file: PathBuf, names: Vec<String>) -> anyhow::Result<Arc<ClientAuthorities>> {
        let trust = load_roots(&file)?;
        Ok(Arc::new(ClientAuthorities {
            file,
            names,
            current: ArcSwap::from_pointee(trust),
        }))
    }

    /// Reads the file again every `period` until `stop` is cancelled. If the file is invalid, the former authorities
    /// stay in use, and the problem is logged once.
    pub async fn reload_periodically(self: Arc<Self>, period: Duration, stop: CancellationToken) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut logged_problem = String::new();
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let this = Arc::clone(&self);
            let Ok(read) = tokio::task::spawn_blocking(move || load_roots(&this.file)).await else {
                continue;
            };
            match read {
                Ok(trust) if trust.pem == self.current.load().pem => logged_problem.clear(),
                Ok(trust) => {
                    tracing::info!(file = %self.file.display(), "new authorities of client certificates");
                    self.current.store(Arc::new(trust));
                    logged_problem.clear();
                }
                Err(error) => {
                    let problem = format!("{error:#}");
                    if problem != logged_problem {
                        tracing::error!(
                            problem,
                            "keeping the former authorities of client certificates"
                        );
                        logged_problem = problem;
                    }
                }
            }
        }
    }

    /// The client of a connection that has shown these certificates, leaf first.
    pub fn identify_client(self: &Arc<Self>, shown: &[CertificateDer<'_>]) -> TlsClient {
        TlsClient {
            clients: Arc::clone(self),
            shown: shown.iter().map(|it| it.clone().into_owned()).collect(),
            checked: Mutex::default(),
        }
    }

    /// Whether the client may call. A resumed TLS session has the certificates of its first handshake, so this function
    /// verifies them again.
    fn is_client_allowed(&self, trust: &TrustedRoots, shown: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, intermediates)) = shown.split_first() else {
            return false;
        };
        let now = UnixTime::now();
        let verified = trust.verifier.verify_client_cert(leaf, intermediates, now);
        verified.is_ok()
            && certificate_names(leaf)
                .iter()
                .any(|name| self.names.contains(name))
    }
}

/// The client of one connection. Its authority may be removed while the connection is open.
pub struct TlsClient {
    clients: Arc<ClientAuthorities>,
    shown: Vec<CertificateDer<'static>>,
    /// The authorities by which the certificates were verified last, and the result.
    checked: Mutex<Option<(Arc<TrustedRoots>, bool)>>,
}

impl TlsClient {
    /// Whether the client may call, by the authorities of this moment.
    pub fn may_call(&self) -> bool {
        let present = self.clients.current.load_full();
        let mut checked = self.checked.lock();
        match &*checked {
            Some((trust, may_call)) if Arc::ptr_eq(trust, &present) => *may_call,
            _ => {
                let may_call = self.clients.is_client_allowed(&present, &self.shown);
                *checked = Some((present, may_call));
                may_call
            }
        }
    }
}

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients")
            .field("file", &self.file)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

fn load_roots(file: &std::path::Path) -> anyhow::Result<TrustedRoots> {
    use std::io::Read;
    let description = || format!("certificate authorities of clients in {}", file.display());
    let mut pem = Vec::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(MAX_FILE_BYTES).read_to_end(&mut pem))
        .with_context(description)?;
    let mut roots = RootCertStore::empty();
    for root in parse_certificates(&pem).with_context(description)? {
        roots.add(root).with_context(description)?;
    }
    if roots.is_empty() {
        return Err(anyhow::anyhow!("no PEM block CERTIFICATE")).with_context(description);
    }
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), crypto_provider());
    let verifier = builder
        .allow_unauthenticated()
        .build()
        .with_context(description)?;
    Ok(TrustedRoots { pem, verifier })
}

/// Common and DNS names of a certificate.
fn certificate_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let subject = certificate.subject().iter_common_name();
    let mut all: Vec<_> = subject
        .filter_map(|name| name.as_str().ok().map(str::to_owned))
        .collect();
    if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
        let dns = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        };
        all.extend(alternative.value.general_names.iter().filter_map(dns));
    }
    all
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// No hints. Hints would have to live longer than the authorities, which a reload replaces. Without hints, a client
    /// sends the certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let trust = self.current.load();
        trust.verifier.verify_client_cert(leaf, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let trust = self.current.load();
        trust
            .verifier
            .verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let trust = self.current.load();
        trust
            .verifier
            .verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().verifier.supported_verify_schemes()
    }
}
