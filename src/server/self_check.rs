//! A readiness check that connects to the webhook listener as an API server does, and checks its certificate.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::health::CheckResult;
use crate::tls::{CertificateResolver, ServedCertificate, crypto_provider};

/// Time limit of the check. It is shorter than the limit of a readiness check, so that the check can report its reason.
const DIAL_DEADLINE: Duration = Duration::from_millis(1_500);

/// The local addresses of connections that this process opens to itself. These connections do not count as unproven, so
/// that a flood of connections does not make the process look dead. Clones share the addresses.
#[derive(Clone, Debug, Default)]
pub struct OwnConnections(Arc<Mutex<HashSet<SocketAddr>>>);

impl OwnConnections {
    /// Whether this process has opened the connection from `peer`.
    pub(super) fn is_own_peer(&self, peer: SocketAddr) -> bool {
        self.0.lock().contains(&canonical(peer))
    }

    /// Registers `local` as an own address until the guard is dropped.
    pub(super) fn register_own(&self, local: SocketAddr) -> OwnConnectionGuard {
        let local = canonical(local);
        self.0.lock().insert(local);
        OwnConnectionGuard {
            own: self.clone(),
            local,
        }
    }
}

/// The form in which addresses are compared. A listener on all addresses of both families sees IPv4 addresses as IPv6
/// addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The guard of [`OwnConnections::register_own`].
pub(super) struct OwnConnectionGuard {
    own: OwnConnections,
    local: SocketAddr,
}

impl Drop for OwnConnectionGuard {
    fn drop(&mut self) {
        self.own.0.lock().remove(&self.local);
    }
}

/// Connects to `listener` with TLS. The listener must serve the certificate that `resolver` holds, and the certificate
/// must be valid now. If this process publishes the certificate authority, the published authority must have signed it.
/// `own` must be that of the listener.
pub async fn check_served_certificate(
    listener: SocketAddr,
    resolver: Arc<CertificateResolver>,
    own: OwnConnections,
) -> CheckResult {
    let Some(served) = resolver.served() else {
        return Err(resolver
            .problem()
            .map_or_else(|| "no certificate yet".to_owned(), |p| p.to_string()));
    };
    let address = to_loopback(listener);
    let first = dial_listener(address, served.clone(), &own).await;
    let outcome = match (&first, resolver.served()) {
        // The certificate was replaced during the check.
        (Err(_), Some(now)) if !Arc::ptr_eq(&now, &served) => {
            dial_listener(address, now, &own).await
        }
        _ => first,
    };
    outcome.map_err(|why| format!("{address}: {why}"))?;
    let valid = format!(
        "answers, certificate valid until {}",
        served.pair.not_after()
    );
    Ok(match resolver.problem() {
        Some(problem) => format!("{valid}; not renewed: {problem}"),
        None => valid,
    })
}

async fn dial_listener(
    address: SocketAddr,
    served: Arc<ServedCertificate>,
    own: &OwnConnections,
) -> Result<(), String> {
    let config = client_config(served).map_err(|error| error.to_string())?;
    let connect = async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // The local address must be registered before the listener sees the connection.
        socket.bind(SocketAddr::new(address.ip(), 0))?;
        let _admitted = own.register_own(socket.local_addr()?);
        let stream = socket.connect(address).await?;
        let name = ServerName::IpAddress(address.ip().into());
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?
            .shutdown()
            .await
    };
    match timeout(DIAL_DEADLINE, connect).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no TLS handshake in time".to_owned()),
    }
}

/// The address to connect to: the loopback address for a listener on all addresses.
fn to_loopback(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

fn client_config(served: Arc<ServedCertificate>) -> Result<ClientConfig, Error> {
    let provider = crypto_provider();
    let verifier = Arc::new(ExpectedCertVerifier {
        served,
        provider: provider.clone(),
    });
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Accepts only the certificate that should be served. It does not check the names, because the check connects by IP
/// address.
#[derive(Debug)]
struct ExpectedCertVerifier {
    served: Arc<ServedCertificate>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ExpectedCertVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pair = &self.served.pair;
        if leaf.as_ref() != pair.leaf_der() {
            return Err(Error::General(
                "another certificate is served than was loaded".to_owned(),
            ));
        }
        let now_seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now_seconds >= pair.not_after().as_second() {
            return Err(CertificateError::Expired.into());
        }
        if now_seconds < pair.not_before().as_second() {
            return Err(CertificateError::NotValidYet.into());
        }
        if !self.served.roots.is_empty() {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(self.served.roots.iter().cloned());
            let algorithms = self.provider.signature_verification_algorithms.all;
            let leaf = ParsedCertificate::try_from(leaf)?;
            verify_server_cert_signed_by_trust_anchor(
                &leaf,
                &roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
