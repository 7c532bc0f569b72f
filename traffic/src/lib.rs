//! Keeps the members of load balancers in step with Pods.
//!
//! An *employer* is the object whose traffic is managed, for example a Service. It selects Pods. Each Pod becomes one or
//! more *members* of a load balancer: an address and a port in a group. An [`Adapter`] knows one kind of load balancer.
//! It says which members a Pod has, reads which members are registered, and changes them. It knows nothing of
//! Kubernetes.
//!
//! Everything else is done for it: which Pods should serve now, the differences, the order (off traffic before the Pod
//! may be changed, on traffic before the Pod counts as available), draining, batches, repetition after failures, and
//! the report to the user. [`plan`](mod@plan) decides all of this without I/O.

mod adapter;
mod changes;
mod employer;
mod foreign_text;
mod member;
pub mod plan;
mod pod;
mod service_ports;

pub use adapter::{Adapter, AdapterError, Control, Observation, Settings};
pub use changes::{Applied, Changes};
pub use employer::{Employer, EmployerKind};
pub use foreign_text::{foreign_text, one_line};
pub use member::{Member, MemberKey, Presence, Registration};
pub use pod::{Pod, PodId, PodPort};
pub use service_ports::{ServicePort, service_ports};
