//! What a client can make this process hold, and for how long.

use std::time::Duration;

/// Bounds of a listener. The defaults fit three API servers at their own default limits, and together leave half of a
/// container's 512 MiB to the caches. The flags of `operating serve` have the same defaults, except for
/// `--drain-timeout`: see [`Limits::drain`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Proven connections that are kept open: those over which a review got a verdict, or whose client has shown the
    /// certificate of an API server. Beyond them an answer ends its connection. An API server opens one for each
    /// concurrent call, serves at most 200 mutating requests at once by default, and keeps 25 idle ones.
    pub connections: usize,
    /// Connections that have not been proven yet; beyond them a newcomer takes the place of the oldest of the address
    /// that has the most.
    pub unproven: usize,
    /// The same for one address. A burst of an API server that has just started must fit.
    pub unproven_per_address: usize,
    /// Reviews being decided at once; beyond them the fallback answers.
    pub reviews: usize,
    /// Bytes of one body. `object` and `oldObject` at the API server's limit of 3 MiB for a request, and the envelope;
    /// the JSON of a review can be longer than what the user has sent.
    pub body_bytes: usize,
    /// Bytes of the bodies that are arriving over unproven connections; beyond them the address that has the most loses
    /// its oldest one. Several of the largest bodies must fit.
    pub unproven_bytes: usize,
    /// The same over proven connections.
    pub proven_bytes: usize,
    /// Bytes of memory for reviews that need at most 1 MiB each; beyond them a review waits.
    pub small_review_bytes: usize,
    /// Bytes of memory for all other reviews; beyond them a review waits. One that needs more alone is refused.
    pub large_review_bytes: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// Without a request on an unproven connection where there are more than [`Limits::unproven_calm`]: from the handshake to
    /// the end of the first request head, and from an answer to the next one.
    pub unproven_idle: Duration,
    /// So many unproven connections have the time of proven ones. An API server opens connections that it may not use at once;
    /// one that is ended just when its first request comes fails that request.
    pub unproven_calm: usize,
    /// Between two requests of a proven connection. Longer than the 90 s after which an API server gives up an idle
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
    /// The default here is 20 s. `operating serve` sets the value of `--drain-timeout`, which is 30 s by default.
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
            drain: Duration::from_secs(20),
        }
    }
}
