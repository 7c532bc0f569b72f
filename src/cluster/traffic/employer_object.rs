//! The JSON form of an employer.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use traffic::{Employer, EmployerKind};

use crate::api::keys;
use crate::cluster::objects::ObjectKey;
use crate::domain::traffic::names::is_clean_finalizer;

/// An annotation that repeats the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An employer as the API server sends it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EmployerObject {
    metadata: Metadata,
    spec: Value,
    #[serde(deserialize_with = "lenient_status")]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    generation: i64,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

/// Conditions of another form are not ours.
fn lenient_status<'de, D: Deserializer<'de>>(d: D) -> Result<Status, D::Error> {
    let status = Option::<Value>::deserialize(d)?.unwrap_or_default();
    Ok(serde_json::from_value(status).unwrap_or_default())
}

/// What is known of an employer besides what adapters see.
#[derive(Clone, Debug)]
pub struct EmployerState {
    /// What adapters see.
    pub employer: Employer,
    /// resourceVersion.
    pub version: String,
    /// `metadata.generation`; 0 if the kind has none.
    pub generation: i64,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// The conditions of the status.
    pub conditions: Vec<Condition>,
}

impl EmployerObject {
    /// The identity and version in the cache.
    pub fn object_key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            version: self.metadata.resource_version.parse().unwrap_or(0),
            controller: String::new(),
        }
    }

    /// Whether its traffic is to be managed: it has the control label.
    pub fn is_managed(&self) -> bool {
        let label = self.metadata.labels.get(keys::CONTROL);
        label.is_some_and(|value| value == keys::CONTROL_VALUE)
    }

    /// Whether its traffic is to be managed, or was, so that something of ResourceConsist may have to be removed from it.
    pub fn concerns_traffic(&self) -> bool {
        let metadata = &self.metadata;
        let mut finalizers = metadata.finalizers.iter();
        self.is_managed()
            || finalizers.any(|f| is_clean_finalizer(f))
            || keys::CONSIST_WRITTEN
                .iter()
                .any(|key| metadata.annotations.contains_key(*key))
    }

    /// The fields that are kept.
    pub fn into_state(self, kind: &EmployerKind) -> EmployerState {
        let mut annotations = self.metadata.annotations;
        annotations.remove(LAST_APPLIED);
        EmployerState {
            employer: Employer {
                kind: kind.kind.clone(),
                namespace: self.metadata.namespace,
                name: self.metadata.name,
                uid: self.metadata.uid,
                labels: self.metadata.labels,
                annotations,
                spec: self.spec,
                deleting: self.metadata.deletion_timestamp.is_some(),
            },
            version: self.metadata.resource_version,
            generation: self.metadata.generation,
            finalizers: self.metadata.finalizers,
            conditions: self.status.conditions,
        }
    }
}
