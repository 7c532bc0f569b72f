//! Operating: workloads and a Pod operation lifecycle whose availability rules are held at admission.
//!
//! Layers point one way, each using only those before it:
//! [`api`] → [`domain`] → [`ledger`] → `cluster` → `admission`, `controllers` → `server` → `cli`.
//! `tests/layers.rs` keeps it so.
#![forbid(unsafe_code)]

pub mod admission;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod controllers;
pub mod domain;
pub mod ledger;
pub mod server;
pub mod telemetry;
pub mod tls;
