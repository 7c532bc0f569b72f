//! The object whose traffic is managed.

use std::collections::BTreeMap;

use serde_json::Value;

/// An object whose traffic is managed, as the API server stores it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Employer {
    /// Kind, for example `Service`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// `spec`, as JSON.
    pub spec: Value,
    /// Whether the object is being deleted. Then no Pod should be a member.
    pub deleting: bool,
}

/// A kind of objects that can be employers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EmployerKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version of the API.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural name in lower case, as in the paths of the API.
    pub plural: String,
}

impl EmployerKind {
    /// Services of the core group.
    pub fn service() -> Self {
        EmployerKind {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Service".to_owned(),
            plural: "services".to_owned(),
        }
    }

    /// `apiVersion` of its objects: `v1`, or `group/version`.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Where the API server serves its version: `/api/v1`, or `/apis/group/version`.
    pub fn api_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}
