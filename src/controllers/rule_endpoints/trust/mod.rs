//! Decides whether a client trusts the certificate of an HTTPS endpoint whose rule has a `caBundle`.
//!
//! The bundle is read as Go's `crypto/x509` reads a root pool (`Certificate.Verify` in `verify.go`), because
//! Kubernetes users know that behavior from `caBundle` of webhook configurations:
//!
//! 1. If the bundle contains the endpoint's certificate itself, no issuer is needed. The certificate is then *pinned*:
//!    validity period, host, extended key usage and unknown critical extensions are checked. webpki refuses the pinned
//!    certificates that `openssl req -x509` makes, because they are marked as CA.
//! 2. Otherwise a chain must lead to a CA certificate of the bundle.
//! 3. If neither holds, the system's root certificates decide, and [`EndpointVerifier::warning`] says why the bundle
//!    does not. Kuperator ignored `caBundle`, so stored rules can have a bundle that was never right.
//!
//! In every case the host must match and the handshake must be signed with the key of the certificate.
//!
//! No text quotes the certificate: the endpoint may be any internal server, and the author of a rule must not learn
//! the names of that server.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::{X509Certificate, X509Version};

const PEM_BEGIN: &str = "-----BEGIN ";

const NO_ROOTS: &str = "the server has no root certificates: set caBundle in the rule";
const UNREADABLE: &str = "caBundle has no readable certificate: encode a PEM file that begins with \
     -----BEGIN CERTIFICATE-----";
const NOT_IN_BUNDLE: &str = "no certificate in caBundle issued the endpoint's certificate or is equal to it: set \
     caBundle to the CA that issued it, or to the certificate itself";
const NOT_BY_ROOTS: &str = "no root certificate of the system issued the endpoint's certificate: set caBundle to the \
     CA that issued it, or to the certificate itself";
const CA_SERVED: &str = "the endpoint's certificate is a CA certificate: set caBundle to that certificate itself, or \
     issue a certificate without CA:TRUE for the endpoint";
const EXPIRED: &str =
    "the endpoint's certificate, or an intermediate that the endpoint sends, has expired: renew it";
const NOT_YET: &str = "the endpoint's certificate, or an intermediate that the endpoint sends, is not valid yet: \
     compare the clocks";
const OTHER_HOST: &str = "the endpoint's certificate is for another host: issue a certificate that has the host of \
     the url in its subjectAltName, or correct the url";
const NOT_FOR_SERVERS: &str = "the endpoint's certificate is not for servers: issue a certificate whose \
     extendedKeyUsage contains serverAuth";
const ALGORITHM: &str = "the endpoint's certificate, or an intermediate that the endpoint sends, is signed with an \
     unsupported algorithm: use RSA with at least 2048 bits and SHA-256, or ECDSA P-256";
const UNUSABLE: &str = "the endpoint's certificate, or an intermediate that the endpoint sends, can't be verified: use \
     X.509 version 3 certificates without unusual critical extensions, issued by CA certificates";
const NOT_THE_KEY: &str = "the endpoint did not prove that it holds the private key of its certificate: give it the \
     certificate and the key that belong together; an RSA key needs at least 2048 bits";

/// Verifies the certificate of one endpoint.
///
/// Use one verifier and one `ClientConfig` for each connection: [`Self::warning`] and [`Self::refusal`] keep the first
/// outcome, and a resumed TLS session is not verified again.
#[derive(Debug)]
pub struct EndpointVerifier {
    /// `None` if the rule has no bundle.
    bundle: Option<CaBundle>,
    system: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    warning: OnceLock<String>,
    refusal: OnceLock<&'static str>,
}

impl EndpointVerifier {
    /// Trusts the PEM file `ca` first, and `system` second. An empty `ca` means `system` alone.
    pub fn new(ca: &[u8], system: Arc<RootCertStore>, provider: &CryptoProvider) -> Self {
        EndpointVerifier {
            bundle: (!ca.trim_ascii().is_empty()).then(|| CaBundle::from_pem(ca)),
            system,
            algorithms: provider.signature_verification_algorithms,
            warning: OnceLock::new(),
            refusal: OnceLock::new(),
        }
    }

    /// Why the rule's `caBundle` needs correction although the endpoint is trusted: only the system's root
    /// certificates verify the endpoint. Has a meaning only after the handshake has succeeded.
    pub fn warning(&self) -> Option<&str> {
        self.warning.get().map(String::as_str)
    }

    /// Why the endpoint is not trusted, and the remedy. `None` if the handshake failed for another reason.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.get().copied()
    }

    fn refuse(&self, reason: &'static str) -> Error {
        let reason = *self.refusal.get_or_init(|| reason);
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
            std::io::Error::other(reason),
        ))))
    }
}

impl ServerCertVerifier for EndpointVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let served = PresentedCertificate {
            end_entity,
            intermediates,
            server_name,
            now,
            algorithms: self.algorithms,
        };
        let by_system = || {
            if self.system.is_empty() {
                return Err(NO_ROOTS);
            }
            let chained = served.chains_to(&self.system);
            chained.map_err(|error| served.describe_error(&error, NOT_BY_ROOTS))
        };
        let Some(bundle) = &self.bundle else {
            return match by_system() {
                Ok(()) => Ok(ServerCertVerified::assertion()),
                Err(reason) => Err(self.refuse(reason)),
            };
        };
        if let Err(reason) = bundle.verify(&served) {
            if by_system().is_err() {
                return Err(self.refuse(reason));
            }
            self.warning.get_or_init(|| {
                format!(
                    "the endpoint is verified by the system's root certificates, not by caBundle, which therefore \
                     restricts nothing: correct caBundle or remove it ({reason})"
                )
            });
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
            .map_err(|_| self.refuse(NOT_THE_KEY))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
            .map_err(|_| self.refuse(NOT_THE_KEY))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[derive(Debug)]
struct CaBundle {
    certificates: Vec<CertificateDer<'static>>,
    authorities: RootCertStore,
}

impl CaBundle {
    /// Reads the certificates of a PEM file and skips everything else, as `CertPool.AppendCertsFromPEM` does in Go.
    fn from_pem(pem: &[u8]) -> Self {
        let mut authorities = RootCertStore::empty();
        let mut certificates = Vec::new();
        let text = String::from_utf8_lossy(pem);
        for block in text.split(PEM_BEGIN) {
            // Parse each block alone: the parser would lose a good block that follows a block without an end.
            let block = format!("{PEM_BEGIN}{block}");
            let Ok(certificate) = CertificateDer::from_pem_slice(block.as_bytes()) else {
                continue;
            };
            let Ok((_, parsed)) = parse_x509_certificate(&certificate) else {
                continue;
            };
            if may_issue(&parsed) {
                authorities.add_parsable_certificates([certificate.clone()]);
            }
            certificates.push(certificate);
        }
        CaBundle {
            certificates,
            authorities,
        }
    }

    /// Verifies `served` by this bundle. The error says why the bundle does not verify it.
    fn verify(&self, served: &PresentedCertificate<'_>) -> Result<(), &'static str> {
        if self.certificates.is_empty() {
            return Err(UNREADABLE);
        }
        let verified = if self.certificates.contains(served.end_entity) {
            served.is_good_pinned()
        } else {
            served.chains_to(&self.authorities)
        };
        verified.map_err(|error| served.describe_error(&error, NOT_IN_BUNDLE))
    }
}

/// Whether Go's `CheckSignatureFrom` lets the certificate issue other certificates. Without this check, a person who
/// holds the key of a pinned certificate could issue certificates for the host of the endpoint.
fn may_issue(certificate: &X509Certificate<'_>) -> bool {
    certificate.is_ca() || certificate.version() != X509Version::V3
}

/// The certificates that the endpoint sent, and the host and time for which they are verified.
struct PresentedCertificate<'a> {
    end_entity: &'a CertificateDer<'a>,
    intermediates: &'a [CertificateDer<'a>],
    server_name: &'a ServerName<'a>,
    now: UnixTime,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PresentedCertificate<'_> {
    fn chains_to(&self, roots: &RootCertStore) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(self.end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            self.intermediates,
            self.now,
            self.algorithms.all,
        )?;
        verify_server_name(&certificate, self.server_name)
    }

    /// Makes the checks that Go makes for a chain that consists of a root certificate alone. Parsing refuses unknown
    /// critical extensions.
    fn is_good_pinned(&self) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(self.end_entity)?;
        let (_, details) = parse_x509_certificate(self.end_entity)
            .map_err(|_| Error::from(CertificateError::BadEncoding))?;
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        if now < details.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > details.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        verify_server_name(&certificate, self.server_name)?;
        match details.extended_key_usage() {
            Ok(None) => Ok(()),
            Ok(Some(usage)) if usage.value.any || usage.value.server_auth => Ok(()),
            Ok(Some(_)) => Err(CertificateError::InvalidPurpose.into()),
            Err(_) => Err(CertificateError::BadEncoding.into()),
        }
    }

    /// The text for users about `error`; `unknown_issuer` if the issuer is not trusted.
    fn describe_error(&self, error: &Error, unknown_issuer: &'static str) -> &'static str {
        use CertificateError as E;
        let Error::InvalidCertificate(error) = error else {
            return UNUSABLE;
        };
        match error {
            E::UnknownIssuer | E::BadSignature => unknown_issuer,
            E::Expired | E::ExpiredContext { .. } => EXPIRED,
            E::NotValidYet | E::NotValidYetContext { .. } => NOT_YET,
            E::NotValidForName | E::NotValidForNameContext { .. } => OTHER_HOST,
            E::InvalidPurpose | E::InvalidPurposeContext { .. } => NOT_FOR_SERVERS,
            E::UnsupportedSignatureAlgorithmContext { .. }
            | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => ALGORITHM,
            E::Other(_) if self.is_ca() => CA_SERVED,
            _ => UNUSABLE,
        }
    }

    fn is_ca(&self) -> bool {
        parse_x509_certificate(self.end_entity).is_ok_and(|(_, details)| details.is_ca())
    }
}

#[cfg(test)]
mod tests;
