//! What the Secret holds.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::certificate_pair::{parse_certificates, parse_validity};

/// What the Secret holds: four keys (contract 4.5), PEM, and one of our own.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Material {
    /// `tls.crt`: the leaf.
    pub tls_crt: Vec<u8>,
    /// `tls.key`: the leaf's key.
    pub tls_key: Vec<u8>,
    /// `ca.crt`: the authority that signs, then former ones that are still trusted. Published as `caBundle`.
    pub ca_crt: Vec<u8>,
    /// `ca.key`: key of the first certificate in `ca.crt`.
    pub ca_key: Vec<u8>,
    /// `paths`: see [`Segments`](super::segments::Segments). Empty where the webhook paths have none.
    pub paths: Vec<u8>,
}

/// Shows no key.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

impl Material {
    /// From the Secret's `data`; absent keys are empty.
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

    /// Sets the keys in a Secret's `data`; others stay.
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

    /// The authorities in `ca.crt` that are valid at `now`, in their order; none if it does not parse.
    pub fn roots(&self, now: Timestamp) -> Vec<CertificateDer<'static>> {
        let valid =
            |der: &CertificateDer<'_>| parse_validity(der).is_some_and(|(_, end)| now < end);
        parse_certificates(&self.ca_crt)
            .unwrap_or_default()
            .into_iter()
            .filter(valid)
            .collect()
    }

    /// Signs as the authority `root`; `None` when `ca.key` is not its key or of a form that cannot sign here (an RSA
    /// key in PKCS#1, which Kuperator writes).
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
