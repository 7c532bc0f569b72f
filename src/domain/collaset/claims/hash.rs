//! Hash of a claim template, the same that Kuperator has put on claims (contract 6.8).

use std::collections::BTreeSet;
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

/// Hashes of all claim templates of these revisions. Another hash on a claim tells nothing about its template.
pub fn known<'a>(revisions: impl IntoIterator<Item = &'a Arc<Revision>>) -> BTreeSet<String> {
    revisions
        .into_iter()
        .flat_map(|r| claim_templates(&r.data))
        .map(hash)
        .collect()
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
    fn notation_and_newer_fields_do_not_count() {
        let a = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "1024Mi" } } } });
        let b = json!({ "spec": { "volumeAttributesClassName": "gold", "resources": { "requests": { "storage": "1Gi" } } },
            "metadata": { "creationTimestamp": null, "labels": {}, "name": "d" }, "status": {} });
        assert_eq!(hash(&a), hash(&b));
        let c = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
        assert_ne!(hash(&a), hash(&c));
    }
}
