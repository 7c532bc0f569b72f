//! Reads rules that do not fit the types. A newer version of the server may have stored them, under
//! definitions of its own. A rule that this version cannot read must not be lost: the Pods that it protects
//! would be unprotected.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use serde_path_to_error::{Path, Segment, Track};

use super::{Kind, Ledger, PodTransitionRule, PodTransitionRuleSpec, PodTransitionRuleStatus};
use crate::api::validation::FieldError;

/// The readable part of a spec that this version cannot read.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadableRule {
    /// The field and the remedy.
    pub fault: FieldError,
    /// Whether one of the rules may limit how many Pods are unavailable: a rule that is neither a labelCheck
    /// nor a webhook rule.
    pub may_limit: bool,
}

const UNREADABLE_REMEDY: &str =
    "run the version that the rule is written for, or write the rule for this version";

impl Serialize for PodTransitionRuleSpec {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        PodTransitionRuleSpec::serialize(self, s)
    }
}

impl<'de> Deserialize<'de> for PodTransitionRuleSpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Some(stored) = Option::<Value>::deserialize(d)? else {
            return Ok(Self::default());
        };
        let mut track = Track::new();
        let tracked = serde_path_to_error::Deserializer::new(&stored, &mut track);
        let read = PodTransitionRuleSpec::deserialize(tracked);
        Ok(read.unwrap_or_else(|_| PodTransitionRuleSpec {
            // A selector that cannot be read counts as absent, and a rule without a selector applies to all
            // Pods of its namespace.
            selector: Option::<LabelSelector>::deserialize(&stored["selector"]).unwrap_or(None),
            rules: Vec::new(),
            unreadable: Some(UnreadableRule {
                fault: spec_fault(&stored, &track.path()),
                may_limit: may_limit(&stored["rules"]),
            }),
        }))
    }
}

/// The field of the only kind that limits how many Pods are unavailable.
const LIMIT: &str = Kind::FIELDS[0];

/// Whether one of these rules, of any shape, may limit how many Pods are unavailable.
fn may_limit(rules: &Value) -> bool {
    let is_other = |rule: &Value| {
        let mut others = Kind::FIELDS.into_iter().filter(|field| *field != LIMIT);
        others.any(|field| rule.get(field).is_some_and(|kind| !kind.is_null()))
    };
    match rules {
        Value::Null => false,
        Value::Array(rules) => rules
            .iter()
            .any(|rule| !is_other(rule) || !rule[LIMIT].is_null()),
        _ => true,
    }
}

/// Names the field and its type. The error does not quote the value: a URL may contain a password.
fn spec_fault(spec: &Value, path: &Path) -> FieldError {
    let value = path
        .iter()
        .try_fold(spec, |value, segment| match segment {
            Segment::Seq { index } => value.get(index),
            Segment::Map { key } => value.get(key),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .unwrap_or(&Value::Null);
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    let field = match path.iter().len() {
        0 => "spec".to_owned(),
        _ => format!("spec.{path}"),
    };
    // YAML reads true, yes and 1 as no strings.
    let quotes = match value {
        Value::Bool(_) | Value::Number(_) => "if a string is meant, write it in quotes; otherwise ",
        _ => "",
    };
    let problem =
        format!("this version of the server can't read {found} here; {quotes}{UNREADABLE_REMEDY}");
    FieldError::missing_field(field, problem)
}

/// Reads metadata, spec and status separately, for an object that cannot be read as a whole. `None` if not
/// even its name can be read; the API server stores no such object.
pub fn read_rule_by_parts(raw: &str) -> Option<PodTransitionRule> {
    #[derive(Deserialize)]
    struct Parts<'a> {
        metadata: Identity,
        #[serde(borrow, default)]
        spec: Option<&'a RawValue>,
        #[serde(borrow, default)]
        status: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        namespace: String,
        name: String,
        uid: String,
        resource_version: String,
        #[serde(default)]
        generation: Option<i64>,
        #[serde(default)]
        deletion_timestamp: Option<String>,
        #[serde(default)]
        annotations: Option<BTreeMap<String, String>>,
    }
    let Parts {
        metadata,
        spec,
        status,
    } = serde_json::from_str(raw).ok()?;
    let spec = spec.map(|spec| serde_json::from_str(spec.get()));
    let spec = spec.unwrap_or_else(|| Ok(PodTransitionRuleSpec::default()));
    let status = status.map(|status| serde_json::from_str(status.get()));
    let deletion_timestamp = metadata.deletion_timestamp;
    Some(PodTransitionRule {
        metadata: ObjectMeta {
            namespace: Some(metadata.namespace),
            name: Some(metadata.name),
            uid: Some(metadata.uid),
            resource_version: Some(metadata.resource_version),
            generation: metadata.generation,
            annotations: metadata.annotations,
            deletion_timestamp: deletion_timestamp
                .map(|at| Time(at.parse().unwrap_or(Timestamp::UNIX_EPOCH))),
            ..ObjectMeta::default()
        },
        spec: spec.unwrap_or_else(|e| PodTransitionRuleSpec {
            unreadable: Some(UnreadableRule {
                fault: FieldError::missing_field(
                    "spec",
                    format!("this version of the server can't read it ({e}); {UNREADABLE_REMEDY}"),
                ),
                may_limit: true,
            }),
            ..PodTransitionRuleSpec::default()
        }),
        status: status.map(|status| {
            status.unwrap_or_else(|e: serde_json::Error| PodTransitionRuleStatus {
                ledger: Some(Ledger {
                    unreadable: Some(e.to_string()),
                    ..Ledger::default()
                }),
                ..PodTransitionRuleStatus::default()
            })
        }),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn spec(stored: Value) -> PodTransitionRuleSpec {
        serde_json::from_str(&stored.to_string()).unwrap()
    }

    #[test]
    fn unreadable_spec_keeps_selector_and_names_field() {
        let selector = json!({ "matchLabels": { "app": "web" } });
        let with = |rule: Value| json!({ "selector": selector, "rules": [{ "name": "a" }, rule] });
        for (stored, field, found) in [
            (with(json!({ "name": 1 })), "spec.rules[1].name", "a number"),
            (
                with(json!({ "webhook": "http://u:hunter2@host" })),
                "spec.rules[1].webhook",
                "a string",
            ),
            (
                with(
                    json!({ "webhook": { "clientConfig": { "url": ["http://u:hunter2@host"] } } }),
                ),
                "spec.rules[1].webhook.clientConfig.url",
                "a list",
            ),
            (
                with(json!({ "filter": { "labelSelector": true } })),
                "spec.rules[1].filter.labelSelector",
                "a boolean",
            ),
            (with(json!(null)), "spec.rules[1]", "null"),
            (
                json!({ "selector": selector, "rules": {} }),
                "spec.rules",
                "an object",
            ),
        ] {
            let read = spec(stored);
            let fault = read.unreadable.unwrap().fault.to_string();
            let start = format!("{field}: this version of the server can't read {found} here; ");
            assert!(fault.starts_with(&start), "{fault}");
            let is_scalar = ["a boolean", "a number"].contains(&found);
            assert_eq!(fault.contains("write it in quotes"), is_scalar, "{fault}");
            assert!(!fault.contains("hunter2"), "{fault}");
            assert_eq!(serde_json::to_value(read.selector).unwrap(), selector);
            assert!(read.rules.is_empty());
        }
    }

    #[test]
    fn selector_that_cannot_be_read_is_none() {
        for (stored, field) in [
            (
                json!({ "selector": { "matchLabels": { "app": 1 } }, "rules": [] }),
                "spec.selector.matchLabels.app: ",
            ),
            (json!("all"), "spec: "),
        ] {
            let read = spec(stored);
            assert_eq!(read.selector, None);
            let fault = read.unreadable.unwrap().fault.to_string();
            assert!(fault.starts_with(field), "{fault}");
        }
    }

    #[test]
    fn unknown_fields_in_readable_spec_are_accepted() {
        let read =
            spec(json!({ "selector": {}, "newer": 1, "rules": [{ "name": "a", "newer": {} }] }));
        assert_eq!((read.unreadable, read.rules.len()), (None, 1));
        assert_eq!(spec(json!(null)), PodTransitionRuleSpec::default());
    }

    /// Deeper than the recursion limit of a parser.
    fn deep() -> String {
        let (open, close) = (r#"{"f:a":"#.repeat(200), "}".repeat(200));
        format!("{open}1{close}")
    }

    fn whole(metadata: &str, spec: &str, status: &str) -> String {
        format!(
            r#"{{ "metadata": {{ "namespace": "n", "name": "web", "uid": "u", "resourceVersion": "7", "generation": 2{metadata} }},
            "spec": {spec}, "status": {status} }}"#
        )
    }

    #[test]
    fn each_part_that_can_be_read_is_read() {
        let good = r#"{ "selector": {}, "rules": [{ "name": "a" }] }"#;
        let ledger = r#"{ "ledger": { "watermark": "5" } }"#;
        let nested = format!(r#"{{ "selector": {{}}, "rules": {} }}"#, deep());
        let deep_claims = format!(
            r#"{{ "ledger": {{ "watermark": "5", "claims": {} }} }}"#,
            deep()
        );
        let managed = format!(r#", "managedFields": [{{ "fieldsV1": {} }}]"#, deep());
        let terminating = r#", "labels": 1, "deletionTimestamp": "2026-01-01T00:00:00Z""#;
        for (raw, is_spec, is_ledger, is_going) in [
            (whole(&managed, good, ledger), true, true, false),
            (whole(terminating, good, ledger), true, true, true),
            (whole("", &nested, ledger), false, true, false),
            (whole("", good, r#""none""#), true, false, false),
            (whole("", good, &deep_claims), true, false, false),
        ] {
            assert!(
                serde_json::from_str::<PodTransitionRule>(&raw).is_err(),
                "{raw}"
            );
            let rule = read_rule_by_parts(&raw).unwrap();
            let meta = &rule.metadata;
            let identity = [
                &meta.namespace,
                &meta.name,
                &meta.uid,
                &meta.resource_version,
            ];
            assert_eq!(
                identity.map(|text| text.clone().unwrap()),
                ["n", "web", "u", "7"]
            );
            assert_eq!(meta.generation, Some(2));
            assert_eq!(meta.deletion_timestamp.is_some(), is_going);
            assert_eq!(rule.spec.unreadable.is_none(), is_spec, "{raw}");
            assert_eq!(rule.spec.rules.len(), usize::from(is_spec));
            let ledger = rule.status.unwrap().ledger.unwrap();
            assert_eq!(ledger.unreadable.is_none(), is_ledger, "{raw}");
            assert_eq!(ledger.watermark == "5", is_ledger);
        }
        assert!(read_rule_by_parts(r#"{ "metadata": {} }"#).is_none());
    }
}
