//! Hashes of volume claim templates, the same as Kuperator stores on PVCs (contract 6.8).

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::domain::collaset::core_v1::{PVC, go_json, normal_form};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::revision::data::pvc_templates;
use crate::domain::collaset::revision::hash::short_hash;

/// Returns the hash of a volume claim template: FNV-1 over the JSON that Go writes for it with the types of Kubernetes
/// 1.22.
pub fn hash_template(template: &Value) -> String {
    short_hash(&go_json(&PVC, template))
}

/// The volume claim templates of all revisions with their hashes. There are few templates, and a hash costs much more
/// than a comparison. If a PVC has a hash that is not in this list, its template is unknown.
#[derive(Clone, Debug, Default)]
pub struct TemplateHashes(Vec<HashedTemplate>);

#[derive(Clone, Debug)]
struct HashedTemplate {
    template: Value,
    hash: String,
    /// The hash of the same template with its default added, or removed.
    other: Option<String>,
    /// The form that all notations of the template share.
    normal: Option<Value>,
    /// Index of the first entry with the same meaning.
    same: usize,
}

impl TemplateHashes {
    /// Hashes these templates.
    pub fn from_templates<'a>(templates: impl IntoIterator<Item = &'a Value>) -> TemplateHashes {
        let mut hashes = TemplateHashes::default();
        for template in templates {
            let entries = &hashes.0;
            if entries.iter().any(|entry| entry.template == *template) {
                continue;
            }
            let normal = normal_form(&PVC, template);
            let same = entries.iter().position(|entry| entry.normal == normal);
            hashes.0.push(HashedTemplate {
                hash: hash_template(template),
                other: with_toggled_volume_mode(template).map(|other| hash_template(&other)),
                template: template.clone(),
                normal,
                same: same.unwrap_or(hashes.0.len()),
            });
        }
        hashes
    }

    /// Hashes the templates of these revisions.
    pub fn from_revisions<'a>(
        revisions: impl IntoIterator<Item = &'a Arc<Revision>>,
    ) -> TemplateHashes {
        let revisions = revisions.into_iter();
        TemplateHashes::from_templates(revisions.flat_map(|r| pvc_templates(&r.data)))
    }

    /// Hashes these templates and further ones, such as those of a spec.
    pub fn with_templates<'a>(&'a self, templates: &'a [Value]) -> TemplateHashes {
        let own = self.0.iter().map(|entry| &entry.template);
        TemplateHashes::from_templates(own.chain(templates))
    }

    /// The hash of a template, which need not be in the list.
    pub fn template_hash<'a>(&'a self, template: &Value) -> Cow<'a, str> {
        let mut entries = self.0.iter();
        let hashed = entries.find(|entry| entry.template == *template);
        hashed.map_or_else(
            || hash_template(template).into(),
            |entry| (&*entry.hash).into(),
        )
    }

    /// Whether a hash is that of a template in the list.
    pub fn contains(&self, hash: &str) -> bool {
        self.equivalence_class(hash).is_some()
    }

    /// Whether two hashes are of templates with the same meaning, as far as is known: a default may be written or left
    /// out, and quantities have several notations.
    pub fn is_equivalent(&self, a: &str, b: &str) -> bool {
        a == b
            || self
                .equivalence_class(a)
                .is_some_and(|a| self.equivalence_class(b) == Some(a))
    }

    fn equivalence_class(&self, hash: &str) -> Option<usize> {
        let mut entries = self.0.iter();
        let is_of =
            |entry: &&HashedTemplate| entry.hash == hash || entry.other.as_deref() == Some(hash);
        entries.find(is_of).map(|entry| entry.same)
    }
}

/// Returns the template with the default of `spec.volumeMode` added if it is missing, or removed if it is present;
/// `None` for another volume mode. This is the only default of a PVC.
fn with_toggled_volume_mode(template: &Value) -> Option<Value> {
    const DEFAULT: &str = "Filesystem";
    let mut other = template.clone();
    let spec = other.get_mut("spec")?.as_object_mut()?;
    match spec.get("volumeMode").and_then(Value::as_str) {
        Some(DEFAULT) => _ = spec.remove("volumeMode"),
        Some(_) => return None,
        None => _ = spec.insert("volumeMode".to_owned(), DEFAULT.into()),
    }
    Some(other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    /// These hashes were computed by a Go program with k8s.io/api v0.22.6.
    #[test]
    fn hash_equals_kuperators_hash() {
        let golden = include_str!("../core_v1/golden-1.22.jsonl");
        let lines: Vec<Value> = golden
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let template_lines: Vec<_> = lines.iter().filter(|line| line["kind"] == "pvc").collect();
        assert!(!template_lines.is_empty());
        for line in template_lines {
            assert_eq!(
                hash_template(&line["value"]),
                line["hash"].as_str().unwrap(),
                "{}",
                line["value"]
            );
        }
    }

    #[test]
    fn known_template_is_not_hashed_again() {
        let template = |size| json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": size } } } });
        let (small, large) = (template("1Gi"), template("2Gi"));
        let hashes = TemplateHashes::from_templates([&small, &small]);
        assert!(
            matches!(hashes.template_hash(&small), Cow::Borrowed(of) if of == hash_template(&small))
        );
        assert_eq!(hashes.template_hash(&large), hash_template(&large));
        assert!(
            hashes.contains(&hash_template(&small)) && !hashes.contains(&hash_template(&large))
        );
    }

    #[test]
    fn notation_and_newer_fields_do_not_count() {
        let a = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "1024Mi" } } } });
        let b = json!({ "spec": { "volumeAttributesClassName": "gold", "resources": { "requests": { "storage": "1Gi" } } },
            "metadata": { "creationTimestamp": null, "labels": {}, "name": "d" }, "status": {} });
        assert_eq!(hash_template(&a), hash_template(&b));
        let c = json!({ "metadata": { "name": "d" }, "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
        assert_ne!(hash_template(&a), hash_template(&c));
    }

    #[test]
    fn notations_of_one_template_have_the_same_meaning() {
        let template = |size: &str, mode: Option<&str>| {
            let mut spec = json!({ "resources": { "requests": { "storage": size } } });
            if let Some(mode) = mode {
                spec["volumeMode"] = mode.into();
            }
            json!({ "metadata": { "name": "d" }, "spec": spec })
        };
        let plain = template("1Gi", None);
        let same = [
            template("1Gi", Some("Filesystem")),
            template("1073741824", None),
        ];
        let others = [template("1Gi", Some("Block")), template("2Gi", None)];
        for same in &same {
            let hashes = TemplateHashes::from_templates([&plain, same]);
            assert_ne!(hash_template(same), hash_template(&plain));
            assert!(hashes.is_equivalent(&hash_template(same), &hash_template(&plain)));
        }
        // The same holds if the revision of one of the two does not exist any more.
        let hashes = TemplateHashes::from_templates([&same[0]]);
        assert!(
            hashes.is_equivalent(&hash_template(&plain), &hash_template(&same[0]))
                && hashes.contains(&hash_template(&plain))
        );
        for other in &others {
            let hashes = TemplateHashes::from_templates([&plain, other]);
            assert!(!hashes.is_equivalent(&hash_template(other), &hash_template(&plain)));
        }
    }
}
