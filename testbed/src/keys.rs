//! Labels and names of the server's API, as users write them.
//!
//! These constants repeat what the server has in its own code. A test on the bed therefore notices when the server
//! renames a key that users rely on.

/// Label that opts an object into rules.
pub const CONTROL: &str = "kusionstack.io/control";
/// The only effective value of [`CONTROL`].
pub const CONTROL_VALUE: &str = "true";
/// Label of an available Pod.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Condition behind the readiness gate of a managed Pod.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";
/// Part of the keys of an operation's labels: `FAMILY.podopslifecycle.kusionstack.io/ID`.
pub const LIFECYCLE_DOMAIN: &str = ".podopslifecycle.kusionstack.io/";
/// Beginning of the finalizers that protect Pods from operations.
pub const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/";

/// Key of an operation's label, for example of the family `operating`.
#[must_use]
pub fn operation(family: &str, id: &str) -> String {
    format!("{family}{LIFECYCLE_DOMAIN}{id}")
}
