//! Tests of the plan of a PodDecoration.
#![allow(clippy::unwrap_used, clippy::panic)]

mod choice;
mod conditions;
mod member_discovery;
mod plan;
mod random_walks;
mod world;
