//! The installed server while it runs: it works with its own rights only, and reviews go on while certificates rotate,
//! replicas come and go, and Helm updates the server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cert_manager;
mod cluster;
mod dial;
mod helm;
mod load;
mod network;
mod projection;
mod rights;
mod self_managed;
mod server_pods;
