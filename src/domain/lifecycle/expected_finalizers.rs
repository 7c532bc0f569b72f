//! Finalizers by which cooperators report that traffic is back on (annotation
//! `pod.kusionstack.io/available-conditions`, contract 2.2).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::api::keys;
use crate::domain::pod::Pod;

/// The finalizers that a Pod must have before it is available: `<Kind>/<namespace>/<name>` → finalizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpectedFinalizers {
    #[serde(deserialize_with = "null_as_empty")]
    expected_finalizers: BTreeMap<String, String>,
}

impl ExpectedFinalizers {
    /// Reads the Pod's annotation. Without the annotation, no finalizer is expected.
    ///
    /// # Errors
    /// Why the JSON does not have the form of contract 2.2.
    pub fn from_pod(pod: &Pod) -> Result<ExpectedFinalizers, String> {
        match pod.annotation(keys::AVAILABLE_CONDITIONS) {
            None => Ok(ExpectedFinalizers::default()),
            // The text is parsed as a map first, because serde also accepts an array for a struct.
            Some(text) => serde_json::from_str(text)
                .and_then(|object: Map<String, Value>| {
                    serde_json::from_value(Value::Object(object))
                })
                .map_err(|e| e.to_string()),
        }
    }

    /// The expected finalizers, each with its key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.expected_finalizers.iter();
        entries.map(|(key, finalizer)| (key.as_str(), finalizer.as_str()))
    }

    /// Keys whose finalizer is missing on the Pod.
    pub fn missing_keys<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a str> {
        self.expected_finalizers
            .iter()
            .filter(|(_, finalizer)| !pod.metadata.finalizers.contains(finalizer))
            .map(|(key, _)| key.as_str())
    }

    /// Whether every expected finalizer is on the Pod. False if the annotation is malformed, because then it is unknown
    /// whether traffic is on. [`super::LifecycleStep::problem`] tells the user what to correct.
    pub fn are_met(pod: &Pod) -> bool {
        ExpectedFinalizers::from_pod(pod)
            .is_ok_and(|expected| expected.missing_keys(pod).next().is_none())
    }
}

/// The annotation `text` without the entries `keys` of `expectedFinalizers`. All other content stays unchanged. `None`
/// if the text has none of these entries or is malformed.
pub(super) fn without_entries(text: &str, keys: &[String]) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    let entries = value.get_mut("expectedFinalizers")?.as_object_mut()?;
    let before = entries.len();
    entries.retain(|key, _| !keys.contains(key));
    (entries.len() < before).then(|| value.to_string())
}

fn null_as_empty<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(annotation: &str, finalizers: &[&str]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata
            .annotations
            .insert(keys::AVAILABLE_CONDITIONS.to_owned(), annotation.to_owned());
        pod.metadata.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
        pod
    }

    #[test]
    fn met_when_every_finalizer_is_there() {
        let two = r#"{"expectedFinalizers":{"Service/ns/a":"prot/a","Service/ns/b":"prot/b"}}"#;
        assert!(ExpectedFinalizers::are_met(&pod(
            two,
            &["prot/a", "prot/b", "other"]
        )));
        let half = pod(two, &["prot/a"]);
        assert!(!ExpectedFinalizers::are_met(&half));
        assert_eq!(
            ExpectedFinalizers::from_pod(&half)
                .unwrap()
                .missing_keys(&half)
                .collect::<Vec<_>>(),
            ["Service/ns/b"]
        );
    }

    #[test]
    fn no_expected_finalizers_are_met() {
        for text in [
            "{}",
            r#"{"expectedFinalizers":null}"#,
            r#"{"expectedFinalizers":{},"other":1}"#,
        ] {
            assert!(ExpectedFinalizers::are_met(&pod(text, &[])), "{text}");
        }
        assert!(ExpectedFinalizers::are_met(&Pod::default()));
    }

    #[test]
    fn malformed_expectations_are_never_met() {
        for text in [
            "",
            "[]",
            "{",
            r#"{"expectedFinalizers":{"Service/ns/a":1}}"#,
            r#"{"expectedFinalizers":[]}"#,
        ] {
            assert!(!ExpectedFinalizers::are_met(&pod(text, &[])), "{text}");
        }
    }

    #[test]
    fn dirty_entries_are_dropped_and_the_rest_is_kept() {
        let text =
            r#"{"expectedFinalizers":{"Service/ns/a":"x","Slb/ns/b":"y"},"later":{"field":1}}"#;
        let dropped = super::super::LifecycleStep::drop_dirty_patch(
            &pod(text, &[]),
            &["Service/ns/a".to_owned()],
        )
        .unwrap();
        let annotation = dropped
            .pointer("/metadata/annotations/pod.kusionstack.io~1available-conditions")
            .unwrap();
        assert_eq!(
            annotation,
            r#"{"expectedFinalizers":{"Slb/ns/b":"y"},"later":{"field":1}}"#
        );
        assert_eq!(
            without_entries(text, &["Service/ns/other".to_owned()]),
            None
        );
        assert_eq!(without_entries("{", &[]), None);
        assert_eq!(
            super::super::LifecycleStep::drop_dirty_patch(&Pod::default(), &[]),
            None
        );
    }
}
