//! What this replica knows of the cluster, and how it writes to it.

mod absent;
pub mod clock;
pub mod disruptionbudgets;
pub mod events;
pub mod failure;
pub mod identity;
pub mod index;
pub mod lease;
mod owners;
pub mod path;
pub mod pods;
mod position;
pub mod presence;
pub mod pulse;
pub mod queue;
pub mod registration;
pub mod replicasets;
pub mod rulestore;
pub mod selected;
pub mod sizes;
pub mod sources;
pub mod tally;
pub mod timeline;
pub mod unread;
pub mod watch;
pub mod workloads;
