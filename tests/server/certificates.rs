//! Certificates from a directory that is laid out and replaced as the kubelet does it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use operating::server::Limits;
use operating::tls::certificate_files::CertificateFiles;

use super::rig::{Authority, Rig, rig_without_certificate};

/// Writes a generation and swaps `..data` to it by a rename.
fn swap(directory: &Path, generation: &str, chain: &str, key: &str) {
    let target = directory.join(generation);
    fs::create_dir(&target).unwrap();
    fs::write(target.join("tls.crt"), chain).unwrap();
    fs::write(target.join("tls.key"), key).unwrap();
    let new = directory.join("..data_tmp");
    symlink(generation, &new).unwrap();
    fs::rename(new, directory.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _ = symlink(Path::new("..data").join(file), directory.join(file));
    }
}

async fn presented(rig: &Rig) -> Vec<Vec<u8>> {
    let stream = rig.tls().await;
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain.iter().map(|der| der.to_vec()).collect()
}

#[tokio::test]
async fn swapped_chain_is_loaded_and_broken_pair_ignored() {
    let rig = rig_without_certificate(Limits::default()).await;
    let directory = tempfile::tempdir().unwrap();
    let mut files = CertificateFiles::new(directory.path(), rig.resolver.clone());
    assert!(!files.poll().await);
    let problem = rig.resolver.problem().unwrap();
    assert!(
        problem
            .ends_with("tls.crt: entity not found; mount a Secret of type kubernetes.io/tls there"),
        "{problem}"
    );

    let (chain, key) = rig.authority.leaf(24);
    swap(directory.path(), "..1", &chain, &key);
    assert!(files.poll().await);
    let first = presented(&rig).await;
    assert_eq!(first.len(), 1);
    assert!(files.poll().await);
    assert_eq!(rig.metric("operating_certificate_loads_total").await, 1.0);

    // A leaf below an intermediate: the client trusts the root only, so the chain must be sent.
    let intermediate = rig.authority.intermediate();
    let (leaf, key) = intermediate.leaf(48);
    let chain = format!("{leaf}{}", intermediate.pem());
    swap(directory.path(), "..2", &chain, &key);
    assert!(files.poll().await);
    let second = presented(&rig).await;
    assert_eq!(second.len(), 2);
    assert_ne!(second[0], first[0]);
    assert!(
        rig.metric("operating_certificate_expiry_timestamp_seconds")
            .await
            > 0.0
    );

    let (_, foreign_key) = Authority::new().leaf(24);
    for (generation, chain, key, complaint) in [
        (
            "..3",
            chain.as_str(),
            foreign_key.as_str(),
            "tls.key: is not the key of the first certificate in tls.crt",
        ),
        (
            "..4",
            chain.as_str(),
            "",
            "tls.key: no private key that can be used",
        ),
        ("..5", "", key.as_str(), "tls.crt: no PEM block CERTIFICATE"),
        (
            "..6",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            key.as_str(),
            "tls.crt: certificate 1 of the chain does not parse",
        ),
    ] {
        swap(directory.path(), generation, chain, key);
        assert!(files.poll().await, "the old pair stays");
        assert_eq!(presented(&rig).await, second);
        let problem = rig.resolver.problem().unwrap();
        assert!(problem.contains(complaint), "{problem}");
        let (code, text) = rig.probe("/readyz").await;
        assert_eq!(code, 200);
        assert!(
            text.contains("not renewed: certificates in ") && text.contains(complaint),
            "{text}"
        );
    }
    assert_eq!(
        rig.metric("operating_certificate_failures_total").await,
        5.0
    );

    let (chain, key) = rig.authority.leaf(24);
    swap(directory.path(), "..7", &chain, &key);
    assert!(files.poll().await);
    assert!(rig.resolver.problem().is_none());
    assert_ne!(presented(&rig).await, second);
}
