//! Which marks of an employer a Pod has, and the patches that change them.
//!
//! An employer has two marks on a Pod. The *expectation* is an entry in the annotation
//! `pod.kusionstack.io/available-conditions`: the Pod is not available before it has the finalizer. The *protection* is
//! this finalizer: traffic is on, and no operation may begin. A Pod that serves already gets both in one write, so that
//! it does not lose its availability in between.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::names::EmployerName;
use crate::api::keys;
use crate::domain::lifecycle::ExpectedFinalizers;
use crate::domain::pod::Pod;

/// The marks of one employer on a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodMarks {
    /// Whether the annotation expects the finalizer.
    pub expected: bool,
    /// Whether the Pod has the finalizer, and it belongs to this employer.
    pub protected: bool,
}

impl PodMarks {
    /// The marks of `employer` on `pod`.
    pub fn of(employer: &EmployerName, pod: &Pod) -> PodMarks {
        let (key, finalizer) = (employer.key(), employer.finalizer());
        let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
        let of_finalizer = |(of, _): &(&str, &str)| *of == key;
        let entries = || expected.entries().filter(|(_, f)| *f == finalizer);
        // Another employer of the same name has the same finalizer.
        let is_ours = entries().next().is_none() || entries().any(|entry| of_finalizer(&entry));
        PodMarks {
            // An entry with another finalizer belongs to another program.
            expected: entries().any(|entry| of_finalizer(&entry)),
            protected: is_ours && pod.metadata.finalizers.contains(&finalizer),
        }
    }

    /// Whether the Pod has any mark.
    pub fn any(self) -> bool {
        self.expected || self.protected
    }
}

/// The other employer that has the same finalizer on this Pod, if there is one: its key.
pub fn sharing_employer(employer: &EmployerName, pod: &Pod) -> Option<String> {
    let (key, finalizer) = (employer.key(), employer.finalizer());
    let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
    let other = expected
        .entries()
        .find(|(k, f)| *f == finalizer && *k != key);
    other.map(|(key, _)| key.to_owned())
}

/// The employers that the annotation of a Pod names.
pub fn expecting_employers(pod: &Pod) -> Vec<EmployerName> {
    let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
    let named = expected
        .entries()
        .map(|(key, _)| EmployerName::from_key(key));
    let own = |name: &EmployerName| name.namespace == pod.metadata.namespace;
    named.flatten().filter(own).collect()
}

/// The employers that have both of the following in the annotation of a Pod: an entry, and in it their own finalizer. A
/// program that is not ResourceConsist may use another finalizer for the same object.
pub fn marking_employers(pod: &Pod) -> Vec<EmployerName> {
    let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
    let marking = expected
        .entries()
        .filter_map(|entry| marking_employer(entry, pod));
    marking.collect()
}

/// The employers that have both marks on a Pod, and share their finalizer with no other entry. A tenant can write
/// thousands of entries, so this function reads the annotation once.
pub fn protecting_employers(pod: &Pod) -> Vec<EmployerName> {
    let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
    let mut entries_of = BTreeMap::<&str, usize>::new();
    for (_, finalizer) in expected.entries() {
        *entries_of.entry(finalizer).or_default() += 1;
    }
    let finalizers = pod.metadata.finalizers.iter().map(String::as_str);
    let finalizers: BTreeSet<&str> = finalizers.collect();
    let sole = |(_, finalizer): &(&str, &str)| {
        finalizers.contains(finalizer) && entries_of.get(finalizer) == Some(&1)
    };
    let sole = expected.entries().filter(sole);
    sole.filter_map(|entry| marking_employer(entry, pod))
        .collect()
}

/// The employer of an entry: a key and a finalizer. `None` if the entry is that of another program.
fn marking_employer((key, finalizer): (&str, &str), pod: &Pod) -> Option<EmployerName> {
    let name = EmployerName::from_key(key)?;
    let own = name.namespace == pod.metadata.namespace && name.finalizer() == finalizer;
    own.then_some(name)
}

/// The change of a Pod's `metadata` that gives it these marks, for a merge patch on condition of the resourceVersion.
/// `None` if nothing changes, or if the annotation can't be read. A Pod that is being deleted gets no mark, because the
/// API server refuses it.
pub fn change(employer: &EmployerName, pod: &Pod, wanted: PodMarks) -> Option<Value> {
    let present = PodMarks::of(employer, pod);
    let mut metadata = Map::new();
    let terminating = pod.is_terminating();
    if wanted.protected != present.protected && !(wanted.protected && terminating) {
        let finalizer = employer.finalizer();
        let mut finalizers = pod.metadata.finalizers.clone();
        match wanted.protected {
            true => finalizers.push(finalizer),
            false => finalizers.retain(|f| *f != finalizer),
        }
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    if wanted.expected != present.expected && !(wanted.expected && terminating) {
        let text = pod.annotation(keys::AVAILABLE_CONDITIONS);
        // What can't be read is left to its writer, and does not keep the finalizer.
        if let Some(text) = annotation_with(employer, text, wanted.expected) {
            let annotation = json!({ (keys::AVAILABLE_CONDITIONS): text });
            metadata.insert("annotations".to_owned(), annotation);
        }
    }
    (!metadata.is_empty()).then_some(Value::Object(metadata))
}

/// The annotation of a new Pod with the entry of the employer. `None` if nothing is to be added: the annotation has the
/// entry, can't be read, or expects the same finalizer of another employer of this name.
pub fn annotation_expecting(employer: &EmployerName, text: Option<&str>) -> Option<String> {
    let finalizer = employer.finalizer();
    let expected = text.map(serde_json::from_str::<Value>).transpose().ok()?;
    let entries = expected
        .as_ref()
        .and_then(|value| value["expectedFinalizers"].as_object());
    let is_expected = |entries: &Map<String, Value>| entries.values().any(|f| *f == finalizer);
    if entries.is_some_and(is_expected) {
        return None;
    }
    match annotation_with(employer, text, true)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The annotation with or without the entry of the employer; `null` if nothing is left of it. `None` if the annotation
/// can't be read. All other content stays.
pub fn annotation_with(
    employer: &EmployerName,
    text: Option<&str>,
    expected: bool,
) -> Option<Value> {
    const ENTRIES: &str = "expectedFinalizers";
    let mut object: Map<String, Value> = match text {
        Some(text) => serde_json::from_str(text).ok()?,
        None => Map::new(),
    };
    let entries = object.entry(ENTRIES).or_insert_with(|| json!({}));
    if entries.is_null() {
        *entries = json!({});
    }
    let entries = entries.as_object_mut()?;
    match expected {
        true => {
            entries.insert(employer.key(), json!(employer.finalizer()));
        }
        false => {
            entries.remove(&employer.key());
        }
    }
    if entries.is_empty() {
        object.remove(ENTRIES);
    }
    match object.is_empty() {
        true => Some(Value::Null),
        false => Some(Value::String(Value::Object(object).to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn web() -> EmployerName {
        EmployerName::new("Service", "shop", "web")
    }

    fn pod(conditions: Option<&str>, finalizers: &[&str]) -> Pod {
        let annotations = conditions.map(|text| json!({ (keys::AVAILABLE_CONDITIONS): text }));
        serde_json::from_value(json!({ "metadata": {
            "namespace": "shop", "name": "web-0", "uid": "u", "resourceVersion": "5",
            "annotations": annotations, "finalizers": finalizers,
        } }))
        .unwrap()
    }

    fn marks(expected: bool, protected: bool) -> PodMarks {
        PodMarks {
            expected,
            protected,
        }
    }

    #[test]
    fn serving_pod_gets_both_marks_in_one_write() {
        let finalizer = web().finalizer();
        let change = change(&web(), &pod(None, &["other"]), marks(true, true)).unwrap();
        assert_eq!(change["finalizers"], json!(["other", finalizer]));
        let text = change["annotations"][keys::AVAILABLE_CONDITIONS]
            .as_str()
            .unwrap();
        let text: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            text,
            json!({ "expectedFinalizers": { "Service/shop/web": finalizer } })
        );
    }

    #[test]
    fn entries_of_others_stay() {
        let others = r#"{"expectedFinalizers":{"Slb/shop/x":"prot/x"},"later":1}"#;
        let with = change(&web(), &pod(Some(others), &[]), marks(true, false)).unwrap();
        let text = with["annotations"][keys::AVAILABLE_CONDITIONS]
            .as_str()
            .unwrap();
        let marked = pod(Some(text), &[]);
        assert_eq!(PodMarks::of(&web(), &marked), marks(true, false));
        let without = change(&web(), &marked, marks(false, false)).unwrap();
        assert_eq!(without["annotations"][keys::AVAILABLE_CONDITIONS], others);
    }

    #[test]
    fn last_entry_takes_the_annotation_with_it() {
        let finalizer = web().finalizer();
        let text = json!({ "expectedFinalizers": { "Service/shop/web": finalizer } }).to_string();
        let marked = pod(Some(&text), &[&finalizer, "other"]);
        let change = change(&web(), &marked, marks(false, false)).unwrap();
        assert_eq!(
            change["annotations"][keys::AVAILABLE_CONDITIONS],
            Value::Null
        );
        assert_eq!(change["finalizers"], json!(["other"]));
    }

    #[test]
    fn nothing_changes_twice_and_malformed_text_is_left_alone() {
        let finalizer = web().finalizer();
        let text = json!({ "expectedFinalizers": { "Service/shop/web": finalizer } }).to_string();
        let marked = pod(Some(&text), &[&finalizer]);
        assert_eq!(change(&web(), &marked, marks(true, true)), None);
        assert_eq!(
            change(&web(), &pod(Some("{"), &[]), marks(true, false)),
            None
        );
        let null = r#"{"expectedFinalizers":null}"#;
        assert!(change(&web(), &pod(Some(null), &[]), marks(true, false)).is_some());
    }

    #[test]
    fn new_pod_expects_a_finalizer_once() {
        let text = annotation_expecting(&web(), None).unwrap();
        assert_eq!(annotation_expecting(&web(), Some(&text)), None);
        let gateway = EmployerName::new("Gateway", "shop", "web");
        assert_eq!(
            annotation_expecting(&gateway, Some(&text)),
            None,
            "the same finalizer"
        );
        let api = EmployerName::new("Service", "shop", "api");
        assert!(
            annotation_expecting(&api, Some(&text))
                .unwrap()
                .contains("shop/web")
        );
        assert_eq!(annotation_expecting(&web(), Some("{")), None);
    }

    #[test]
    fn malformed_annotation_does_not_keep_the_finalizer() {
        let protected = pod(Some("{"), &[&web().finalizer()]);
        let change = change(&web(), &protected, marks(true, false)).unwrap();
        assert_eq!(change, json!({ "finalizers": [] }));
    }

    #[test]
    fn entry_of_another_program_is_not_ours() {
        let other = r#"{"expectedFinalizers":{"Service/shop/web":"prot/other"}}"#;
        let marked = pod(Some(other), &["prot/other"]);
        assert_eq!(PodMarks::of(&web(), &marked), marks(false, false));
        assert_eq!(change(&web(), &marked, marks(false, false)), None);
    }

    #[test]
    fn deleted_pod_gets_no_mark_but_loses_it() {
        let finalizer = web().finalizer();
        let mut gone = pod(None, &[&finalizer]);
        gone.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        let released = change(&web(), &gone, marks(false, false)).unwrap();
        assert_eq!(released, json!({ "finalizers": [] }));
        gone.metadata.finalizers.clear();
        assert_eq!(change(&web(), &gone, marks(true, true)), None);
    }

    #[test]
    fn finalizer_of_employer_of_same_name_is_not_ours() {
        let finalizer = web().finalizer();
        let text = json!({ "expectedFinalizers": { "Gateway/shop/web": finalizer } }).to_string();
        let marked = pod(Some(&text), &[&finalizer]);
        assert_eq!(PodMarks::of(&web(), &marked), marks(false, false));
        assert_eq!(
            sharing_employer(&web(), &marked).unwrap(),
            "Gateway/shop/web"
        );
        let gateway = EmployerName::new("Gateway", "shop", "web");
        assert_eq!(PodMarks::of(&gateway, &marked), marks(true, true));
        assert_eq!(expecting_employers(&marked), std::slice::from_ref(&gateway));
        assert_eq!(marking_employers(&marked), [gateway]);
        let slb = r#"{"expectedFinalizers":{"Service/shop/web":"prot/slb"}}"#;
        assert_eq!(marking_employers(&pod(Some(slb), &[])), []);
    }

    #[test]
    fn employer_protects_with_both_marks_and_alone() {
        let finalizer = web().finalizer();
        let entries = |keys: &[&str]| {
            let entries = keys.iter().map(|key| (*key, json!(finalizer)));
            let entries: Map<String, Value> = entries.map(|(k, f)| (k.to_owned(), f)).collect();
            json!({ "expectedFinalizers": entries }).to_string()
        };
        let protecting = |keys: &[&str], finalizers: &[&str]| {
            protecting_employers(&pod(Some(&entries(keys)), finalizers))
        };
        assert_eq!(protecting(&["Service/shop/web"], &[&finalizer]), [web()]);
        assert_eq!(protecting(&["Service/shop/web"], &["other"]), []);
        assert_eq!(protecting(&["Service/pay/web"], &[&finalizer]), []);
        assert_eq!(protecting(&["Service/shop/api"], &[&finalizer]), []);
        let both = ["Service/shop/web", "Gateway/shop/web"];
        assert_eq!(protecting(&both, &[&finalizer]), []);
        assert_eq!(protecting_employers(&pod(None, &[&finalizer])), []);
    }
}
