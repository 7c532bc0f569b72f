//! Kinds of `apps.kusionstack.io/v1alpha1` and the names that live on other objects.
//!
//! Reading is lenient, writing is strict. A type here deserializes whatever the API server may hold (absent and null
//! fields, unknown enum values, unreadable times), because one odd stored object must never stop a watch. What a
//! user may newly write is narrowed by the CRD schemas ([`crd`]) and by admission ([`validation`]).

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
