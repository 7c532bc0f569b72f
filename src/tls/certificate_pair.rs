//! A certificate chain with its private key, which are checked before they are served.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a chain and a key cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The chain has no certificate.
    #[error("tls.crt: no PEM block CERTIFICATE")]
    NoCertificate,
    /// A block of the chain is not a certificate.
    #[error("tls.crt: certificate {0} of the chain does not parse")]
    BadCertificate(usize),
    /// There is no usable private key.
    #[error(
        "tls.key: no private key that can be used (PKCS#8, PKCS#1 or SEC1; RSA, ECDSA P-256/P-384 or Ed25519)"
    )]
    BadKey,
    /// The key does not belong to the certificate.
    #[error("tls.key: is not the key of the first certificate in tls.crt")]
    Mismatch,
}

/// A chain (leaf first) and the private key of the leaf. The two are known to belong together.
pub struct CertificatePair {
    certified: Arc<CertifiedKey>,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl CertificatePair {
    /// Parses a PEM chain, leaf first, and the PEM key of the leaf.
    ///
    /// # Errors
    /// [`PairError`] names the key of the Secret that is invalid.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<CertificatePair, PairError> {
        let chain = parse_certificates(chain)?;
        let leaf = chain.first().ok_or(PairError::NoCertificate)?;
        let (not_before, not_after) = parse_validity(leaf).ok_or(PairError::BadCertificate(1))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::BadKey)?;
        let key = super::crypto_provider()
            .key_provider
            .load_private_key(key)
            .map_err(|_| PairError::BadKey)?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Ok(CertificatePair {
                certified: Arc::new(certified),
                not_before,
                not_after,
            }),
            Err(rustls::Error::InconsistentKeys(_)) => Err(PairError::Mismatch),
            Err(_) => Err(PairError::BadCertificate(1)),
        }
    }

    /// The chain and the key for rustls.
    pub fn certified_key(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    /// DER of the leaf.
    pub fn leaf_der(&self) -> &[u8] {
        self.certified.cert.first().map_or(&[], AsRef::as_ref)
    }

    /// The certificates after the leaf.
    pub fn intermediates(&self) -> &[CertificateDer<'static>] {
        self.certified.cert.get(1..).unwrap_or_default()
    }

    /// Start of the leaf's validity.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// End of the leaf's validity.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }
}

/// Does not show the key.
impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("chain", &self.certified.cert.len())
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// All certificates of a PEM text. Each is known to parse.
///
/// # Errors
/// [`PairError::BadCertificate`] with the position, counted from 1.
pub(super) fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PairError> {
    let mut found = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem) {
        let position = found.len() + 1;
        let der = der.map_err(|_| PairError::BadCertificate(position))?;
        parse_validity(&der).ok_or(PairError::BadCertificate(position))?;
        found.push(der);
    }
    Ok(found)
}

/// Validity of a DER certificate, as start and end; `None` if the certificate does not parse.
pub(super) fn parse_validity(der: &[u8]) -> Option<(Timestamp, Timestamp)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    let start = Timestamp::from_second(validity.not_before.timestamp()).ok()?;
    Some((
        start,
        Timestamp::from_second(validity.not_after.timestamp()).ok()?,
    ))
}
