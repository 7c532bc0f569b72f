//! Limits the memory for the bodies of all calls and for their reviews.
//!
//! A body takes memory for the bytes that have arrived, not for the length in its head. Bodies on unproven connections
//! use a pool of their own. If a pool is full, the source that holds the most memory loses a body. A complete body then
//! needs memory for its parsed form until there is a verdict. Small reviews never wait for large ones.
//! for what is parsed from it, until there is a verdict. Small reviews never wait for large ones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memchr2;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::connection_slots::ConnectionSlot;
use super::fair_shares::{FairShares, Share, ShedCounters};
use crate::telemetry::metrics::LoadMetrics;

/// Unit of the memory of reviews, in bytes.
const BLOCK_BYTES: usize = 1 << 10;
/// Maximum number of bytes of a small review. A review that needs more is a large one.
const SMALL_REVIEW_BYTES: usize = 1 << 20;
/// Copies of a body: the received body, and the objects that are cut out of it.
const COPIES_PER_BODY: usize = 2;

/// The memory of all calls.
#[derive(Debug)]
pub(super) struct ReviewMemory {
    unproven: Arc<FairShares>,
    proven: Arc<FairShares>,
    ages: AtomicU64,
    small: Semaphore,
    large: Semaphore,
    most: usize,
}

#[derive(Debug)]
pub(super) struct ArrivingBody {
    share: Share,
    lost: CancellationToken,
}

/// A review that needs more memory than all large reviews together may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryExcess {
    /// Bytes that the review needs.
    pub(super) needed: usize,
    /// Bytes that all large reviews together may take.
    pub(super) most: usize,
}

impl fmt::Display for MemoryExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryExcess { needed, most } = self;
        write!(
            f,
            "the objects of the review have so many fields and items that deciding takes {needed} bytes of memory; at most \
             {most} are allowed"
        )
    }
}

impl ReviewMemory {
    pub(super) fn new(limits: &Limits, metrics: &LoadMetrics) -> ReviewMemory {
        let pool = |bytes, standing| {
            let lost = metrics.bodies(standing);
            let lost = ShedCounters {
                crowded: lost.clone(),
                source: lost,
            };
            FairShares::new(bytes, usize::MAX, lost)
        };
        let blocks =
            |bytes: usize| Semaphore::new((bytes / BLOCK_BYTES).min(Semaphore::MAX_PERMITS));
        ReviewMemory {
            unproven: pool(limits.unproven_bytes, "unproven"),
            proven: pool(limits.proven_bytes, "proven"),
            ages: AtomicU64::new(0),
            small: blocks(limits.small_review_bytes),
            large: blocks(limits.large_review_bytes),
            most: limits.large_review_bytes,
        }
    }

    /// Registers a body that arrives over the connection of `slot`.
    pub(super) fn begin_body(&self, slot: &ConnectionSlot) -> ArrivingBody {
        let pool = match slot.is_proven() {
            true => &self.proven,
            false => &self.unproven,
        };
        let lost = CancellationToken::new();
        let age = self.ages.fetch_add(1, Ordering::Relaxed);
        ArrivingBody {
            share: pool.new_share(slot.source(), age, lost.clone()),
            lost,
        }
    }

    /// The excess, if `needed` bytes are more than any review may take.
    pub(super) fn check_excess(&self, needed: usize) -> Option<MemoryExcess> {
        let most = self.most;
        (needed > most).then_some(MemoryExcess { needed, most })
    }

    /// Waits for the memory that a review of `needed` bytes takes.
    pub(super) async fn acquire_review(&self, needed: usize) -> Option<SemaphorePermit<'_>> {
        let pool = match needed <= SMALL_REVIEW_BYTES {
            true => &self.small,
            false => &self.large,
        };
        let blocks = u32::try_from(needed.min(self.most).div_ceil(BLOCK_BYTES)).ok()?;
        // Fails only for a closed semaphore, and these are never closed.
        pool.acquire_many(blocks).await.ok()
    }
}

impl ArrivingBody {
    /// Takes memory for `bytes` more bytes; `false` if the body has lost its memory and must be given up.
    pub(super) fn reserve_bytes(&self, bytes: usize) -> bool {
        self.share.add_units(bytes);
        !self.lost.is_cancelled()
    }

    /// Completes when another body has taken the memory.
    pub(super) async fn wait_until_lost(&self) {
        self.lost.cancelled().await;
    }
}

/// Bytes that the copies of a body of this length take.
pub(super) fn copy_bytes(length: usize) -> usize {
    length.saturating_mul(COPIES_PER_BODY)
}

/// Maximum number of bytes that a review of `body` needs until it is decided, at `per_value` bytes for each JSON value.
/// The number of values is part of the bound, because `[0,0,0…]` takes many times the memory of a string of the same
/// length.
pub(super) fn review_bytes(body: &[u8], per_value: usize) -> usize {
    let parsed = count_values(body).saturating_mul(per_value);
    parsed.saturating_add(copy_bytes(body.len()))
}

/// An upper bound of the number of JSON values: one for each container and each comma outside of strings, and one more.
fn count_values(body: &[u8]) -> usize {
    let (mut count, mut rest) = (1, body);
    while let Some(at) = rest.iter().position(|byte| {
        count += usize::from(matches!(byte, b',' | b'[' | b'{'));
        *byte == b'"'
    }) {
        rest = skip_string(&rest[at + 1..]);
    }
    count
}

/// The text after the quote that ends a string. It searches for quotes and backslashes only, because most bytes of a
/// review belong to strings.
fn skip_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return &text[at + 1..];
        }
        text = text.get(at + 2..).unwrap_or_default(); // an escaped character does not end the string
    }
    &[]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::telemetry::metrics::Exposition;

    #[test]
    fn values_outside_of_strings_are_counted() {
        for (body, expected) in [
            (r#"0"#, 1),
            (r#"{"a": [1, 2, {}]}"#, 6),
            (r#"{"a,[{": "b\",[", "c": "\\"}"#, 3),
            ("", 1),
        ] {
            assert_eq!(count_values(body.as_bytes()), expected, "{body}");
        }
        assert_eq!(review_bytes(b"[0,0]", 100), 310);
    }

    proptest! {
        #[test]
        fn value_count_equals_byte_by_byte_count(body in r#"[a,\[{"\\]{0,60}"#) {
            let (mut count, mut quoted, mut escaped) = (1, false, false);
            for byte in body.bytes() {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    b',' | b'[' | b'{' if !quoted => count += 1,
                    _ => {}
                }
            }
            prop_assert_eq!(count_values(body.as_bytes()), count, "{}", body);
        }
    }

    #[tokio::test]
    async fn small_review_does_not_wait_for_large_ones() {
        let limits = Limits {
            small_review_bytes: 2 << 20,
            large_review_bytes: 8 << 20,
            ..Limits::default()
        };
        let metrics = LoadMetrics::register(&Exposition::default());
        let memory = ReviewMemory::new(&limits, &metrics);
        let first = memory.acquire_review(8 << 20).await.unwrap();
        assert!(memory.acquire_review(2 << 20).now_or_never().is_none());
        assert!(memory.acquire_review(1 << 20).now_or_never().is_some());
        drop(first);
        assert!(memory.acquire_review(2 << 20).now_or_never().is_some());
        assert_eq!(memory.check_excess(8 << 20), None);
        let excess = memory.check_excess((8 << 20) + 1).unwrap();
        assert_eq!((excess.needed, excess.most), ((8 << 20) + 1, 8 << 20));
    }
}
