//! Labels and names of the server's API, as users write them.
//!
//! These constants repeat what the server has in its own code. A test on the bed therefore notices when the server
//! renames a key that users rely on.

/// Label that puts an object under rules.
pub const CONTROL: &str = "kusionstack.io/control";
/// The only value of [`CONTROL`] that counts.
pub const CONTROL_VALUE: &str = "true";
/// Label of a Pod that serves.
pub const SERVICE_AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Condition behind the readiness gate of a managed Pod.
pub const SERVICE_READY: &str = "pod.kusionstack.io/service-ready";
/// What the labels of an operation have in their keys: `FAMILY.podopslifecycle.kusionstack.io/ID`.
pub const LIFECYCLE_DOMAIN: &str = ".podopslifecycle.kusionstack.io/";

/// Key of an operation's label, for example of the family `operating`.
#[must_use]
pub fn operation(family: &str, id: &str) -> String {
    format!("{family}{LIFECYCLE_DOMAIN}{id}")
}
