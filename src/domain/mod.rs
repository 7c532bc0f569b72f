//! Pure decisions: no I/O, no clock, no async, no kube client. Time and identity are parameters.

pub mod announced_disruption;
pub mod collaset;
pub mod deletion;
pub mod diagnosis;
pub mod digest;
pub mod disruptionbudget;
pub mod footprint;
pub mod grace_delete;
pub mod inplace;
pub mod lifecycle;
pub mod messages;
pub mod ownership;
pub mod pod;
pub mod quantity;
pub mod rules;
pub mod shared;
