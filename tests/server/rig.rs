//! A server on a loopback port, a certificate authority, and clients that a test controls byte by byte.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use operating::admission::review::{self, Handler, Verdict};
use operating::server::connections::Listener;
use operating::server::health::Health;
use operating::server::webhooks;
use operating::server::{Limits, Shutdown, self_check};
use operating::telemetry::metrics::{Exposition, ServerMetrics};
use operating::tls::client_authorities::ClientAuthorities;
use operating::tls::{self, CertificatePair, CertificateResolver};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::ServerName;
use serde_json::Value;
pub use testbed::authority::Authority;
pub use testbed::review::{call, deletion as review};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate for localhost, and its key, as the server loads them.
pub fn pair(authority: &Authority) -> CertificatePair {
    let (chain, key) = authority.leaf(24);
    CertificatePair::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
}

/// Decides by the object's name: `allow…`, `deny…`, `panic…`, `hang…` (until released). Names that contain `free`
/// are never held.
#[derive(Default)]
pub struct ByName {
    pub entered: Notify,
    pub release: Notify,
}

#[async_trait]
impl Handler for ByName {
    async fn review(&self, request: &review::Request, _: Instant) -> Verdict {
        let name = request.name.as_str();
        if name.starts_with("panic") {
            panic!("as asked: {name}");
        }
        if name.starts_with("hang") {
            self.entered.notify_one();
            self.release.notified().await;
        }
        if name.starts_with("deny") {
            return Verdict::deny(429, "TooManyRequests", "3 of 3 in use").with_audit("rule", "r");
        }
        Verdict::allow()
    }

    fn fallback(&self, request: &review::Request, why: &str) -> Verdict {
        if request.name.ends_with("badly") {
            panic!("as asked");
        }
        if request.name.contains("free") {
            return Verdict::allow();
        }
        Verdict::deny(429, "TooManyRequests", why)
    }
}

/// A running server.
pub struct Rig {
    pub address: SocketAddr,
    pub probes: SocketAddr,
    pub authority: Authority,
    pub resolver: Arc<CertificateResolver>,
    pub handler: Arc<ByName>,
    pub metrics: ServerMetrics,
    pub health: Health,
    pub shutdown: Shutdown,
    pub webhook: JoinHandle<()>,
}

/// A server with a good certificate.
pub async fn rig(limits: Limits) -> Rig {
    let rig = rig_without_certificate(limits).await;
    rig.resolver
        .serve_pair(pair(&rig.authority), vec![rig.authority.der()]);
    rig
}

pub async fn rig_without_certificate(limits: Limits) -> Rig {
    rig_for(limits, None).await
}

/// A server without a certificate that serves the calls of `clients`.
pub async fn rig_for(limits: Limits, clients: Option<Arc<ClientAuthorities>>) -> Rig {
    let exposition = Exposition::default();
    let metrics = ServerMetrics::register(&exposition);
    let resolver = CertificateResolver::new(metrics.clone());
    let shutdown = Shutdown::default();
    let handler = Arc::new(ByName::default());
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let own = self_check::OwnConnections::default();
    let listener = Listener {
        name: "webhook",
        socket,
        tls: Some(tls::server_config(resolver.clone(), clients.clone()).unwrap()),
        clients,
        router: webhooks::webhook_router(vec![("/pods", handler.clone())], &limits, &metrics),
        limits,
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
        own: own.clone(),
    };
    let webhook = tokio::spawn(listener.serve());

    let health = Health::new(shutdown.clone(), exposition);
    let dialled = (resolver.clone(), own);
    health.add_readiness_check("webhook listener", move || {
        self_check::check_served_certificate(address, dialled.0.clone(), dialled.1.clone())
    });
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probes = socket.local_addr().unwrap();
    let listener = Listener {
        name: "metrics",
        socket,
        tls: None,
        clients: None,
        router: health.router(),
        limits: Limits::default(),
        metrics: metrics.clone(),
        // The server answers probes until its end.
        shutdown: Shutdown::default(),
        own: self_check::OwnConnections::default(),
    };
    tokio::spawn(listener.serve());
    Rig {
        address,
        probes,
        authority: Authority::new(),
        resolver,
        handler,
        metrics,
        health,
        shutdown,
        webhook,
    }
}

pub type Sender = SendRequest<Full<Bytes>>;

impl Rig {
    pub fn client_config(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&[u8]],
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der()).unwrap();
        let mut config = ClientConfig::builder_with_provider(tls::crypto_provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }

    pub async fn handshake(&self, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// A raw TLS connection that speaks HTTP/1.1.
    pub async fn tls(&self) -> TlsStream<TcpStream> {
        self.handshake(self.client_config(rustls::ALL_VERSIONS, &[b"http/1.1"]))
            .await
            .unwrap()
    }

    /// An HTTP/1.1 connection.
    pub async fn h1(&self) -> Sender {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.tls().await))
                .await
                .unwrap();
        tokio::spawn(connection);
        sender
    }

    /// One review of an object called `name`, on a connection of its own.
    pub async fn review(&self, name: &str) -> Value {
        verdict(
            self.h1()
                .await
                .send_request(call("/pods", review(name)))
                .await
                .unwrap(),
        )
        .await
    }

    /// Status and body of a probe.
    pub async fn probe(&self, path: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.probes).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(header::HOST, "localhost")
            .body(Full::<Bytes>::default())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        text(response).await
    }

    /// Value of a series in `/metrics`; 0 when absent.
    pub async fn metric(&self, series: &str) -> f64 {
        let (_, body) = self.probe("/metrics").await;
        let value = body
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }
}

pub async fn text(response: Response<hyper::body::Incoming>) -> (u16, String) {
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

/// The `response` of an AdmissionReview.
pub async fn verdict(response: Response<hyper::body::Incoming>) -> Value {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    let (code, body) = text(response).await;
    assert_eq!(code, 200, "{body}");
    let mut review: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["kind"], "AdmissionReview");
    review["response"].take()
}
