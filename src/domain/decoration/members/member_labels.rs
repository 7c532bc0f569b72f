//! The labels by which a decoration selects an instance of a set.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::domain::decoration::observed::SetOfNamespace;
use crate::domain::decoration::{Decoration, DecorationRevision, labels};
use crate::domain::pod::Pod;

/// The labels of the template revisions of a set, and the decorations of its namespace.
pub struct SetTemplates<'a> {
    /// Name of the updated template revision.
    updated: &'a str,
    /// The labels of the template in the spec.
    present: BTreeMap<String, String>,
    by_name: BTreeMap<&'a str, BTreeMap<String, String>>,
    known: &'a [Arc<Decoration>],
}

impl<'a> SetTemplates<'a> {
    pub fn from_set(set: &'a SetOfNamespace, known: &'a [Arc<Decoration>]) -> SetTemplates<'a> {
        let revisions = set.revisions.iter().map(|revision| {
            let template = revision.data.pointer("/spec/template");
            (&*revision.name, template_labels(template))
        });
        let status = set.set.status.as_ref();
        SetTemplates {
            updated: status.map_or("", |status| &status.updated_revision),
            present: template_labels(Some(&set.set.spec.template)),
            by_name: revisions.collect(),
            known,
        }
    }

    /// Returns the labels by which decorations select an instance. The template revision that the instance is going to
    /// is the one in its pool entry if that is stored, else the one of its Pod, else the updated one of the set.
    pub fn selection_labels(
        &self,
        id: i64,
        entry: Option<&BTreeMap<String, String>>,
        pod: Option<&Arc<Pod>>,
    ) -> BTreeMap<String, String> {
        let recorded = entry.and_then(|entry| entry.get(data::REVISION));
        let recorded = recorded.filter(|name| self.by_name.contains_key(name.as_str()));
        let of_pod = || pod.and_then(|pod| pod.label(keys::REVISION));
        let next = recorded.map(String::as_str).or_else(of_pod);
        let next = next.unwrap_or(self.updated);
        let template = self.by_name.get(next).unwrap_or(&self.present);
        let made_of = pod.map(|pod| (&**pod, self.labels_made_of(pod)));
        let made_of = made_of.as_ref().map(|(pod, made_of)| (*pod, made_of));
        labels::selection_labels(template, labels::own_labels(id, next), made_of)
    }

    /// The labels of all that a Pod consists of at present. If its template revision is not stored any more, the labels
    /// of that revision are unknown and count as set by hand, as in the plan of the set.
    fn labels_made_of(&self, pod: &Pod) -> BTreeMap<String, String> {
        let template = pod
            .label(keys::REVISION)
            .and_then(|name| self.by_name.get(name));
        let template = template.cloned().unwrap_or_default();
        let on_pod = labels::decorations_of(pod);
        let on_pod: Vec<&DecorationRevision> = on_pod
            .iter()
            .filter_map(|(name, revision)| {
                let mut known = self.known.iter();
                let decoration = known.find(|decoration| decoration.name == *name)?;
                decoration
                    .revisions
                    .get(revision)
                    .map(|revision| &**revision)
            })
            .collect();
        labels::decorated_labels(&template, &on_pod)
    }
}

fn template_labels(template: Option<&Value>) -> BTreeMap<String, String> {
    let labels = template.and_then(|template| template.pointer("/metadata/labels"));
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    labels.collect()
}
