//! Pure decisions: no I/O, no clock, no async, no kube client. Time and identity are parameters.

pub mod lifecycle;
pub mod pod;
