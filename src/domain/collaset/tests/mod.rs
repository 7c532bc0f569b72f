//! Plans carried out in a world of plain objects: the API server's, the kubelet's and the lifecycle's part is played
//! by [`world`], in as few lines as show what they do to a plan.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod data;
mod found;
mod held_back;
mod instances;
mod left_out;
mod readers_outside;
mod readers_places;
mod readers_pool;
mod readers_rollout;
mod resized;
mod rollout;
mod serving;
mod small_pool;
mod taken_back;
mod told_to_go;
mod told_why;
mod undeleted;
mod walks;
mod words;
mod world;
