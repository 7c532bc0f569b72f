//! The generated CRDs: the files equal what the types generate, and every field that stored objects may have exists
//! with the same type.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use operating::api::crd;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `UPDATE=1 cargo test --test crds` rewrites the files.
#[test]
fn crd_files_match_the_types() {
    for crd in crd::all_crds() {
        let file = root().join(format!("manifests/crds/{}.yaml", crd.spec.names.plural));
        let want = format!(
            "# Generated from src/api. Rewrite: UPDATE=1 cargo test --test crds\n{}",
            yaml(&crd)
        );
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &want).unwrap();
        }
        let have = std::fs::read_to_string(&file).unwrap_or_default();
        let differs = have.lines().zip(want.lines()).position(|(a, b)| a != b);
        assert!(
            have == want,
            "{} differs from the types at line {}: rewrite it with UPDATE=1 cargo test --test crds",
            file.display(),
            differs.unwrap_or(have.lines().count().min(want.lines().count())) + 1,
        );
    }
}

/// A build leaves definitions of a higher revision alone, so a change without a new revision could be taken back by an
/// older replica. `UPDATE=1 cargo test --test crds` writes the digest once the revision has been raised.
#[test]
fn changed_definitions_have_a_new_revision() {
    let file = root().join("tests/crds/revision.txt");
    let all = crd::all_crds().into_iter().map(|mut crd| {
        crd.metadata.annotations = None;
        yaml(&crd)
    });
    let all: Vec<String> = all.collect();
    let mut digest = operating::domain::digest::Digest::default();
    all.iter().for_each(|text| digest.add_text(text));
    let now = format!("{:016x}", digest.value());
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    let (revision, then) = recorded.trim().split_once(' ').unwrap_or(("0", ""));
    let revision: u32 = revision.parse().unwrap();
    if now == then {
        assert_eq!(
            revision,
            crd::CRD_REVISION,
            "nothing changed: set CRD_REVISION in src/api/crd.rs back"
        );
        return;
    }
    assert!(
        crd::CRD_REVISION > revision,
        "the CRDs changed: raise CRD_REVISION above {revision} in src/api/crd.rs, then run UPDATE=1 cargo test --test crds"
    );
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "run UPDATE=1 cargo test --test crds"
    );
    std::fs::write(&file, format!("{} {now}\n", crd::CRD_REVISION)).unwrap();
}

#[test]
fn no_file_is_left_over() {
    if std::env::var_os("UPDATE").is_some() {
        return;
    }
    let mut files: Vec<String> = std::fs::read_dir(root().join("manifests/crds"))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|f| f != "kustomization.yaml")
        .collect();
    files.sort();
    let kinds: Vec<String> = crd::all_crds()
        .iter()
        .map(|c| format!("{}.yaml", c.spec.names.plural))
        .collect();
    assert_eq!(files, kinds);
}

#[test]
fn every_known_path_exists_with_its_type() {
    for crd in crd::all_crds() {
        let file = root().join(format!(
            "tests/crds/paths/{}.txt",
            crd.spec.names.singular.as_deref().unwrap()
        ));
        let mut wrong = Vec::new();
        for line in lines(&file) {
            let want: Vec<&str> = line.split(' ').collect();
            let [path, type_, format, required] = want[..] else {
                panic!("{line:?} in {}", file.display())
            };
            // The API server itself owns these three.
            if matches!(path, ".apiVersion" | ".kind" | ".metadata") {
                continue;
            }
            let core = type_.contains('[');
            let plain = type_.split('[').next().unwrap();
            match find(schema(&crd), path) {
                None => wrong.push(format!("{path}: missing")),
                Some((found, is_required)) => {
                    let have = (type_of(found), found.format.as_deref().unwrap_or("-"));
                    if have != (plain.to_owned(), format) {
                        wrong.push(format!("{path}: {have:?}, not {plain} {format}"));
                    }
                    if is_required != (required == "required") {
                        wrong.push(format!("{path}: must be {required}"));
                    }
                    if core && !holds_newer_fields(found) {
                        wrong.push(format!("{path}: must keep fields of newer core versions"));
                    }
                }
            }
        }
        assert!(
            wrong.is_empty(),
            "{}:\n{}",
            crd.spec.names.kind,
            wrong.join("\n")
        );
    }
}

#[test]
fn no_new_field_is_required_in_stored_objects() {
    for crd in crd::all_crds() {
        let file = root().join(format!(
            "tests/crds/paths/{}.txt",
            crd.spec.names.singular.as_deref().unwrap()
        ));
        let known: Vec<String> = lines(&file);
        let mut required = Vec::new();
        collect_required(schema(&crd), "", &mut required);
        for path in required {
            let parent = path.rsplit_once('.').unwrap().0.to_owned();
            let parent_is_ours = !known
                .iter()
                .any(|l| l.split(' ').next() == Some(parent.as_str()));
            let was_required = known
                .iter()
                .any(|l| l.starts_with(&format!("{path} ")) && l.ends_with(" required"));
            let in_core_type = known
                .iter()
                .any(|l| l.split(' ').next() == Some(parent.as_str()) && l.contains('['))
                && !parent.ends_with("containers[]");
            assert!(
                parent_is_ours || was_required || in_core_type,
                "{} requires {path}: stored objects may lack it",
                crd.spec.names.kind
            );
        }
    }
}

#[test]
fn nulls_are_pruned_and_defaults_left_to_admission() {
    for crd in crd::all_crds() {
        let text = yaml(&crd);
        assert!(!text.contains("nullable:"), "{}", crd.spec.names.kind);
        let spec = schema(&crd)
            .properties
            .as_ref()
            .and_then(|all| all.get("spec"));
        if let Some(spec) = spec {
            every(spec, &mut |s| assert!(s.default.is_none()));
        }
        every(schema(&crd), &mut |s| {
            assert!(!s.enum_.iter().flatten().any(|v| v.0.is_null()));
        });
    }
}

/// A tool that waits for an object compares `observedGeneration` with the generation, which is never 0.
#[test]
fn object_without_a_status_has_observed_no_generation() {
    for crd in crd::all_crds() {
        let status = schema(&crd).properties.as_ref().unwrap().get("status");
        let status = status.and_then(|status| Some((status, status.properties.as_ref()?)));
        let Some((status, properties)) = status else {
            assert_eq!(crd.spec.names.kind, "ResourceContext");
            continue;
        };
        let default = |s: &JSONSchemaProps| s.default.as_ref().map(|value| value.0.clone());
        let unseen = serde_json::json!({ "observedGeneration": 0 });
        assert_eq!(default(status), Some(unseen), "{}", crd.spec.names.kind);
        let observed = &properties["observedGeneration"];
        assert_eq!(default(observed), Some(0.into()));
    }
}

#[test]
fn crds_have_expected_columns_and_subresources() {
    let columns = |plural: &str| -> Vec<String> {
        let all = crd::all_crds();
        let crd = all.iter().find(|c| c.spec.names.plural == plural).unwrap();
        let columns = crd.spec.versions[0]
            .additional_printer_columns
            .clone()
            .unwrap_or_default();
        columns
            .iter()
            .map(|c| format!("{} {} {}", c.name, c.type_, c.json_path))
            .collect()
    };
    assert_eq!(
        columns("podtransitionrules"),
        [
            "ENFORCED string .status.conditions[?(@.type==\"Enforced\")].status",
            "MATCHED string .status.conditions[?(@.type==\"Matched\")].status",
            "ALLOWED integer .status.disruptionsAllowed",
            "UNAVAILABLE integer .status.unavailablePods",
            "LIMIT integer .status.unavailableLimit",
            "WAITING integer .status.waitingPods",
            "AGE date .metadata.creationTimestamp",
        ]
    );
    assert_eq!(columns("collasets").len(), 12);
    assert_eq!(columns("poddecorations").len(), 7);
    assert_eq!(columns("operationjobs").len(), 6);
    for crd in crd::all_crds() {
        let version = &crd.spec.versions[0];
        for column in version.additional_printer_columns.iter().flatten() {
            if column.json_path != ".metadata.creationTimestamp" {
                // For a path into a list of conditions, only the list counts.
                let path = column.json_path.split('[').next().unwrap();
                assert!(
                    find(schema(&crd), path).is_some(),
                    "{} of {}",
                    column.name,
                    crd.spec.names.kind
                );
            }
        }
        let names = crd
            .spec
            .names
            .short_names
            .clone()
            .unwrap_or_default()
            .join(",");
        // `kubectl get all` shows what users write. No short name is one of Kubernetes.
        let categories = crd.spec.names.categories.clone().unwrap_or_default();
        let is_internal = crd.spec.names.kind == "ResourceContext";
        assert_eq!(
            categories.is_empty(),
            is_internal,
            "{}",
            crd.spec.names.kind
        );
        for column in version.additional_printer_columns.iter().flatten() {
            assert!(!column.name.contains('_'), "{}", column.name);
        }
        let (status, scale) = version
            .subresources
            .as_ref()
            .map_or((false, false), |s| (s.status.is_some(), s.scale.is_some()));
        let want = match crd.spec.names.kind.as_str() {
            "CollaSet" => ("cls", true, true),
            "OperationJob" => ("opj", true, false),
            "PodDecoration" => ("pd", true, false),
            "PodTransitionRule" => ("ptr", true, false),
            "ResourceContext" => ("rctx", false, false),
            other => panic!("{other}"),
        };
        assert_eq!(
            (names.as_str(), status, scale),
            want,
            "{}",
            crd.spec.names.kind
        );
        if status {
            for path in [".status.observedGeneration", ".status.conditions"] {
                assert!(
                    find(schema(&crd), path).is_some(),
                    "{path} of {}",
                    crd.spec.names.kind
                );
            }
        }
    }
}

fn yaml(crd: &CustomResourceDefinition) -> String {
    serde_norway::to_string(crd).unwrap()
}

fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

fn schema(crd: &CustomResourceDefinition) -> &JSONSchemaProps {
    crd.spec.versions[0]
        .schema
        .as_ref()
        .unwrap()
        .open_api_v3_schema
        .as_ref()
        .unwrap()
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(items) => Some(items),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.additional_properties.as_ref()? {
        JSONSchemaPropsOrBool::Schema(values) => Some(values),
        JSONSchemaPropsOrBool::Bool(_) => None,
    }
}

/// The schema at `.a.b[].c`, and whether its parent requires it.
fn find<'a>(root: &'a JSONSchemaProps, path: &str) -> Option<(&'a JSONSchemaProps, bool)> {
    let mut at = (root, false);
    for step in path.split('.').skip(1) {
        let (name, item) = step
            .strip_suffix("[]")
            .map_or((step, false), |name| (name, true));
        let next = at.0.properties.as_ref()?.get(name)?;
        at = if item {
            (items(next)?, false)
        } else {
            (next, at.0.required.iter().flatten().any(|r| r == name))
        };
    }
    Some(at)
}

fn type_of(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_int_or_string == Some(true) {
        let types = |s: &JSONSchemaProps| s.type_.clone().unwrap_or_default();
        let any_of: Vec<String> = schema.any_of.iter().flatten().map(types).collect();
        assert_eq!(any_of, ["integer", "string"]);
        return "int-or-string".into();
    }
    let type_ = schema.type_.clone().unwrap_or_else(|| "any".into());
    match type_.as_str() {
        "array" => format!("array<{}>", type_of(items(schema).unwrap())),
        "object" => values(schema).map_or(type_, |v| format!("map<string,{}>", type_of(v))),
        _ => type_,
    }
}

/// Label selectors and field references are closed types of the API machinery; anything else of core must stay open.
fn holds_newer_fields(schema: &JSONSchemaProps) -> bool {
    schema.x_kubernetes_preserve_unknown_fields == Some(true)
        || schema
            .properties
            .as_ref()
            .is_some_and(|p| p.contains_key("matchLabels") || p.contains_key("fieldPath"))
}

fn every(schema: &JSONSchemaProps, visit: &mut dyn FnMut(&JSONSchemaProps)) {
    visit(schema);
    for property in schema.properties.iter().flat_map(|p| p.values()) {
        every(property, visit);
    }
    for inner in items(schema).into_iter().chain(values(schema)) {
        every(inner, visit);
    }
}

fn collect_required(schema: &JSONSchemaProps, path: &str, out: &mut Vec<String>) {
    out.extend(
        schema
            .required
            .iter()
            .flatten()
            .map(|r| format!("{path}.{r}")),
    );
    for (name, property) in schema.properties.iter().flatten() {
        collect_required(property, &format!("{path}.{name}"), out);
    }
    if let Some(items) = items(schema) {
        collect_required(items, &format!("{path}[]"), out);
    }
}
