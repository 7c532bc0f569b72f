//! Checks that the CRD schemas cannot express, as pure functions that admission calls. Every error names the
//! field, the value and the remedy.

pub mod collaset;
pub mod endpoint;
mod errors;
pub mod operationjob;
pub mod poddecoration;
pub mod podtransitionrule;
pub mod resourcecontext;
mod values;

pub use errors::{FieldError, FieldErrors, truncate_value};
