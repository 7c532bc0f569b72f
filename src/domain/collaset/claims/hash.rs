//! Hash of a claim template, the same that Kuperator has put on claims (contract 6.8).

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::domain::collaset::core_v1::{CLAIM, go_json};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::revision::data::claim_templates;
use crate::domain::collaset::revision::hash::short_hash;

/// Hash of a claim template: FNV-1 over the JSON that Go writes of it with the types of Kubernetes 1.22.
pub fn hash(template: &Value) -> String {
    short_hash(&go_json(&CLAIM, template))
}

/// The claim templates of all revisions, which are few, each with its hash, which costs much more than a comparison. A
/// hash on a claim that is none of these tells nothing about its template.
#[derive(Clone, Debug, Default)]
pub struct Known(Vec<(Value, String)>);

impl Known {
    /// These templates.
    pub fn of<'a>(templates: impl IntoIterator<Item = &'a Value>) -> Known {
        let mut known = Known::default();
        for template in templates {
            if !known.0.iter().any(|(other, _)| other == template) {
                known.0.push((template.clone(), hash(template)));
            }
        }
        known
    }

    /// Those of these revisions.
    pub fn of_revisions<'a>(revisions: impl IntoIterator<Item = &'a Arc<Revision>>) -> Known {
        let revisions = revisions.into_iter();
        Known::of(revisions.flat_map(|r| claim_templates(&r.data)))
    }

    /// Hash of a template, be it one of these or not.
    pub fn hash<'a>(&'a self, template: &Value) -> Cow<'a, str> {
        let known = self.0.iter().find(|(other, _)| other == template);
        known.map_or_else(|| hash(template).into(), |(_, hash)| hash.into())
    }

    /// Whether a hash is of one of these.
    pub fn contains(&self, hash: &str) -> bool {
        self.0.iter().any(|(_, known)| known == hash)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// The hashes of these come from a program with k8s.io/api v0.22.6.
    #[test]
    fn the_hash_is_kuperators() {
        let golden = include_str!("../core_v1/golden-1.22.jsonl");
        let lines: Vec<Value> = golden
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let claims: Vec<_> = lines.iter().filter(|line| line["kind"] == "pvc").collect();
        assert!(!claims.is_empty());
        for claim in claims {
            assert_eq!(
                hash(&claim["value"]),
                claim["hash"].as_str().unwrap(),
                "{}",
                claim["value"]
            );
        }
    }

    #[test]
    fn what_is_known_is_not_hashed_again() {
        let template = |size| json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": size } } } });
        let (small, large) = (template("1Gi"), template("2Gi"));
        let known = Known::of([&small, &small]);
        assert!(matches!(known.hash(&small), Cow::Borrowed(of) if of == hash(&small)));
        assert_eq!(known.hash(&large), hash(&large));
        assert!(known.contains(&hash(&small)) && !known.contains(&hash(&large)));
    }

    #[test]
    fn notation_and_newer_fields_do_not_count() {
        let a = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "1024Mi" } } } });
        let b = json!({ "spec": { "volumeAttributesClassName": "gold", "resources": { "requests": { "storage": "1Gi" } } },
            "metadata": { "creationTimestamp": null, "labels": {}, "name": "d" }, "status": {} });
        assert_eq!(hash(&a), hash(&b));
        let c = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
        assert_ne!(hash(&a), hash(&c));
    }
}
