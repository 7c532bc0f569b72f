//! Reads the body of a request within limits of size, time and memory.

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::review_memory::{ArrivingBody, MemoryExcess, ReviewMemory, copy_bytes, review_bytes};
use super::status::{close_connection, failure_response};

/// How many bytes of an oversized body are read and discarded, in multiples of the limit. A client that is still
/// sending when the connection closes may never see the answer.
const DISCARD_FACTOR: usize = 4;

/// A body, and a permit for the memory that its review may take until the verdict.
pub(super) struct ReceivedBody<'m> {
    pub(super) bytes: Bytes,
    pub(super) memory: SemaphorePermit<'m>,
    /// Why the body may only be parsed in outline, if its review would take too much memory. `memory` then covers only
    /// the copies of the body.
    pub(super) excess: Option<MemoryExcess>,
}

/// Limits of one body.
pub(super) struct BodyBounds {
    /// Maximum number of bytes of the body.
    pub(super) limit: usize,
    /// When the whole body must have arrived.
    pub(super) arrived: Instant,
    /// When memory for the review must be available.
    pub(super) deadline: Instant,
    /// Bytes that the review takes for each JSON value.
    pub(super) per_value: usize,
}

/// Why a body could not be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// The body is longer than the limit.
    Oversized,
    /// The body did not arrive in time.
    Slow,
    /// Other bodies use too much memory.
    Busy,
    /// The client closed the connection or violated the protocol.
    Broken,
}

impl BodyError {
    /// Value of the label in metrics.
    pub(super) fn metric_label(self) -> &'static str {
        match self {
            BodyError::Oversized => "oversized",
            BodyError::Slow => "slow",
            BodyError::Busy => "busy",
            BodyError::Broken => "malformed",
        }
    }

    /// HTTP status of the answer.
    pub(super) fn code(self) -> StatusCode {
        match self {
            BodyError::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
            BodyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            BodyError::Broken => StatusCode::BAD_REQUEST,
        }
    }

    /// The answer, which closes the connection. `limit` is in bytes.
    pub(super) fn to_response(self, limit: usize) -> Response {
        let (reason, message) = match self {
            BodyError::Oversized => (
                "RequestEntityTooLarge",
                format!("the review is larger than {limit} bytes, the limit of --max-review-bytes"),
            ),
            BodyError::Slow => ("Timeout", "the body did not arrive in time".to_owned()),
            BodyError::Busy => (
                "ServiceUnavailable",
                "too many large reviews at once; try again".to_owned(),
            ),
            BodyError::Broken => (
                "BadRequest",
                "the body could not be read to its end".to_owned(),
            ),
        };
        close_connection(failure_response(self.code(), reason, &message))
    }
}

/// Reads all of `body` within `bounds`, and waits for the memory that its review takes.
pub(super) async fn read_body<'m>(
    body: Body,
    bounds: BodyBounds,
    arriving: ArrivingBody,
    memory: &'m ReviewMemory,
) -> Result<ReceivedBody<'m>, BodyError> {
    let whole = async {
        let collected = timeout_at(bounds.arrived, collect_body(body, bounds.limit, &arriving));
        let bytes = collected.await.unwrap_or(Err(BodyError::Slow))?;
        let needed = review_bytes(&bytes, bounds.per_value);
        let excess = memory.check_excess(needed);
        let permit = memory.acquire_review(excess.map_or(needed, |_| copy_bytes(bytes.len())));
        match timeout_at(bounds.deadline, permit).await {
            Ok(Some(memory)) => Ok(ReceivedBody {
                bytes,
                memory,
                excess,
            }),
            Ok(None) | Err(_) => Err(BodyError::Busy),
        }
    };
    tokio::select! {
        biased;
        () = arriving.wait_until_lost() => Err(BodyError::Busy),
        received = whole => received,
    }
}

async fn collect_body(
    mut body: Body,
    limit: usize,
    arriving: &ArrivingBody,
) -> Result<Bytes, BodyError> {
    let mut buffer = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        if buffer.len() + data.len() > limit {
            drop(buffer);
            discard_body(body, limit * DISCARD_FACTOR).await;
            return Err(BodyError::Oversized);
        }
        if !arriving.reserve_bytes(data.len()) {
            return Err(BodyError::Busy);
        }
        buffer.extend_from_slice(&data);
    }
    Ok(buffer.freeze())
}

async fn discard_body(mut body: Body, mut remaining: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > remaining {
            return;
        }
        remaining -= length;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use futures::{StreamExt, stream};

    use super::*;
    use crate::server::Limits;
    use crate::server::connection_slots::{ConnectionSlot, ConnectionSlots};
    use crate::server::self_check::OwnConnections;
    use crate::telemetry::metrics::{Exposition, LoadMetrics};

    fn chunks(sizes: &[usize]) -> Body {
        let chunks: Vec<_> = sizes
            .iter()
            .map(|size| Ok::<_, std::io::Error>(vec![b'x'; *size]))
            .collect();
        Body::from_stream(stream::iter(chunks))
    }

    fn place(last: u8) -> Arc<ConnectionSlot> {
        let metrics = LoadMetrics::register(&Exposition::default());
        let places = ConnectionSlots::new(
            "webhook",
            &Limits::default(),
            &metrics,
            OwnConnections::default(),
        );
        places.acquire_slot(SocketAddr::from(([10, 0, 0, last], 1)))
    }

    fn memory(limits: Limits) -> ReviewMemory {
        ReviewMemory::new(&limits, &LoadMetrics::register(&Exposition::default()))
    }

    fn bounds() -> BodyBounds {
        let deadline = Instant::now() + Duration::from_secs(5);
        BodyBounds {
            limit: 10_000,
            arrived: deadline,
            deadline,
            per_value: 1,
        }
    }

    async fn outcome(body: Body, memory: &ReviewMemory) -> Result<usize, BodyError> {
        let arriving = memory.begin_body(&place(1));
        let held = read_body(body, bounds(), arriving, memory).await;
        held.map(|held| held.bytes.len())
    }

    #[tokio::test]
    async fn body_limit_is_exact() {
        let memory = memory(Limits::default());
        assert_eq!(outcome(chunks(&[4_000, 6_000]), &memory).await, Ok(10_000));
        assert_eq!(
            outcome(chunks(&[4_000, 6_001]), &memory).await,
            Err(BodyError::Oversized)
        );
        assert_eq!(outcome(chunks(&[]), &memory).await, Ok(0));
    }

    /// A body that has sent `size` bytes and never ends.
    fn endless(size: usize) -> Body {
        let first = stream::iter([Ok::<_, std::io::Error>(vec![b'x'; size])]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_never_end_leave_room_for_another_source() {
        let memory = memory(Limits {
            unproven_bytes: 20_000,
            ..Limits::default()
        });
        let held_open = (0..3).map(|_| {
            let arriving = memory.begin_body(&place(2));
            read_body(endless(8_000), bounds(), arriving, &memory)
        });
        let honest = async {
            tokio::task::yield_now().await;
            outcome(chunks(&[9_000]), &memory).await
        };
        let (flood, honest) = futures::join!(futures::future::join_all(held_open), honest);
        assert_eq!(honest, Ok(9_000));
        let flood: Vec<_> = flood.into_iter().map(|read| read.err().unwrap()).collect();
        use BodyError::{Busy, Slow};
        assert_eq!(flood, [Busy, Busy, Slow], "the oldest give way");
        assert_eq!(outcome(chunks(&[9_000]), &memory).await, Ok(9_000));
    }

    #[tokio::test]
    async fn too_many_values_are_an_excess() {
        let memory = memory(Limits {
            large_review_bytes: 2 << 20,
            ..Limits::default()
        });
        for (items, excess) in [(1_000, false), (3_000, true)] {
            let bounds = BodyBounds {
                per_value: 1_000,
                ..bounds()
            };
            let body = Body::from("[0".to_owned() + &",0".repeat(items) + "]");
            let held = read_body(body, bounds, memory.begin_body(&place(1)), &memory).await;
            assert_eq!(held.ok().unwrap().excess.is_some(), excess);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_never_ends_is_given_up() {
        let body = Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
        assert_eq!(
            outcome(body, &memory(Limits::default())).await,
            Err(BodyError::Slow)
        );
    }

    #[tokio::test]
    async fn body_cut_short_is_broken() {
        let parts = [Ok(vec![b'x']), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(stream::iter(parts));
        assert_eq!(
            outcome(body, &memory(Limits::default())).await,
            Err(BodyError::Broken)
        );
    }
}
