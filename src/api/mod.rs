//! Kinds of `apps.kusionstack.io/v1alpha1`, and names of labels, annotations, finalizers and conditions on
//! other objects.
//!
//! Reading is lenient, writing is strict. The types deserialize every object that the API server may hold
//! (absent and null fields, unknown enum values, times that cannot be parsed), because one invalid stored
//! object must never stop a watch. The CRD schemas ([`crd`]) and admission ([`validation`]) restrict what a
//! user may newly write.

pub mod collaset;
pub mod crd;
pub mod defaults;
pub mod endpoint_protocol;
pub mod field_path;
pub mod int_or_percent;
pub mod keys;
pub mod labels;
mod lenient;
pub mod operationjob;
pub mod poddecoration;
pub mod podtransitionrule;
pub mod reserved_labels;
pub mod resourcecontext;
mod schema;
pub mod selector;
pub mod size_limits;
pub mod validation;
