//! Certificates of the server: from files that another program renews ([`certificate_files`]), or issued and renewed by
//! the server itself ([`selfmanaged`]).

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;

pub use self::certificate_pair::{CertificatePair, PairError};
use self::client_authorities::ClientAuthorities;
pub use self::resolver::{CertificateResolver, ServedCertificate};

pub mod certificate_files;
mod certificate_pair;
pub mod client_authorities;
pub mod path_guard;
mod resolver;
pub mod selfmanaged;

/// The cryptography of every TLS connection. Each configuration names it, so no process-wide default is needed.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A TLS configuration with TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, and the certificate of `resolver`. With `clients`,
/// the server asks for client certificates, and a certificate of another authority fails the handshake.
///
/// # Errors
/// If the provider supports neither TLS version. The provider of [`crypto_provider`] supports both.
pub fn server_config(
    resolver: Arc<CertificateResolver>,
    clients: Option<Arc<ClientAuthorities>>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
