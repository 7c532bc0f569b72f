//! The documents are correct: every link has a target, a real API server accepts the manifests, and the commands of the
//! examples work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod first_steps;
mod kubectl_page;
mod links;
mod manifests;
mod markdown;
mod operator_go;
mod outage;
mod plane;
