//! A cluster that Kuperator ran, and that Operating takes over while operations are in flight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod idle;
mod store;
mod taken_over;
