//! Calls a server as the API server does.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Serial number of the leaf, which a client that trusts `bundle` (PEM) accepts for `localhost`.
pub async fn serial(address: SocketAddr, bundle: &[u8]) -> std::io::Result<String> {
    let stream = dial(address, bundle).await?;
    let leaf = &stream.get_ref().1.peer_certificates().unwrap()[0];
    Ok(serial_of(leaf))
}

/// The answer to the creation of a rule that allows a negative number of Pods to be unavailable.
pub async fn review(address: SocketAddr, bundle: &[u8]) -> std::io::Result<String> {
    let kind =
        json!({"group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "PodTransitionRule"});
    let rules = json!([{"name": "r", "availablePolicy": {"maxUnavailableValue": -1}}]);
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "asked-by-hand", "operation": "CREATE", "name": "bad", "namespace": "default",
            "kind": kind, "userInfo": {"username": "someone"}, "dryRun": true,
            "resource": {"group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "podtransitionrules"},
            "object": {
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
                "metadata": {"name": "bad", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"a": "b"}}, "rules": rules},
            },
        },
    })
    .to_string();
    let head = "POST /validate/podtransitionrules?timeout=5s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json";
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = dial(address, bundle).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn dial(address: SocketAddr, bundle: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).map(Result::unwrap));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// Serial number of the first certificate of a PEM text.
pub fn serial_in(pem: &[u8]) -> String {
    serial_of(&CertificateDer::from_pem_slice(pem).unwrap())
}

fn serial_of(der: &[u8]) -> String {
    X509Certificate::from_der(der)
        .unwrap()
        .1
        .raw_serial_as_string()
}
