//! Pure decisions: no I/O, no clock, no async, no kube client. Time and identity are parameters.

pub mod announced;
pub mod collaset;
pub mod deletion;
pub mod digest;
pub mod disruptionbudget;
pub mod explain;
pub mod footprint;
pub mod grace;
pub mod inplace;
pub mod lifecycle;
pub mod ownership;
pub mod pod;
pub mod quantity;
pub mod rules;
pub mod shared;
pub mod wording;
