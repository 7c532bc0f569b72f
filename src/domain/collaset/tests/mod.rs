//! Tests that carry out plans in a world of plain objects. [`world`] plays the API server, the kubelet and the
//! lifecycle, with as little code as shows their effect on a plan.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod availability;
mod blocked_leaving;
mod decorations;
mod in_place_resize;
mod inclusion_refusals;
mod instances;
mod left_out;
mod orphan_adoption;
mod pool_recovery;
mod pvc_retention;
mod random_walks;
mod reconcile;
mod refused_deletions;
mod regressions;
mod requested_deletions;
mod rollout;
mod rollout_waits;
mod small_pool;
mod status_messages;
mod update_slots;
mod wait_messages;
mod world;
