//! The adapter against an endpoint that speaks HTTP.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod calls;
mod contract;
mod double;
mod faults;
mod secrets;
mod tls;
