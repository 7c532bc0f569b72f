//! Accepts connections with or without TLS, and serves HTTP on them within [`Limits`].

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use futures::FutureExt;
use http::{HeaderValue, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::caller::Caller;
use super::connection_slots::{ConnectionSlot, ConnectionSlots, SlotsExhausted};
use super::log_limiter::LogLimiter;
use super::self_check::OwnConnections;
use super::{Limits, Shutdown};
use crate::telemetry::metrics::{ListenerLabel, ServerMetrics};
use crate::tls::client_authorities::{ClientAuthorities, TlsClient};

/// Pause after a failed accept, for example when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time that a proven client has to notice the end of its idle connection.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Failed accepts that are logged in one period.
const MAX_LOGGED_FAILURES: u64 = 3;
/// Concurrent requests on an HTTP/2 connection. API servers call webhooks over HTTP/1.1.
const MAX_STREAMS: u32 = 32;

/// A bound socket, and the service on it.
pub struct Listener {
    /// `webhook` or `metrics`. Label of metrics and log lines.
    pub name: &'static str,
    /// The bound socket.
    pub socket: TcpListener,
    /// TLS configuration; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// The authorities whose clients are served; `None` if every client is served.
    pub clients: Option<Arc<ClientAuthorities>>,
    /// Answers requests.
    pub router: Router,
    /// Limits of connections and requests.
    pub limits: Limits,
    /// Metrics of the server.
    pub metrics: ServerMetrics,
    /// Says when to stop.
    pub shutdown: Shutdown,
    /// Connections that this process opens to itself.
    pub own: OwnConnections,
}

impl Listener {
    /// Serves until [`Shutdown`] is complete. Returns when every connection has ended.
    pub async fn serve(self) {
        let load = &self.metrics.load;
        let slots = ConnectionSlots::new(self.name, &self.limits, load, self.own);
        let connections = Arc::new(Connections {
            silent: load.shed(self.name, "silent"),
            full: load.shed(self.name, "full"),
            name: self.name,
            tls: self.tls.map(TlsAcceptor::from),
            clients: self.clients,
            router: self.router,
            limits: self.limits,
            metrics: self.metrics,
            shutdown: self.shutdown,
            open_requests: Arc::default(),
        });
        let log = LogLimiter::new(
            "failed accepts",
            MAX_LOGGED_FAILURES,
            connections.metrics.load.unlogged.clone(),
        );
        let mut tasks = JoinSet::new();
        let stopping = connections.shutdown.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                () = stopping.stopping() => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let slot = slots.acquire_slot(peer);
                    tasks.spawn(connections.clone().serve(stream, slot));
                }
                Err(error) => {
                    if log.may_log() {
                        tracing::warn!(listener = self.name, %error, "accept failed; trying again");
                    }
                    // The process may have no file descriptors left; closing a connection frees one.
                    slots.shed_connection();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while tasks.try_join_next().is_some() {}
        }
        // Closing the socket would reset connections that the kernel has already completed, so accept these first.
        tokio::task::yield_now().await;
        while let Some(Ok((stream, peer))) = self.socket.accept().now_or_never() {
            tasks.spawn(connections.clone().serve(stream, slots.acquire_slot(peer)));
        }
        drop(self.socket);
        tokio::select! {
            () = async { while tasks.join_next().await.is_some() {} } => {}
            () = stopping.aborting() => {
                log_cut(self.name, tasks.len(), connections.open_requests.load(Ordering::Relaxed));
                tasks.shutdown().await;
            }
        }
    }
}

/// State that all connections of a listener share.
struct Connections {
    name: &'static str,
    tls: Option<TlsAcceptor>,
    clients: Option<Arc<ClientAuthorities>>,
    router: Router,
    limits: Limits,
    metrics: ServerMetrics,
    shutdown: Shutdown,
    silent: Counter,
    full: Counter,
    /// The number of requests that are being answered.
    open_requests: Arc<AtomicUsize>,
}

impl Connections {
    /// Serves one connection until it ends, or until another connection takes its slot.
    async fn serve(self: Arc<Self>, stream: TcpStream, slot: Arc<ConnectionSlot>) {
        let _open = OpenConnectionGuard::new(&self.metrics, self.name);
        tokio::select! {
            biased;
            () = slot.wait_until_shed() => {}
            () = self.accept_tls(stream, &slot) => {}
        }
    }

    async fn accept_tls(self: Arc<Self>, stream: TcpStream, slot: &Arc<ConnectionSlot>) {
        // An answer is one small write. With Nagle's algorithm it could wait for the client's acknowledgement.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = self.tls.clone() else {
            return self.serve_http(stream, false, None, slot).await;
        };
        match timeout(self.limits.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let http2 = session.alpn_protocol() == Some(b"h2");
                let shown = session.peer_certificates().unwrap_or_default();
                let client = self.clients.as_ref().map(|it| it.identify_client(shown));
                if identify_caller(client.as_ref()) == Caller::Known {
                    slot.mark_proven();
                }
                self.serve_http(stream, http2, client, slot).await;
            }
            Ok(Err(error)) => self.handshake_failed(&error.to_string()),
            Err(_) => self.handshake_failed("took too long"),
        }
    }

    /// Logs at debug level only, because anybody who can reach the port can cause failed handshakes.
    fn handshake_failed(&self, why: &str) {
        self.metrics.handshakes_failed.inc();
        tracing::debug!(listener = self.name, why, "TLS handshake failed");
    }

    async fn serve_http(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        http2: bool,
        client: Option<TlsClient>,
        slot: &Arc<ConnectionSlot>,
    ) {
        let activity = Arc::new(ConnectionActivity::default());
        let (this, on, active) = (self.clone(), slot.clone(), activity.clone());
        let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
            let serving = active.begin_request(&this.open_requests);
            request
                .extensions_mut()
                .insert(identify_caller(client.as_ref()));
            request.extensions_mut().insert(on.clone());
            let answer = this.clone().answer_request(request);
            async move {
                let _serving = serving;
                answer.await
            }
        });
        let builder = self.http_builder(http2);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));

        tokio::select! {
            ended = connection.as_mut() => return log_connection_end(ended),
            () = self.wait_until_idle(&activity, slot) => {
                self.silent.inc();
                // A proven client is told that the connection ends, so that it does not send another request.
                connection.as_mut().graceful_shutdown();
                let _ = timeout(GOODBYE_TIMEOUT, connection.as_mut()).await;
                return;
            }
            () = self.shutdown.stopping() => {}
        }
        // The first request of a new connection may be on the way. Closing the connection now would fail it.
        tokio::select! {
            ended = connection.as_mut() => return log_connection_end(ended),
            _ = timeout(self.limits.last_request, activity.asked.cancelled()) => {}
        }
        connection.as_mut().graceful_shutdown();
        log_connection_end(connection.await);
    }

    /// Completes when the client has sent no request for longer than the connection may be idle.
    async fn wait_until_idle(&self, activity: &ConnectionActivity, slot: &ConnectionSlot) {
        loop {
            let is_calm = slot.is_proven() || slot.unproven_count() <= self.limits.unproven_calm;
            let allowed = match is_calm {
                true => self.limits.idle,
                false => self.limits.unproven_idle,
            };
            // Check again soon, because a flood of connections may shorten the allowed time.
            let soon = Instant::now() + self.limits.unproven_idle;
            let until = match activity.idle_since() {
                Some(since) if since + allowed <= Instant::now() => return,
                Some(since) => since + allowed,
                None => Instant::now() + allowed,
            };
            sleep_until(until.min(soon)).await;
        }
    }

    /// Uses only the protocol that was negotiated. Detecting the protocol from the first bytes has no timeout.
    fn http_builder(&self, http2: bool) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.idle);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10));
        if http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        }
    }

    async fn answer_request(
        self: Arc<Self>,
        request: hyper::Request<Incoming>,
    ) -> Result<axum::response::Response, Infallible> {
        let http1 = request.version() <= Version::HTTP_11;
        let mut response = self.router.clone().oneshot(request).await?;
        let full = response.extensions().get::<SlotsExhausted>().is_some();
        if full {
            self.full.inc();
        }
        // With this header the client opens another connection by itself, so no request is in flight when this
        // connection ends.
        if http1 && (full || self.shutdown.is_draining()) {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// The caller on a connection. Without a client, the listener does not check who calls.
fn identify_caller(client: Option<&TlsClient>) -> Caller {
    match client.map(TlsClient::may_call) {
        None => Caller::Anyone,
        Some(true) => Caller::Known,
        Some(false) => Caller::Unknown,
    }
}

/// The requests of a connection.
struct ConnectionActivity {
    /// Cancelled when the first request has arrived.
    asked: CancellationToken,
    state: Mutex<(usize, Instant)>,
}

/// A guard that counts a request as being answered until dropped.
struct ServingGuard {
    activity: Arc<ConnectionActivity>,
    /// [`Connections::open_requests`].
    open_requests: Arc<AtomicUsize>,
}

impl Default for ConnectionActivity {
    fn default() -> Self {
        ConnectionActivity {
            asked: CancellationToken::new(),
            state: Mutex::new((0, Instant::now())),
        }
    }
}

impl ConnectionActivity {
    fn begin_request(self: &Arc<Self>, open_requests: &Arc<AtomicUsize>) -> ServingGuard {
        self.asked.cancel();
        self.state.lock().0 += 1;
        open_requests.fetch_add(1, Ordering::Relaxed);
        ServingGuard {
            activity: Arc::clone(self),
            open_requests: Arc::clone(open_requests),
        }
    }

    /// Since when no request is being answered; `None` while one is being answered.
    fn idle_since(&self) -> Option<Instant> {
        let (requests, since) = *self.state.lock();
        (requests == 0).then_some(since)
    }
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        self.open_requests.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.activity.state.lock();
        *state = (state.0 - 1, Instant::now());
    }
}

/// Logs that open connections are cut. It is a warning only if requests on them lose their answers: at each normal end
/// clients still have idle connections.
fn log_cut(listener: &str, open: usize, requests: usize) {
    if requests > 0 {
        tracing::warn!(
            listener,
            open,
            requests,
            "cutting connections with requests in progress at the drain deadline"
        );
    } else {
        tracing::debug!(listener, open, "closing idle connections");
    }
}

/// Logs at debug level only, because clients cause broken connections.
fn log_connection_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// A guard that counts a connection as open until dropped.
struct OpenConnectionGuard(prometheus_client::metrics::gauge::Gauge);

impl OpenConnectionGuard {
    fn new(metrics: &ServerMetrics, listener: &'static str) -> OpenConnectionGuard {
        let gauge = metrics
            .connections
            .get_or_create_owned(&ListenerLabel { listener });
        gauge.inc();
        OpenConnectionGuard(gauge)
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
