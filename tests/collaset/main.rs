//! CollaSets on a real API server, with the rights of the installed service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod admitted;
mod at_rest;
mod cancel;
mod claims;
mod data;
mod delay;
mod deletion;
mod inplace;
mod kept_claims;
mod leader;
mod membership;
mod memory;
mod node_lost;
mod pace;
mod policy;
mod pool;
mod refused;
mod replace;
mod replace_update;
mod requests;
mod rollout;
mod scale;
mod sequence;
mod sets;
mod steps;
mod takeover;
mod tools;
mod trouble;
mod truth;
mod update;
mod walks;
mod write_faults;
