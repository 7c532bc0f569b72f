//! A cluster that Kuperator ran, and that Operating takes over while operations are in flight.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod derived;
mod fixture;
mod idle;
mod in_flight;
mod kuperator;
mod manifests;
mod store;
mod switch;
mod taken_over;
mod unblock;

// This program uses a part of the fixtures of CollaSets.
#[allow(dead_code)]
#[path = "../collaset/fixtures.rs"]
mod sets;
