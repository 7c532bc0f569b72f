//! Certificates and keys of the server, of its own authority, and of clients.

use std::collections::BTreeMap;
use std::fs;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use operating::api::validation::endpoint;
use operating::tls::CertificatePair;
use operating::tls::client_authorities::ClientAuthorities;
use operating::tls::selfmanaged::{CertificateNames, Material, RenewalPolicy, next_step};
use rustls_pki_types::CertificateDer;

use super::choice;

/// The first byte says whether the other bytes are PEM or the DER of one certificate. Unusable data are refused, and a
/// usable pair has a leaf and an expiry.
pub fn run(data: &[u8]) {
    let Some((encoding, data)) = choice(data, 2) else {
        return;
    };
    let pem = match encoding {
        0 => data.to_vec(),
        _ => pem::encode(&pem::Pem::new("CERTIFICATE", data)).into_bytes(),
    };
    if let Ok(pair) = CertificatePair::from_pem(&pem, &pem) {
        assert!(!pair.leaf_der().is_empty());
        let _ = (pair.not_before(), pair.not_after(), pair.intermediates());
    }
    let keys = ["tls.crt", "tls.key", "ca.crt", "ca.key"];
    let secret: BTreeMap<_, _> = keys
        .map(|key| (key.to_owned(), ByteString(pem.clone())))
        .into();
    let material = Material::from_data(&secret);
    let mut written = BTreeMap::new();
    material.write_to(&mut written);
    assert_eq!(written, secret);
    let now = Timestamp::UNIX_EPOCH;
    let roots = material.roots(now);
    if let Ok(names) = CertificateNames::new(["operating.kusionstack-system.svc"]) {
        let _ = next_step(Some(&material), now, &names, &RenewalPolicy::default());
    }
    callers(&pem, &roots, data);
    let text = String::from_utf8_lossy(&pem);
    let _ = endpoint::ca_bundle_error(&text, "caBundle");
}

/// Reads a file of authorities. A client that presents an authority or arbitrary bytes may not call, because its name
/// is not allowed.
fn callers(pem: &[u8], roots: &[CertificateDer<'static>], data: &[u8]) {
    let file = std::env::temp_dir().join(format!("operating-fuzz-{}.pem", std::process::id()));
    if fs::write(&file, pem).is_err() {
        return;
    }
    if let Ok(clients) =
        ClientAuthorities::from_file(file.clone(), vec!["nobody has this name".to_owned()])
    {
        assert!(!clients.identify_client(&[]).may_call());
        assert!(!clients.identify_client(roots).may_call());
        assert!(
            !clients
                .identify_client(&[CertificateDer::from(data)])
                .may_call()
        );
    }
    let _ = fs::remove_file(&file);
}
