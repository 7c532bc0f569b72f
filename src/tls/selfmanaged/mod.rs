//! Certificates that the server issues itself: an authority and a leaf in one Secret. The authority is published as
//! `caBundle`.
//!
//! [`next_step`] says what the Secret needs, and [`apply_step`] issues it. [`SelfManaged`] writes the Secret, publishes
//! the authority, and only then serves the leaf. Replicas need no leader: the first replica succeeds with its
//! compare-and-swap, and the others use the Secret that it wrote.
//!
//! A change of authority has three steps, with at least [`RenewalPolicy::settle`] between them: the new authority is
//! published beside the old one, then it signs a leaf, then the old authority is removed. So the leaf of every replica
//! is trusted at any time.

pub use self::issue::{IssueError, apply_step};
pub use self::material::Material;
pub use self::names::{CertificateNames, NameError};
pub use self::renewal::{RenewalPolicy, RenewalStep, next_step};
pub use self::request::SyncError;
pub use self::sync::{SelfManaged, SyncTarget};

pub(crate) mod client_config;
mod issue;
mod material;
mod names;
mod renewal;
mod request;
pub(crate) mod segments;
mod sync;
#[cfg(test)]
mod tests;
