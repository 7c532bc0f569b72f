//! Accepts connections, with TLS or without, and serves HTTP on them within [`Limits`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use http::{HeaderValue, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::caller::Caller;
use super::{Limits, Shutdown};
use crate::telemetry::metrics::{ListenerLabel, ServerMetrics};
use crate::tls::clients::Clients;

/// Pause after an accept that failed, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound socket and what is served on it.
pub struct Listener {
    /// `webhook` or `metrics`; label of metrics and logs.
    pub name: &'static str,
    /// The socket.
    pub socket: TcpListener,
    /// TLS, or plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whose calls are served; all, if nobody has said.
    pub clients: Option<Arc<Clients>>,
    /// Answers requests.
    pub router: Router,
    /// Bounds.
    pub limits: Limits,
    /// Metrics.
    pub metrics: ServerMetrics,
    /// When to end.
    pub shutdown: Shutdown,
}

impl Listener {
    /// Serves until [`Shutdown`] has run its course; returns when every connection has ended.
    pub async fn serve(self) {
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let connections = Arc::new(Connections {
            name: self.name,
            tls: self.tls.map(TlsAcceptor::from),
            clients: self.clients,
            router: self.router,
            limits: self.limits,
            metrics: self.metrics,
            shutdown: self.shutdown,
        });
        let mut tasks = JoinSet::new();
        let stopping = connections.shutdown.clone();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.socket, &slots) => accepted,
                () = stopping.stopping() => break,
            };
            match accepted {
                Ok((stream, slot)) => drop(tasks.spawn(connections.clone().serve(stream, slot))),
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while tasks.try_join_next().is_some() {}
        }
        // Connections that the kernel has completed already would be reset by closing the socket.
        tokio::task::yield_now().await;
        while let Some(Ok((stream, slot))) = accept(&self.socket, &slots).now_or_never() {
            tasks.spawn(connections.clone().serve(stream, slot));
        }
        drop(self.socket);
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => {}
            () = stopping.aborting() => {
                tracing::warn!(listener = self.name, open = tasks.len(), "cutting connections at the drain deadline");
                tasks.shutdown().await;
            }
        }
    }
}

/// Takes a slot first, so that at the cap new connections wait in the kernel's backlog.
async fn accept(
    socket: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = socket.accept().await?;
    Ok((stream, slot))
}

/// What all connections of a listener share.
struct Connections {
    name: &'static str,
    tls: Option<TlsAcceptor>,
    clients: Option<Arc<Clients>>,
    router: Router,
    limits: Limits,
    metrics: ServerMetrics,
    shutdown: Shutdown,
}

impl Connections {
    /// Serves one connection to its end, holding `_slot`.
    async fn serve(self: Arc<Self>, stream: TcpStream, _slot: OwnedSemaphorePermit) {
        let _open = Open::new(&self.metrics, self.name);
        // Answers are one small write; without this they could wait for the client's acknowledgement.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = self.tls.clone() else {
            return self.http(stream, false, Caller::Anyone).await;
        };
        match timeout(self.limits.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let http2 = session.alpn_protocol() == Some(b"h2");
                let caller = self.caller(session.peer_certificates());
                self.http(stream, http2, caller).await;
            }
            Ok(Err(error)) => self.handshake_failed(&error.to_string()),
            Err(_) => self.handshake_failed("took too long"),
        }
    }

    fn caller(&self, shown: Option<&[CertificateDer<'_>]>) -> Caller {
        match &self.clients {
            None => Caller::Anyone,
            Some(clients) if clients.allow(shown.unwrap_or_default()) => Caller::Known,
            Some(_) => Caller::Unknown,
        }
    }

    /// At debug only: whoever can reach the port can cause these.
    fn handshake_failed(&self, why: &str) {
        self.metrics.handshakes_failed.inc();
        tracing::debug!(listener = self.name, why, "TLS handshake failed");
    }

    async fn http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        http2: bool,
        caller: Caller,
    ) {
        let asked = CancellationToken::new();
        let (this, first) = (self.clone(), asked.clone());
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            first.cancel();
            request.extensions_mut().insert(caller);
            this.clone().answer(request)
        });
        let builder = self.builder(http2);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));

        // Until the first request, a client is given little time.
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            silent = timeout(self.limits.first_request, asked.cancelled()) => if silent.is_err() { return },
            () = self.shutdown.stopping() => {}
        }
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            () = self.shutdown.stopping() => {}
        }
        // A connection just made has its first request on the way: ending it now would fail that request.
        tokio::select! {
            ended = connection.as_mut() => return log_end(ended),
            _ = timeout(self.limits.last_request, asked.cancelled()) => {}
        }
        connection.as_mut().graceful_shutdown();
        log_end(connection.await);
    }

    /// Fixed to the protocol that was negotiated: guessing it from the first bytes has no timeout.
    fn builder(&self, http2: bool) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.idle);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(256)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10));
        if http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
    ) -> Result<axum::response::Response, Infallible> {
        let http1 = request.version() <= Version::HTTP_11;
        let mut response = self.router.clone().oneshot(request).await?;
        // The client moves on after this answer by itself, so that it has nothing in flight when the connection ends.
        if http1 && self.shutdown.is_draining() {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// Broken connections are the client's doing.
fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Counts a connection as open until dropped.
struct Open(prometheus_client::metrics::gauge::Gauge);

impl Open {
    fn new(metrics: &ServerMetrics, listener: &'static str) -> Open {
        let gauge = metrics
            .connections
            .get_or_create_owned(&ListenerLabel { listener });
        gauge.inc();
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
