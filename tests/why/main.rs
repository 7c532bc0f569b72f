//! Answers to "Why is my Pod waiting?": the output of `operating why` by golden files, the kubectl plugin and Events on
//! a real API server, and `operating explain`, which decides a review without a cluster. Also the completion of command
//! lines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod completion;
mod explain_command;
mod golden;
mod golden_jobs;
mod golden_services;
mod golden_workloads;
mod plugin;
mod rules_without_effect;
mod wait_events;
mod workloads;
