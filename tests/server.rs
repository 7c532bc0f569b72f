//! The webhook server on the wire: real sockets, real TLS, no cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod server {
    pub mod bad_input;
    pub mod certificates;
    pub mod clients;
    pub mod drain;
    pub mod faults;
    pub mod load;
    pub mod readiness;
    pub mod rig;
    pub mod verdicts;
}
