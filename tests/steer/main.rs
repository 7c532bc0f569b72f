//! The commands with which users steer rollouts and operations, run as the plugin of the real kubectl on a real API
//! server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod drain;
mod lifecycle;
mod rollout;
