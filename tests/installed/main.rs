//! The server as it is installed: certificates exchanged, replicas ended and taken out again, all while a real API
//! server asks it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cert_manager;
mod cluster;
mod dial;
mod load;
mod projection;
mod rights;
mod self_managed;
