//! A certificate authority for tests.
#![allow(clippy::unwrap_used)] // a test fails by a panic

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::{Duration, OffsetDateTime};

/// Issues the certificates of tests.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

#[allow(clippy::new_without_default)] // each authority differs
impl Authority {
    /// Creates an authority.
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// An authority below this one.
    pub fn intermediate(&self) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "intermediate");
        Authority(
            CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.0).unwrap(),
        )
    }

    /// The certificate of the authority, PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// The key of the authority, PEM.
    pub fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// The certificate of the authority, DER.
    pub fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// PEM of a leaf for localhost and of its key, valid from an hour ago for `hours` from now.
    pub fn leaf(&self, hours: i64) -> (String, String) {
        let mut params =
            CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let now = OffsetDateTime::now_utc();
        params.not_before = now - Duration::hours(1);
        params.not_after = now + Duration::hours(hours);
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &self.0).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    /// A client certificate for `common_name`, and its key.
    pub fn client(&self, common_name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common_name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (leaf.der().clone(), key)
    }
}
