//! Walks through random changes of Pods, faults of the load balancer and changes of the leader, against a model of a
//! load balancer; and single cases.
#![allow(clippy::unwrap_used, clippy::panic)]

mod absence;
mod balancer;
mod cases;
mod chain;
mod checks;
mod disturb;
mod fruitless;
mod model;
mod moves;
mod pace;
mod port_changes;
mod random;
mod reads;
mod scripted;
mod settled;
mod turned;
mod walks;
mod world;
