//! Memory for the bodies of all calls together, and for what becomes of them.
//!
//! A body holds memory for what has arrived of it, not for what its head declares. Bodies on unproven connections draw
//! from a pool of their own, and in each pool the source that holds the most gives way. A whole body then needs memory
//! for what is parsed from it, until there is a verdict. Small reviews never wait for large ones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memchr2;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::Limits;
use super::places::Place;
use super::shares::{Lost, Share, Shares};
use crate::telemetry::metrics::LoadMetrics;

/// Memory of reviews is accounted in blocks of this size.
const BLOCK: usize = 1 << 10;
/// A review that needs more is a large one.
const SMALL: usize = 1 << 20;
/// Copies of a body: the body as it came, and the objects cut out of it.
const COPIES: usize = 2;

/// Memory of all calls.
#[derive(Debug)]
pub(super) struct Memory {
    unproven: Arc<Shares>,
    proven: Arc<Shares>,
    ages: AtomicU64,
    small: Semaphore,
    large: Semaphore,
    most: usize,
}

/// A body while it arrives.
#[derive(Debug)]
pub(super) struct Arriving {
    share: Share,
    lost: CancellationToken,
}

/// A review that needs more memory than there is for all reviews together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    /// Bytes that it needs.
    pub(super) needed: usize,
    /// Bytes that there are.
    pub(super) most: usize,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excess { needed, most } = self;
        write!(
            f,
            "the objects of the review have so many fields and items that deciding takes {needed} bytes of memory; at most \
             {most} are allowed"
        )
    }
}

impl Memory {
    pub(super) fn new(limits: &Limits, metrics: &LoadMetrics) -> Memory {
        let pool = |bytes, standing| {
            let lost = metrics.bodies(standing);
            let lost = Lost {
                crowded: lost.clone(),
                source: lost,
            };
            Shares::new(bytes, usize::MAX, lost)
        };
        let blocks = |bytes: usize| Semaphore::new((bytes / BLOCK).min(Semaphore::MAX_PERMITS));
        Memory {
            unproven: pool(limits.unproven_bytes, "unproven"),
            proven: pool(limits.proven_bytes, "proven"),
            ages: AtomicU64::new(0),
            small: blocks(limits.small_review_bytes),
            large: blocks(limits.large_review_bytes),
            most: limits.large_review_bytes,
        }
    }

    /// Room for a body that comes over the connection of `place`.
    pub(super) fn arriving(&self, place: &Place) -> Arriving {
        let pool = match place.is_proven() {
            true => &self.proven,
            false => &self.unproven,
        };
        let lost = CancellationToken::new();
        let age = self.ages.fetch_add(1, Ordering::Relaxed);
        Arriving {
            share: pool.share(place.source(), age, lost.clone()),
            lost,
        }
    }

    /// Whether `needed` bytes are more than any review may take.
    pub(super) fn excess(&self, needed: usize) -> Option<Excess> {
        let most = self.most;
        (needed > most).then_some(Excess { needed, most })
    }

    /// Waits for the memory that a review of `needed` bytes takes.
    pub(super) async fn review(&self, needed: usize) -> Option<SemaphorePermit<'_>> {
        let pool = match needed <= SMALL {
            true => &self.small,
            false => &self.large,
        };
        let blocks = u32::try_from(needed.min(self.most).div_ceil(BLOCK)).ok()?;
        // Fails for a closed semaphore only, and nobody closes it.
        pool.acquire_many(blocks).await.ok()
    }
}

impl Arriving {
    /// Accounts for `bytes` more; `false` if the body must be given up for them.
    pub(super) fn grow(&self, bytes: usize) -> bool {
        self.share.grow(bytes);
        !self.lost.is_cancelled()
    }

    /// Ends when the memory has been given to another body.
    pub(super) async fn lost(&self) {
        self.lost.cancelled().await;
    }
}

/// Bytes that the copies of a body of this length take.
pub(super) fn copies(length: usize) -> usize {
    length.saturating_mul(COPIES)
}

/// Bytes that a review of `body` needs at most while it is decided, at `per_value` bytes for each JSON value. Counting
/// values is what makes it a bound: `[0,0,0…]` takes many times the memory of a string of the same length.
pub(super) fn needed(body: &[u8], per_value: usize) -> usize {
    let parsed = values(body).saturating_mul(per_value);
    parsed.saturating_add(copies(body.len()))
}

/// Number of JSON values, at least: one for each container and each comma outside of strings.
fn values(body: &[u8]) -> usize {
    let (mut count, mut rest) = (1, body);
    while let Some(at) = rest.iter().position(|byte| {
        count += usize::from(matches!(byte, b',' | b'[' | b'{'));
        *byte == b'"'
    }) {
        rest = after_string(&rest[at + 1..]);
    }
    count
}

/// What comes after the quote that ends a string. Most bytes of a review are of strings, so they are not looked at one by one.
fn after_string(mut text: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', text) {
        if text[at] == b'"' {
            return &text[at + 1..];
        }
        text = text.get(at + 2..).unwrap_or_default(); // what is escaped ends nothing
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
            assert_eq!(values(body.as_bytes()), expected, "{body}");
        }
        assert_eq!(needed(b"[0,0]", 100), 310);
    }

    proptest! {
        #[test]
        fn values_are_those_that_a_look_at_each_byte_counts(body in r#"[a,\[{"\\]{0,60}"#) {
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
            prop_assert_eq!(values(body.as_bytes()), count, "{}", body);
        }
    }

    #[tokio::test]
    async fn a_small_review_does_not_wait_for_large_ones() {
        let limits = Limits {
            small_review_bytes: 2 << 20,
            large_review_bytes: 8 << 20,
            ..Limits::default()
        };
        let metrics = LoadMetrics::register(&Exposition::default());
        let memory = Memory::new(&limits, &metrics);
        let first = memory.review(8 << 20).await.unwrap();
        assert!(memory.review(2 << 20).now_or_never().is_none());
        assert!(memory.review(1 << 20).now_or_never().is_some());
        drop(first);
        assert!(memory.review(2 << 20).now_or_never().is_some());
        assert_eq!(memory.excess(8 << 20), None);
        let excess = memory.excess((8 << 20) + 1).unwrap();
        assert_eq!((excess.needed, excess.most), ((8 << 20) + 1, 8 << 20));
    }
}
