//! What the schemas cannot say, as pure functions that admission asks. Every error names the field, the value and the
//! remedy.

mod endpoint;
mod errors;
pub mod podtransitionrule;

pub use errors::{FieldError, FieldErrors};
