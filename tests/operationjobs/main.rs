//! OperationJobs on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod fixtures;
mod interrupted;
mod large;
mod replace;
mod restart;
mod third_party;
mod why;

// This program uses a part of the fixtures of CollaSets.
#[allow(dead_code)]
#[path = "../collaset/fixtures.rs"]
mod sets;
