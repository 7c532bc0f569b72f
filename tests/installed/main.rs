//! The server as it is installed: certificates exchanged, replicas ended and taken out again, all while a real API
//! server asks it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod cert_manager;
mod dial;
mod load;
mod projection;
mod replica;
mod rights;
mod self_managed;
