//! Dials a server as the API server does.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Serial number of the leaf, which a client that trusts `bundle` (PEM) accepts for `localhost`.
pub async fn serial(address: SocketAddr, bundle: &[u8]) -> std::io::Result<String> {
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
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    let leaf = &stream.get_ref().1.peer_certificates().unwrap()[0];
    Ok(serial_of(leaf))
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
