//! What a client can make this process hold, and for how long.

use std::time::Duration;

/// Bounds of a listener. The defaults fit three API servers at their own default limits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections; beyond them new ones wait in the kernel's backlog. An API server opens one per concurrent
    /// call, and serves at most 200 mutating requests at once by default.
    pub connections: usize,
    /// Reviews being decided at once; beyond them the fallback answers.
    pub reviews: usize,
    /// Bytes of one body. `object` and `oldObject` at etcd's default limit of 1.5 MiB each, and the envelope.
    pub body_bytes: usize,
    /// Bytes of all bodies that are held at once; beyond them a call is answered 503.
    pub buffered_bytes: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// From the handshake to the end of the first request head.
    pub first_request: Duration,
    /// Between two requests of a connection. Longer than the 90 s after which an API server gives up an idle
    /// connection, so that it closes first and never sends into a closing one.
    pub idle: Duration,
    /// From the request head to the end of the body, unless the review's own deadline is sooner.
    pub body: Duration,
    /// From the signal to end until no connection is accepted any more. Load balancers must notice the failing
    /// readiness within it.
    pub lame_duck: Duration,
    /// How long a connection accepted just before that may take to send its first request.
    pub last_request: Duration,
    /// From the end of the lame duck until what is still open is cut off. Longer than the longest timeout of a webhook, 30 s, is no use.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 2048,
            reviews: 1024,
            body_bytes: 4 << 20,
            buffered_bytes: 64 << 20,
            handshake: Duration::from_secs(5),
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            body: Duration::from_secs(10),
            lame_duck: Duration::from_secs(5),
            last_request: Duration::from_secs(1),
            drain: Duration::from_secs(20),
        }
    }
}
