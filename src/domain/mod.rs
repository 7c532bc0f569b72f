//! Pure decisions: no I/O, no clock, no async, no kube client. Time and identity are parameters.

pub mod budget_holders;
pub mod collaset;
pub mod decoration;
pub(crate) mod deletion;
pub mod diagnosis;
pub mod digest;
pub(crate) mod disruption_budget;
pub(crate) mod drain;
pub(crate) mod grace_delete;
pub mod inplace;
pub(crate) mod interner;
pub mod lifecycle;
pub(crate) mod messages;
pub(crate) mod not_ready;
pub mod operationjob;
pub(crate) mod ownership;
pub(crate) mod pending_disruption;
pub mod pod;
pub(crate) mod pod_size;
pub mod quantity;
pub mod rules;
pub(crate) mod standard_conditions;
pub mod traffic;
