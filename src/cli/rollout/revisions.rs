//! The revisions of a CollaSet as `history` and `undo` see them.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ListParams;
use serde_json::{Map, Value, json};

use super::Target;
use crate::api::collaset::CollaSet;
use crate::cli::why::api_reads;
use crate::cluster::request_path;
use crate::domain::collaset::revision::data;

/// Annotation of Kubernetes in which users say why they changed something.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// A stored revision.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRevision {
    pub number: i64,
    pub name: String,
    /// `None` if the revision has no data in the form of CollaSets.
    pub template: Option<Value>,
    /// Whether the template has the meaning of that of the present spec.
    pub is_template: bool,
    /// Whether the volume claim templates differ from those of the present spec.
    pub has_other_volumes: bool,
    /// Why the template was changed, if somebody has said so.
    pub change_cause: Option<String>,
}

/// The revisions that a CollaSet owns, the oldest first.
pub async fn list_revisions(
    target: &Target,
    set: &CollaSet,
) -> anyhow::Result<Vec<StoredRevision>> {
    let api = request_path::namespaced_api(&target.client, &target.namespace)?;
    let params = ListParams::default();
    let listed = api_reads::call_with_timeout(
        "list",
        "controllerrevisions",
        Some(&target.namespace),
        api.list(&params),
    );
    Ok(own_revisions(set, listed.await?.items))
}

fn own_revisions(set: &CollaSet, all: Vec<ControllerRevision>) -> Vec<StoredRevision> {
    let spec_data = data::revision_data(&set.spec);
    let is_own = |revision: &ControllerRevision| {
        let mut owners = revision.metadata.owner_references.iter().flatten();
        owners.any(|o| o.controller == Some(true) && Some(&o.uid) == set.metadata.uid.as_ref())
    };
    let own: Vec<ControllerRevision> = all.into_iter().filter(is_own).collect();
    let latest = own.iter().map(|revision| revision.revision).max();
    let mut own: Vec<StoredRevision> = own
        .into_iter()
        .map(|revision| {
            let stored = revision.data.map_or(Value::Null, |data| data.0);
            let template = data::pod_template(&stored).ok().map(plain_template);
            let annotations = revision.metadata.annotations.unwrap_or_default();
            let of_template = template
                .as_ref()
                .and_then(|template| template["metadata"]["annotations"][CHANGE_CAUSE].as_str());
            StoredRevision {
                number: revision.revision,
                name: revision.metadata.name.unwrap_or_default(),
                is_template: has_template_of(
                    &stored,
                    &spec_data,
                    Some(revision.revision) == latest,
                ),
                has_other_volumes: !data::have_same_pvc_templates(
                    data::pvc_templates(&stored),
                    &set.spec.volume_claim_templates,
                ),
                change_cause: annotations
                    .get(CHANGE_CAUSE)
                    .cloned()
                    .or_else(|| of_template.map(str::to_owned)),
                template,
            }
        })
        .collect();
    own.sort_by_key(|revision| revision.number);
    own
}

/// Whether the templates have the same meaning, as the controller compares them: only the latest revision can be what
/// Kuperator stored of the present template.
fn has_template_of(stored: &Value, spec_data: &Value, is_latest: bool) -> bool {
    let mut wanted = spec_data.clone();
    // The lists of volume claim templates do not count.
    if let Some(spec) = wanted["spec"].as_object_mut() {
        spec.insert(
            "volumeClaimTemplates".to_owned(),
            data::pvc_templates(stored).into(),
        );
    }
    match is_latest {
        true => data::is_equal_kuperator_data(stored, &wanted),
        false => data::is_equal_data(stored, &wanted),
    }
}

/// Whether the template of a spec is the one that `undo` puts back.
pub fn is_same_template(spec: &Value, wanted: &Value) -> bool {
    let data = |template: &Value| json!({ "spec": { "template": template } });
    data::is_equal_data(&data(spec), &data(wanted))
}

/// The template without the marks of a revision and without fields that say nothing.
fn plain_template(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(fields) = template.as_object_mut() {
        fields.shift_remove("$patch");
        let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata.filter(|m| is_null(m, "creationTimestamp")) {
            metadata.shift_remove("creationTimestamp");
        }
    }
    template
}

fn is_null(fields: &Map<String, Value>, key: &str) -> bool {
    fields.get(key).is_some_and(Value::is_null)
}

/// The revision to which `undo` goes back.
///
/// # Errors
/// Why there is none, and the remedy.
pub fn choose_revision(
    revisions: &[StoredRevision],
    wanted: Option<i64>,
) -> Result<&StoredRevision, String> {
    let Some(wanted) = wanted.filter(|number| *number != 0) else {
        let mut former = revisions.iter().rev().filter(|r| !r.is_template);
        return former.next().ok_or_else(|| {
            "there is no former revision: the set has kept none (spec.historyLimit), or had one template only"
                .to_owned()
        });
    };
    let found = revisions.iter().find(|r| r.number == wanted);
    found.ok_or_else(|| {
        let numbers: Vec<String> = revisions.iter().map(|r| r.number.to_string()).collect();
        format!(
            "there is no revision {wanted}; the set has {}",
            match numbers.is_empty() {
                true => "no revisions".to_owned(),
                false => numbers.join(", "),
            }
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn set() -> CollaSet {
        let set = json!({
            "metadata": { "name": "web", "uid": "u" },
            "spec": { "template": template("web:3") },
        });
        serde_json::from_value(set).unwrap()
    }

    fn template(image: &str) -> Value {
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "main", "image": image }] } })
    }

    fn revision(number: i64, owner: &str, image: &str) -> ControllerRevision {
        let mut template = template(image);
        template["$patch"] = json!("replace");
        let revision = json!({
            "metadata": {
                "name": format!("web-{number}"),
                "annotations": { CHANGE_CAUSE: format!("to {image}") },
                "ownerReferences": [{ "apiVersion": "v", "kind": "k", "name": "n", "uid": owner, "controller": true }],
            },
            "revision": number,
            "data": { "spec": { "template": template } },
        });
        serde_json::from_value(revision).unwrap()
    }

    #[test]
    fn former_revision_is_chosen_by_default() {
        let all = vec![
            revision(4, "u", "web:3"),
            revision(9, "other", "web:9"),
            revision(2, "u", "web:2"),
            revision(1, "u", "web:1"),
        ];
        let own = own_revisions(&set(), all);
        assert_eq!(own.iter().map(|r| r.number).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(own[2].is_template);
        assert_eq!(own[0].change_cause.as_deref(), Some("to web:1"));
        let former = choose_revision(&own, None).unwrap();
        assert_eq!(former.number, 2);
        assert_eq!(former.template, Some(template("web:2")));
        assert_eq!(choose_revision(&own, Some(1)).unwrap().number, 1);
        let error = choose_revision(&own, Some(3)).unwrap_err();
        assert!(error.contains("the set has 1, 2, 4"), "{error}");
        let error = choose_revision(&own[2..], None).unwrap_err();
        assert!(error.contains("spec.historyLimit"), "{error}");
    }

    #[test]
    fn volume_claim_templates_and_notation_do_not_count() {
        let mut other_volumes = revision(2, "u", "web:3");
        if let Some(data) = &mut other_volumes.data {
            data.0["spec"]["volumeClaimTemplates"] = json!([{ "metadata": { "name": "data" } }]);
        }
        let own = own_revisions(&set(), vec![revision(1, "u", "web:1"), other_volumes]);
        assert!(own[1].is_template && own[1].has_other_volumes);
        assert_eq!(choose_revision(&own, None).unwrap().number, 1);

        // Kuperator drops fields that it does not know, and marks its data with a null time.
        let mut set = set();
        set.spec.template["spec"]["hostUsers"] = json!(false);
        let mut by_kuperator = revision(2, "u", "web:3");
        if let Some(data) = &mut by_kuperator.data {
            data.0["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
        }
        let own = own_revisions(&set, vec![revision(1, "u", "web:1"), by_kuperator]);
        assert!(own[1].is_template);
    }
}
