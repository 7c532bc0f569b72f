//! Limits what a client can make this process hold, and for how long.

use std::time::Duration;

/// Limits of a listener. The defaults fit three API servers with their own default limits. Together they leave half of
/// a container's 512 MiB to the caches. The flags of `operating serve` have the same defaults.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of proven connections: connections over which a review got a verdict, or whose client has shown
    /// the certificate of an API server. Beyond this number, an answer closes its connection. An API server opens one
    /// connection for each concurrent call, serves at most 200 mutating requests at the same time by default, and keeps
    /// 25 idle connections.
    pub connections: usize,
    /// Maximum number of unproven connections. Beyond this number, a new connection takes the slot of the oldest
    /// connection of the address that has the most.
    pub unproven: usize,
    /// Maximum number of unproven connections of one address. A burst of an API server that has just started must fit.
    pub unproven_per_address: usize,
    /// Maximum number of reviews that are decided at the same time. Beyond this number, the fallback answers.
    pub reviews: usize,
    /// Maximum number of bytes of one body. It fits `object` and `oldObject` at the API server's limit of 3 MiB for a
    /// request, and the rest of the review. The JSON of a review can be longer than the request of the user.
    pub body_bytes: usize,
    /// Maximum number of bytes of all bodies that arrive over unproven connections. Beyond this number, the address
    /// that has the most bytes loses its oldest body. Several bodies of the largest size must fit.
    pub unproven_bytes: usize,
    /// Maximum number of bytes of all bodies that arrive over proven connections.
    pub proven_bytes: usize,
    /// Bytes of memory for reviews that need at most 1 MiB each. If the memory is in use, a review waits.
    pub small_review_bytes: usize,
    /// Bytes of memory for all other reviews. If the memory is in use, a review waits. A review that needs more than
    /// all of it is denied.
    pub large_review_bytes: usize,
    /// Time limit of the TLS handshake.
    pub handshake: Duration,
    /// Longest idle time of an unproven connection if there are more than [`Limits::unproven_calm`] of them: from the
    /// handshake to the end of the first request head, and from an answer to the next request head.
    pub unproven_idle: Duration,
    /// Up to this number of unproven connections, each may be idle as long as a proven one. An API server opens
    /// connections that it may not use at once, and closing a connection just when its first request arrives fails the
    /// request.
    pub unproven_calm: usize,
    /// Longest idle time of a proven connection. It is longer than the 90 s after which an API server closes an idle
    /// connection, so that the API server closes first and never sends a request into a closing connection.
    pub idle: Duration,
    /// Time from the request head to the end of the body, unless the deadline of the review is earlier.
    pub body: Duration,
    /// Time from the signal to terminate until no connection is accepted any more. Load balancers must notice the
    /// failing readiness within it.
    pub lame_duck: Duration,
    /// Time that a connection accepted just before the end of `lame_duck` has for its first request.
    pub last_request: Duration,
    /// Time from the end of `lame_duck` until open connections are cut. A value above 30 s, the longest timeout of a
    /// webhook, is no use.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1024,
            unproven: 1024,
            unproven_per_address: 512,
            reviews: 1024,
            body_bytes: 8 << 20,
            unproven_bytes: 24 << 20,
            proven_bytes: 40 << 20,
            small_review_bytes: 48 << 20,
            large_review_bytes: 128 << 20,
            handshake: Duration::from_secs(5),
            unproven_idle: Duration::from_secs(5),
            unproven_calm: 128,
            idle: Duration::from_secs(150),
            body: Duration::from_secs(10),
            lame_duck: Duration::from_secs(5),
            last_request: Duration::from_secs(1),
            drain: Duration::from_secs(30),
        }
    }
}
