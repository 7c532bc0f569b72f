//! Fields of a status that the API server did not store as they were written. A CustomResourceDefinition of another
//! version drops fields that it does not know, and the same patch would be sent again and again.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::api::operationjob::OperationJobStatus;
use crate::controllers::status_patch::status_patch;

/// The fields, with the value that was written, and the value that was stored instead. `None` if the field was dropped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnstoredFields(BTreeMap<String, (Value, Option<Value>)>);

impl UnstoredFields {
    /// Compares the wanted status with the status in the answer of the API server.
    pub fn between(wanted: &OperationJobStatus, stored: &OperationJobStatus) -> UnstoredFields {
        let patch = status_patch(Some(stored), wanted).unwrap_or_default();
        let (written, stored) = (fields(wanted), fields(stored));
        let unstored = patch.into_iter().map(|(name, _)| {
            let value = written.get(&name).cloned().unwrap_or_default();
            let stored = stored.get(&name).cloned();
            (name, (value, stored))
        });
        UnstoredFields(unstored.collect())
    }

    /// Whether a patch writes nothing that could be stored: each of its fields is dropped, or was written with the same
    /// value before.
    pub fn cover(
        &self,
        patch: &Map<String, Value>,
        wanted: &OperationJobStatus,
        stored: &OperationJobStatus,
    ) -> bool {
        let (wanted, stored) = (fields(wanted), fields(stored));
        patch.keys().all(|name| {
            let Some((written, instead)) = self.0.get(name) else {
                return false;
            };
            let is_repeated = wanted.get(name).unwrap_or(&Value::Null) == written;
            stored.get(name) == instead.as_ref() && (instead.is_none() || is_repeated)
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a user must know about the fields.
    pub fn describe(&self) -> String {
        let names = self.0.keys().map(String::as_str);
        let names = names.collect::<Vec<_>>().join(", ");
        format!(
            "The API server does not store these fields of the status as they are written: {names}. The \
             CustomResourceDefinition may be of another version: run `operating crds | kubectl apply -f -`. Otherwise find \
             the webhook that changes the status."
        )
    }
}

fn fields(status: &OperationJobStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}
