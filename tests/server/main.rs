//! The webhook server over real sockets with real TLS, without a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod bad_input;
mod certificates;
mod clients;
mod drain;
mod faults;
mod floods;
mod logs;
mod readiness;
mod rig;
mod verdicts;
