//! The content of the Secret with the certificates.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::certificate_pair::{parse_certificates, parse_validity};

/// The content of the Secret: four keys in PEM (contract 4.5), and the key `paths`, which only Operating has.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Material {
    /// `tls.crt`: the leaf.
    pub tls_crt: Vec<u8>,
    /// `tls.key`: the key of the leaf.
    pub tls_key: Vec<u8>,
    /// `ca.crt`: the authority that signs, then former authorities that are still trusted. Published as `caBundle`.
    pub ca_crt: Vec<u8>,
    /// `ca.key`: the key of the first certificate in `ca.crt`.
    pub ca_key: Vec<u8>,
    /// `paths`: see [`PathSegments`](super::segments::PathSegments). Empty if the webhook paths have no segment.
    pub paths: Vec<u8>,
}

/// Does not show the keys.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

impl Material {
    /// Reads the `data` of the Secret. Absent keys are empty.
    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Material {
        let get = |key: &str| {
            data.get(key)
                .map(|value| value.0.clone())
                .unwrap_or_default()
        };
        Material {
            tls_crt: get("tls.crt"),
            tls_key: get("tls.key"),
            ca_crt: get("ca.crt"),
            ca_key: get("ca.key"),
            paths: get("paths"),
        }
    }

    /// Writes the keys into the `data` of a Secret. Other keys stay unchanged.
    pub fn write_to(&self, data: &mut BTreeMap<String, ByteString>) {
        for (key, value) in [
            ("tls.crt", &self.tls_crt),
            ("tls.key", &self.tls_key),
            ("ca.crt", &self.ca_crt),
            ("ca.key", &self.ca_key),
        ] {
            data.insert(key.to_owned(), ByteString(value.clone()));
        }
        if !self.paths.is_empty() {
            data.insert("paths".to_owned(), ByteString(self.paths.clone()));
        }
    }

    /// The authorities in `ca.crt` that have not expired at `now`, in their order; empty if `ca.crt` does not parse.
    pub fn roots(&self, now: Timestamp) -> Vec<CertificateDer<'static>> {
        let valid =
            |der: &CertificateDer<'_>| parse_validity(der).is_some_and(|(_, end)| now < end);
        parse_certificates(&self.ca_crt)
            .unwrap_or_default()
            .into_iter()
            .filter(valid)
            .collect()
    }

    /// An issuer that signs as the authority `root`. `None` if `ca.key` is not its key, or has a form that cannot sign
    /// here (an RSA key in PKCS#1, which Kuperator writes).
    pub(super) fn signer(&self, root: &CertificateDer<'_>) -> Option<Issuer<'static, KeyPair>> {
        let key = KeyPair::from_pem(std::str::from_utf8(&self.ca_key).ok()?).ok()?;
        let (_, certificate) = X509Certificate::from_der(root).ok()?;
        let same =
            certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw();
        if same {
            Issuer::from_ca_cert_der(root, key).ok()
        } else {
            None
        }
    }
}
