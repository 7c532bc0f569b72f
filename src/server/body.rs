//! Reads a request body within bounds of size, time and memory.

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::status::{closing, failure};

/// Memory is accounted in blocks of this size.
const BLOCK: usize = 1 << 10;
/// How much of an oversized body is read and dropped, in multiples of the limit. A client that is still sending when
/// the connection closes may never see the answer.
const DISCARD: usize = 4;

/// Memory for the bodies of all calls together.
#[derive(Debug)]
pub(super) struct Memory(Semaphore);

impl Memory {
    pub(super) fn new(bytes: usize) -> Memory {
        Memory(Semaphore::new(bytes / BLOCK))
    }
}

/// A body and the memory it is accounted for.
pub(super) struct Held<'m> {
    pub(super) bytes: Bytes,
    _memory: Option<SemaphorePermit<'m>>,
}

/// Why a body could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// Longer than the limit.
    Oversized,
    /// Not there in time.
    Slow,
    /// Too much memory in use by other bodies.
    Busy,
    /// The client went away or broke the protocol.
    Broken,
}

impl BodyError {
    /// Name in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            BodyError::Oversized => "oversized",
            BodyError::Slow => "slow",
            BodyError::Busy => "busy",
            BodyError::Broken => "malformed",
        }
    }

    /// HTTP status.
    pub(super) fn code(self) -> StatusCode {
        match self {
            BodyError::Oversized => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
            BodyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            BodyError::Broken => StatusCode::BAD_REQUEST,
        }
    }

    /// The answer; `limit` in bytes.
    pub(super) fn answer(self, limit: usize) -> Response {
        let (reason, message) = match self {
            BodyError::Oversized => (
                "RequestEntityTooLarge",
                format!("the body is larger than {limit} bytes"),
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
        closing(failure(self.code(), reason, &message))
    }
}

/// Reads all of `body`, at most `limit` bytes, until `deadline`.
pub(super) async fn read(
    body: Body,
    limit: usize,
    deadline: Instant,
    memory: &Memory,
) -> Result<Held<'_>, BodyError> {
    timeout_at(deadline, collect(body, limit, memory))
        .await
        .unwrap_or(Err(BodyError::Slow))
}

async fn collect(mut body: Body, limit: usize, memory: &Memory) -> Result<Held<'_>, BodyError> {
    let mut buffer = BytesMut::new();
    let mut held: Option<SemaphorePermit<'_>> = None;
    let mut blocks = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        if buffer.len() + data.len() > limit {
            drop((buffer, held));
            discard(body, limit * DISCARD).await;
            return Err(BodyError::Oversized);
        }
        let needed = (buffer.len() + data.len()).div_ceil(BLOCK);
        let more = u32::try_from(needed - blocks).map_err(|_| BodyError::Busy)?;
        let permit = memory
            .0
            .try_acquire_many(more)
            .map_err(|_| BodyError::Busy)?;
        match &mut held {
            Some(held) => held.merge(permit),
            None => held = Some(permit),
        }
        blocks = needed;
        buffer.extend_from_slice(&data);
    }
    Ok(Held {
        bytes: buffer.freeze(),
        _memory: held,
    })
}

async fn discard(mut body: Body, mut left: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > left {
            return;
        }
        left -= length;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::time::Duration;

    use futures::stream;

    use super::*;

    fn chunks(sizes: &[usize]) -> Body {
        let chunks: Vec<_> = sizes
            .iter()
            .map(|size| Ok::<_, std::io::Error>(vec![b'x'; *size]))
            .collect();
        Body::from_stream(stream::iter(chunks))
    }

    async fn outcome(body: Body, memory: &Memory) -> Result<usize, BodyError> {
        let deadline = Instant::now() + Duration::from_secs(5);
        read(body, 10_000, deadline, memory)
            .await
            .map(|held| held.bytes.len())
    }

    #[tokio::test]
    async fn the_limit_is_exact() {
        let memory = Memory::new(1 << 20);
        assert_eq!(outcome(chunks(&[4_000, 6_000]), &memory).await, Ok(10_000));
        assert_eq!(
            outcome(chunks(&[4_000, 6_001]), &memory).await,
            Err(BodyError::Oversized)
        );
        assert_eq!(outcome(chunks(&[]), &memory).await, Ok(0));
    }

    #[tokio::test]
    async fn memory_is_shared_and_given_back() {
        let memory = Memory::new(8 << 10);
        assert_eq!(
            outcome(chunks(&[9_000]), &memory).await,
            Err(BodyError::Busy)
        );
        let deadline = Instant::now() + Duration::from_secs(5);
        let first = read(chunks(&[100, 5_000]), 10_000, deadline, &memory)
            .await
            .unwrap();
        assert_eq!(first.bytes.len(), 5_100);
        assert_eq!(
            outcome(chunks(&[4_000]), &memory).await,
            Err(BodyError::Busy)
        );
        drop(first);
        assert_eq!(outcome(chunks(&[4_000]), &memory).await, Ok(4_000));
        assert_eq!(memory.0.available_permits(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let body = Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
        assert_eq!(
            outcome(body, &Memory::new(1 << 20)).await,
            Err(BodyError::Slow)
        );
    }

    #[tokio::test]
    async fn a_body_cut_short_is_broken() {
        let parts = [Ok(vec![b'x']), Err(std::io::Error::other("gone"))];
        let body = Body::from_stream(stream::iter(parts));
        assert_eq!(
            outcome(body, &Memory::new(1 << 20)).await,
            Err(BodyError::Broken)
        );
    }
}
