//! Finds the parts of a PodDecoration in the Pod that the decoration was applied to.

use serde_json::Value;

use crate::admission::dry_run::FieldPaths;
use crate::api::poddecoration::{PrimaryContainerPatch, TargetPolicy, Template};

const TEMPLATE: &str = "spec.template";
const TERMS: &str = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

/// A path in the Pod, and the path in the PodDecoration.
type Part = (String, String);

/// Where the fields of a decorated Pod are in the PodDecoration. `spec` is the spec of the Pod. Of several parts that
/// may have made a field, the last one counts, because it overrides the others.
pub(super) fn probe_paths(spec: &Value, template: &Template) -> FieldPaths {
    let mut parts = vec![("metadata".to_owned(), format!("{TEMPLATE}.metadata"))];
    for field in ["labels", "annotations"] {
        parts.push((format!("metadata.{field}"), format!("{TEMPLATE}.metadata")));
    }
    for (list, entries) in [
        ("initContainers", &template.init_containers),
        ("containers", &template.containers),
        ("volumes", &template.volumes),
    ] {
        parts.extend(parts_by(spec, list, entries, |entry| &entry["name"]));
    }
    parts.extend(parts_by(
        spec,
        "tolerations",
        &template.tolerations,
        |entry| entry,
    ));
    for (index, container) in entries(&spec["containers"]).enumerate() {
        let is_brought = template
            .containers
            .iter()
            .any(|c| c["name"] == container["name"]);
        if !is_brought {
            let at = format!("spec.containers[{index}]");
            parts.extend(patched_parts(&at, container, &template.primary_containers));
        }
    }
    if let Some(affinity) = &template.affinity {
        let at = format!("{TEMPLATE}.affinity");
        parts.push(("spec.affinity".to_owned(), format!("{at}.overrideAffinity")));
        let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        let own = affinity.node_selector_terms.len();
        let first = entries(terms).count().saturating_sub(own);
        parts.extend((0..own).map(|index| {
            let term = format!("spec.affinity.{TERMS}[{}]", first + index);
            (term, format!("{at}.nodeSelectorTerms[{index}]"))
        }));
    }
    FieldPaths::Parts {
        at: TEMPLATE.to_owned(),
        parts,
    }
}

/// The entries of a list of the Pod that are in the same list of the template, by their keys.
fn parts_by(spec: &Value, list: &str, own: &[Value], key: impl Fn(&Value) -> &Value) -> Vec<Part> {
    let found = entries(&spec[list])
        .enumerate()
        .filter_map(|(index, entry)| {
            let at = own.iter().rposition(|own| key(own) == key(entry))?;
            Some((
                format!("spec.{list}[{index}]"),
                format!("{TEMPLATE}.{list}[{at}]"),
            ))
        });
    found.collect()
}

/// The parts of a placeholder that patches have set.
fn patched_parts(at: &str, container: &Value, patches: &[PrimaryContainerPatch]) -> Vec<Part> {
    let mut parts = Vec::new();
    let patch_path = |index: usize| format!("{TEMPLATE}.primaryContainers[{index}]");
    let name = container["name"].as_str();
    let by_name = patches.iter().rposition(|patch| {
        patch.effective_target_policy() == TargetPolicy::ByName && patch.name.as_deref() == name
    });
    parts.extend(by_name.map(|index| (at.to_owned(), patch_path(index))));
    let of_image = patches.iter().rposition(|patch| {
        patch.image.is_some() && patch.image.as_deref() == container["image"].as_str()
    });
    parts.extend(of_image.map(|index| {
        let path = format!("{}.image", patch_path(index));
        (format!("{at}.image"), path)
    }));
    for (list, key) in [("env", "name"), ("volumeMounts", "mountPath")] {
        for (index, entry) in entries(&container[list]).enumerate() {
            let found = patches
                .iter()
                .enumerate()
                .rev()
                .find_map(|(patch, content)| {
                    let own = match list {
                        "env" => &content.env,
                        _ => &content.volume_mounts,
                    };
                    let at = own.iter().rposition(|own| own[key] == entry[key])?;
                    Some(format!("{}.{list}[{at}]", patch_path(patch)))
                });
            parts.extend(found.map(|path| (format!("{at}.{list}[{index}]"), path)));
        }
    }
    parts
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_is_found_in_the_decoration() {
        let template: Template = serde_json::from_value(json!({
            "containers": [
                { "name": "after", "injectPolicy": "AfterPrimaryContainer" }, { "name": "before" },
            ],
            "initContainers": [{ "name": "init" }],
            "primaryContainers": [
                { "targetPolicy": "All", "image": "i:1", "env": [{ "name": "A" }, { "name": "B" }] },
                { "name": "web", "env": [{ "name": "B" }], "volumeMounts": [{ "name": "v", "mountPath": "/v" }] },
            ],
            "volumes": [{ "name": "v" }],
            "tolerations": [{ "key": "a" }, { "key": "b" }],
            "affinity": { "overrideAffinity": {}, "nodeSelectorTerms": [{ "matchFields": [] }] },
        }))
        .unwrap();
        let web = json!({
            "name": "web", "image": "i:1", "env": [{ "name": "A" }, { "name": "B" }],
            "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
        });
        let terms = json!([{ "matchExpressions": [] }, { "matchFields": [] }]);
        let spec = json!({
            "containers": [{ "name": "before" }, web, { "name": "after" }],
            "initContainers": [{ "name": "init" }],
            "volumes": [{ "name": "v" }, { "name": "added" }],
            "tolerations": [{ "key": "a" }, { "key": "b" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } },
        });
        let paths = probe_paths(&spec, &template);
        let terms = format!("spec.affinity.{TERMS}");
        for (field, want) in [
            ("metadata.labels", "metadata"),
            ("metadata.annotations[a]", "metadata[a]"),
            ("spec.containers[0].image", "containers[1].image"),
            ("spec.containers[2].ports[0]", "containers[0].ports[0]"),
            ("spec.containers[1].image", "primaryContainers[0].image"),
            (
                "spec.containers[1].env[0].valueFrom",
                "primaryContainers[0].env[0].valueFrom",
            ),
            (
                "spec.containers[1].env[1].valueFrom",
                "primaryContainers[1].env[0].valueFrom",
            ),
            (
                "spec.containers[1].volumeMounts[0].name",
                "primaryContainers[1].volumeMounts[0].name",
            ),
            ("spec.containers[1].name", "primaryContainers[1].name"),
            ("spec.initContainers[0].image", "initContainers[0].image"),
            ("spec.volumes[0]", "volumes[0]"),
            ("spec.tolerations[1].operator", "tolerations[1].operator"),
            (
                &format!("{terms}[0].key"),
                &format!("affinity.overrideAffinity.{TERMS}[0].key"),
            ),
            (
                &format!("{terms}[1].matchFields"),
                "affinity.nodeSelectorTerms[0].matchFields",
            ),
        ] {
            let want = format!("spec.template.{want}: no");
            assert_eq!(paths.error_at(field, "no").to_string(), want);
        }
        let unmapped = paths.error_at("spec.volumes[1].name", "no").to_string();
        let want = "spec.template: a Pod that has it is refused: spec.volumes[1].name: no";
        assert_eq!(unmapped, want);
    }
}
