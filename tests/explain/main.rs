//! "Why is my Pod waiting?": the explanation by golden files, the plugin and Events on a real API server, reviews decided
//! offline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod events;
mod golden;
mod offline;
mod plugin;
mod truth;
