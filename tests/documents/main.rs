//! The documents are true: links lead somewhere, manifests are accepted by a real API server, and the commands of the examples work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod links;
mod manifests;
mod markdown;
mod plane;
