//! PodDecorations on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod at_rest;
mod birth;
mod deletion;
mod faults;
mod fixtures;
mod partition;
mod patches;
mod replace;
mod rollout;
mod selectors;
mod set_partition;
mod takeover;
mod waiting;
mod why;

// This program uses a part of the fixtures of CollaSets.
#[allow(dead_code)]
#[path = "../collaset/fixtures.rs"]
mod sets;
