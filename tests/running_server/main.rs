//! The installed server while it runs: it works with its own rights only, and reviews go on while certificates rotate
//! and replicas come and go.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cert_manager;
mod cluster;
mod dial;
mod load;
mod projection;
mod rights;
mod self_managed;
