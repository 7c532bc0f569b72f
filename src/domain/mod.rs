//! Pure decisions: no I/O, no clock, no async, no kube client. Time and identity are parameters.

pub mod budget_holders;
pub mod collaset;
pub mod deletion;
pub mod diagnosis;
pub mod digest;
pub mod disruptionbudget;
pub mod grace_delete;
pub mod inplace;
pub mod interner;
pub mod lifecycle;
pub mod messages;
pub mod ownership;
pub mod pending_disruption;
pub mod pod;
pub mod pod_size;
pub mod quantity;
pub mod rules;
