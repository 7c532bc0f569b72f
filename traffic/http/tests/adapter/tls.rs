//! TLS: the endpoint is verified, and verifies the adapter.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use traffic::Adapter;

use crate::double::{Double, Reply, employer};

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn issuer() -> Issuer {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes `NAME.crt` and `NAME.key`, for 127.0.0.1.
fn issue(issuer: &Issuer, dir: &Path, name: &str) -> (rcgen::Certificate, KeyPair) {
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    (certificate, key)
}

/// An endpoint that asks for a certificate of `clients`.
async fn endpoint(servers: &Issuer, clients: &Issuer, dir: &Path) -> Double {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(clients.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let (certificate, key) = issue(servers, dir, "server");
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Double::with_tls(Some(TlsAcceptor::from(Arc::new(config)))).await
}

/// The outcome of an `observe` of an adapter with these files.
async fn observe(double: &Double, fields: Value) -> Result<(), String> {
    let mut fields = fields;
    fields["url"] = json!(format!("https://127.0.0.1:{}", double.port));
    double.reply(Reply::json(&json!({"members": []})));
    let observed = double.adapter(fields).observe(&employer(), &[]).await;
    observed.map(|_| ()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn both_sides_verify_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (servers, clients, others) = (issuer(), issuer(), issuer());
    let double = endpoint(&servers, &clients, dir.path()).await;
    issue(&clients, dir.path(), "client");
    issue(&others, dir.path(), "other");
    fs::write(path("ca.crt"), servers.pem()).unwrap();
    fs::write(path("wrong.crt"), others.pem()).unwrap();
    let fields = |ca: &str, client: &str| {
        json!({
            "caFile": path(ca), "clientCertFile": path(&format!("{client}.crt")),
            "clientKeyFile": path(&format!("{client}.key")),
        })
    };
    observe(&double, fields("ca.crt", "client")).await.unwrap();
    assert_eq!(double.asked().len(), 1);
    let refused = [
        fields("wrong.crt", "client"),
        fields("ca.crt", "other"),
        json!({"caFile": path("ca.crt")}),
        json!({"clientCertFile": path("client.crt"), "clientKeyFile": path("client.key")}),
    ];
    for fields in refused {
        observe(&double, fields.clone())
            .await
            .expect_err("a wrong certificate");
    }
    assert_eq!(double.asked().len(), 1);
}

#[tokio::test]
async fn replaced_certificate_is_used_by_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (servers, clients, others) = (issuer(), issuer(), issuer());
    let double = endpoint(&servers, &clients, dir.path()).await;
    issue(&others, dir.path(), "client");
    fs::write(path("ca.crt"), servers.pem()).unwrap();
    let adapter = double.adapter(json!({
        "url": format!("https://127.0.0.1:{}", double.port), "caFile": path("ca.crt"),
        "clientCertFile": path("client.crt"), "clientKeyFile": path("client.key"),
    }));
    adapter.observe(&employer(), &[]).await.unwrap_err();
    issue(&clients, dir.path(), "client");
    double.reply(Reply::json(&json!({"members": []})));
    adapter.observe(&employer(), &[]).await.unwrap();
}

#[tokio::test]
async fn wrong_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let issuer = issuer();
    let double = endpoint(&issuer, &issuer, dir.path()).await;
    issue(&issuer, dir.path(), "a");
    issue(&issuer, dir.path(), "b");
    fs::write(path("text"), "no certificate").unwrap();
    let cases = [
        (
            json!({"caFile": path("text")}),
            "`caFile` has no certificates",
        ),
        (
            json!({"clientCertFile": path("text"), "clientKeyFile": path("a.key")}),
            "`clientCertFile`",
        ),
        (
            json!({"clientCertFile": path("a.crt"), "clientKeyFile": path("text")}),
            "no private key",
        ),
        (
            json!({"clientCertFile": path("a.crt"), "clientKeyFile": path("b.key")}),
            "does not fit",
        ),
    ];
    for (fields, expected) in cases {
        let text = observe(&double, fields).await.unwrap_err();
        assert!(text.contains(expected), "{text}");
    }
}
