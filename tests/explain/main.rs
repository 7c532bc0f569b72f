//! "Why is my Pod waiting?": the explanation by golden files, the plugin and Events on a real API server, reviews decided
//! offline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)] // shared with the tests of the guarantee
#[path = "../guarantee/bed/mod.rs"]
mod bed;
mod events;
mod golden;
mod offline;
mod plugin;
mod truth;
