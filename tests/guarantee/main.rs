//! The guarantee on a real API server: three replicas behind one URL, with the rights of their service account only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apiserver_faults;
mod apply;
mod at_once;
mod bed;
mod bypass;
mod counting;
mod dead_connections;
mod deleted_sets;
mod disruption_budgets;
mod drain;
mod dry_run;
#[allow(dead_code)] // some of it is for the tests of rules alone
#[path = "../rules/server.rs"]
mod endpoint;
mod entering;
mod evictions;
mod faults;
mod foreign_crd;
mod forged_calls;
mod forged_owners;
mod in_place;
mod lifecycle;
mod made_again;
mod mark;
mod missed;
mod moments;
mod never_held;
mod newer_rules;
mod node_restriction;
mod outside;
mod owners;
mod pod_writes;
mod ready_again;
mod renamed;
mod restarts;
mod retries;
mod rollouts;
mod rules;
mod seen;
mod shared_account;
mod skipped_rules;
mod slow_kubelet;
mod storm;
mod targets;
mod tightened;
mod time_travel;
mod unhealthy;
