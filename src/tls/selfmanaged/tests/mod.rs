#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api;
mod clock;
mod replicas;

use jiff::{SignedDuration, Timestamp};

use super::*;

fn names() -> CertificateNames {
    CertificateNames::new([
        "localhost",
        "operating.kusionstack-system.svc",
        "127.0.0.1",
        "::1",
    ])
    .unwrap()
}

fn start() -> Timestamp {
    "2026-03-01T00:00:00Z".parse().unwrap()
}

fn hours(n: i64) -> SignedDuration {
    SignedDuration::from_hours(n)
}

/// Short lifetimes: 100 hours for an authority, 10 for a leaf, and one hour between steps.
fn policy() -> RenewalPolicy {
    RenewalPolicy {
        authority: hours(100),
        leaf: hours(10),
        settle: hours(1),
        ..RenewalPolicy::default()
    }
}
