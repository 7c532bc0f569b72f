//! Kinds of `apps.kusionstack.io/v1alpha1`, and names of labels, annotations, finalizers and conditions on
//! other objects.
//!
//! Reading is lenient, writing is strict. The types deserialize every object that the API server may hold
//! (absent and null fields, unknown enum values, times that cannot be parsed), because one invalid stored
//! object must never stop a watch. The CRD schemas ([`crd`]) and admission ([`validation`]) restrict what a
//! user may newly write.
//!
//! # Example
//!
//! ```
//! use operating::api::podtransitionrule::PodTransitionRule;
//! use operating::api::validation::podtransitionrule::validate;
//!
//! let text = "
//! apiVersion: apps.kusionstack.io/v1alpha1
//! kind: PodTransitionRule
//! metadata: { name: web, namespace: shop }
//! spec:
//!   selector: { matchLabels: { app: web } }
//!   rules:
//!     - name: availability
//!       availablePolicy: { maxUnavailableValue: 30%, unhealthyPodPolicy: Never }
//! ";
//! let mut rule: PodTransitionRule = serde_norway::from_str(text)?;
//! let errors = validate(&rule.spec);
//! assert_eq!(
//!     errors.to_string(),
//!     "spec.rules[0].availablePolicy.unhealthyPodPolicy: \"Never\": must be AlwaysAllow or IfHealthyBudget"
//! );
//!
//! let policy = rule.spec.rules[0].available_policy.as_mut();
//! policy.expect("the rule has a policy").unhealthy_pod_policy = None;
//! assert!(validate(&rule.spec).is_empty());
//! # Ok::<(), serde_norway::Error>(())
//! ```

pub mod collaset;
pub mod crd;
pub mod defaults;
pub mod endpoint_protocol;
pub mod field_path;
pub mod int_or_percent;
pub mod keys;
pub(crate) mod labels;
mod lenient;
pub mod operationjob;
pub mod poddecoration;
pub mod podtransitionrule;
pub(crate) mod reserved_labels;
pub mod resourcecontext;
mod schema;
pub mod selector;
pub mod size_limits;
pub(crate) mod url_encoding;
pub mod validation;
