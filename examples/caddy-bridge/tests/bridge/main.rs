//! The adapter, the bridge, a real Caddy, and HTTP servers on loopback in the place of Pods.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod drain;
mod input;
mod members;
mod module;
mod site;
