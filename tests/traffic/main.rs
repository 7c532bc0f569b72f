//! ResourceConsist on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod addresses;
mod bed;
mod black_box;
mod credentials;
mod doubles;
mod earlier_record;
mod employers;
mod endpoints;
mod faults;
mod fixtures;
mod graceful;
mod hanging;
mod large_pods;
mod late_effects;
mod left_pods;
mod move_begins;
mod move_ends;
mod move_returns;
mod moves;
#[allow(dead_code)]
#[path = "../collaset/admission_policies.rs"]
mod policies;
mod ports;
mod refusals;
mod removed_adapter;
mod rewriting;
mod selector;
mod stale_protections;
mod taken_back;
mod undone_in_a_move;
mod uninstall;
mod unprotected;
mod weaknesses;
mod why;

mod slb;

// This program uses a part of the fixtures of CollaSets.
#[allow(dead_code)]
#[path = "../collaset/fixtures.rs"]
mod sets;

/// The process that stands in for a container.
#[test]
fn pod_process() {
    testbed::containers::serve_if_asked();
}
