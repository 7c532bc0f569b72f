//! Certificates made here: an authority and a leaf in one Secret, the authority published as `caBundle`.
//!
//! [`assess`] says what the Secret needs, [`issue`] makes it, [`SelfManaged`] writes it, publishes it and only then
//! serves it. Replicas need no leader: whoever comes first wins the compare-and-swap and the others take what it wrote.
//!
//! A change of authority takes three steps, each at least [`Policy::settle`] after the other: the new one is published
//! beside the old, then it signs a leaf, then the old one is dropped. So every replica's leaf is trusted at any time.

pub use self::issue::{IssueError, apply_step};
pub use self::material::Material;
pub use self::names::{CertificateNames, NameError};
pub use self::renewal::{RenewalPolicy, RenewalStep, next_step};
pub use self::request::SyncError;
pub use self::sync::{SelfManaged, SyncTarget};

pub mod client_config;
mod issue;
mod material;
mod names;
mod renewal;
mod request;
pub mod segments;
mod sync;
#[cfg(test)]
mod tests;
