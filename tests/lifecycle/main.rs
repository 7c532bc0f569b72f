//! The Pod lifecycle as its users see it: every write takes the way of a request through admission.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod golden;
mod properties;
mod quirks;
mod refusals;
mod restarts;
mod world;
