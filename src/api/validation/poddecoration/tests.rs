#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

/// The error texts of a PodDecoration with `part` merged into its spec.
fn errors(part: Value) -> Vec<String> {
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } } });
    json_patch::merge(&mut spec, &part);
    let spec: PodDecorationSpec = serde_json::from_value(spec).unwrap();
    validate(&spec).iter().map(ToString::to_string).collect()
}

fn in_template(part: Value) -> Vec<String> {
    errors(json!({ "template": part }))
}

/// The errors of an entry of `list` in the template, without its path.
fn in_entry(list: &str, entry: Value) -> Vec<String> {
    let prefix = format!("spec.template.{list}[0].");
    let errors = in_template(json!({ list: [entry] }));
    let errors = errors.iter().map(|e| e.strip_prefix(&prefix).unwrap());
    errors.map(str::to_owned).collect()
}

#[test]
fn valid_decoration_has_no_errors() {
    let spec = json!({
        "historyLimit": 0, "weight": -3,
        "updateStrategy": { "rollingUpdate": {
            "partition": 0,
            "selector": { "matchExpressions": [{ "key": "collaset.kusionstack.io/instance-id", "operator": "In", "values": ["1"] }] },
        } },
        "template": {
            "metadata": [
                { "patchPolicy": "Overwrite", "labels": { "side": "car" }, "annotations": { "Example.com/a": "b c" } },
                { "patchPolicy": "MergePatchJson", "annotations": { "a": "{\"b\":1}" } },
                { "patchPolicy": "" },
            ],
            "initContainers": [{ "name": "a" }], "containers": [{ "name": "b" }, { "name": "c", "injectPolicy": "" }],
            "primaryContainers": [
                { "name": "web", "env": [{ "name": "A b", "value": "" }] },
                { "targetPolicy": "Last", "volumeMounts": [{ "name": "v", "mountPath": "/v", "subPath": "a/..b" }] },
            ],
            "volumes": [{ "name": "v" }], "runtimeClassName": "gvisor.v2",
        },
    });
    assert_eq!(errors(spec), [""; 0]);
    assert_eq!(
        validate(&PodDecorationSpec::default()),
        FieldErrors::default()
    );
}

#[test]
fn new_object_needs_short_name_and_selector() {
    let check = |name: &str, spec: Value| {
        let mut errors = FieldErrors::default();
        check_creation(name, &serde_json::from_value(spec).unwrap(), &mut errors);
        errors.to_string()
    };
    assert_eq!(check(&"a".repeat(60), json!({ "selector": {} })), "");
    let long = "a".repeat(61);
    assert_eq!(
        check(&long, json!({})),
        format!(
            "metadata.name: \"{long}\": must have at most 60 characters: Pods carry it in the label key \
             poddecoration.kusionstack.io/pd-<name>; shorten it; spec.selector: is required: set it to labels of the Pods to \
             decorate, or to {{}} for all Pods of CollaSets"
        )
    );
}

#[test]
fn selectors_are_compiled_and_name_stable_labels() {
    let rolling = |selector: Value| json!({ "updateStrategy": { "rollingUpdate": { "selector": selector } } });
    let expression = |key: &str, operator: &str| json!({ "matchExpressions": [{ "key": key, "operator": operator }] });
    let needs_values = "must not be empty with operator In: list the values that are meant";
    assert_eq!(
        errors(json!({ "selector": expression("a", "In") })),
        [format!(
            "spec.selector.matchExpressions[0].values: {needs_values}"
        )]
    );
    assert_eq!(
        errors(rolling(expression("a", "Like"))),
        [
            "spec.updateStrategy.rollingUpdate.selector.matchExpressions[0].operator: \"Like\": must be In, NotIn, Exists or \
          DoesNotExist"
        ]
    );
    for key in [
        "podopslifecycle.kusionstack.io/service-available",
        "operate.podopslifecycle.kusionstack.io/collaset",
        "poddecoration.kusionstack.io/pd-other",
    ] {
        let why = format!(
            "{key:?}: can't select Pods: operations and decorations change this label, so Pods would be decorated and \
             undecorated in turn; select by labels of the Pod template, or by collaset.kusionstack.io/instance-id"
        );
        assert_eq!(
            errors(json!({ "selector": { "matchLabels": { key: "1" } } })),
            [format!("spec.selector.matchLabels[{key}]: {why}")]
        );
        assert_eq!(
            errors(rolling(expression(key, "Exists"))),
            [format!(
                "spec.updateStrategy.rollingUpdate.selector.matchExpressions[0].key: {why}"
            )]
        );
    }
}

#[test]
fn numbers_are_not_negative() {
    let part =
        json!({ "historyLimit": -2, "updateStrategy": { "rollingUpdate": { "partition": -1 } } });
    let want = [
        "spec.historyLimit: -2: must be 0 or more",
        "spec.updateStrategy.rollingUpdate.partition: -1: must be 0 or more",
    ];
    assert_eq!(errors(part), want);
}

#[test]
fn metadata_has_valid_syntax_and_free_keys() {
    let name = "must have at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit";
    let reserved = "is reserved: it is set on single Pods, by CollaSet or for it; remove it";
    for (entry, want) in [
        (
            json!({ "patchPolicy": "Replace" }),
            "patchPolicy: \"Replace\": must be Retain or Overwrite or MergePatchJson".to_owned(),
        ),
        (json!({ "labels": { "a b": "" } }), format!("labels[a b]: \"a b\": the key {name}")),
        (json!({ "labels": { "a": "b c" } }), format!("labels[a]: \"b c\": {name}")),
        (json!({ "annotations": { "a b": "" } }), format!("annotations[a b]: \"a b\": the key {name}")),
        (
            json!({ "patchPolicy": "MergePatchJson", "labels": { "a": "1" } }),
            "labels: must be empty with patchPolicy MergePatchJson, because the value of a label is no JSON document: move the \
             labels to an entry with patchPolicy Retain or Overwrite"
                .to_owned(),
        ),
        (
            json!({ "patchPolicy": "MergePatchJson", "annotations": { "a": "{" } }),
            "annotations[a]: \"{\": must be a JSON document with patchPolicy MergePatchJson, such as {\"key\": \"value\"} (EOF \
             while parsing an object at line 1 column 1): correct it, or set patchPolicy Overwrite"
                .to_owned(),
        ),
    ] {
        assert_eq!(in_entry("metadata", entry), [want]);
    }
    for key in [
        "collaset.kusionstack.io/instance-id",
        "controller-revision-hash",
        "kusionstack.io/control",
        "podopslifecycle.kusionstack.io/service-available",
        "operating.podopslifecycle.kusionstack.io/mine",
        "poddecoration.kusionstack.io/pd-other",
    ] {
        let label = json!({ "patchPolicy": "Overwrite", "labels": { key: "true" } });
        let want = format!("labels[{key}]: \"true\": {reserved}");
        assert_eq!(in_entry("metadata", label), [want]);
    }
    for key in [
        "collaset.kusionstack.io/last-pod-status",
        "poddecoration.kusionstack.io/revisions",
    ] {
        let want = format!("annotations[{key}]: \"true\": {reserved}");
        assert_eq!(
            in_entry("metadata", json!({ "annotations": { key: "true" } })),
            [want]
        );
    }
}

#[test]
fn decoration_may_not_set_labels_that_it_selects_by() {
    let rolling =
        json!({ "selector": { "matchExpressions": [{ "key": "wave", "operator": "Exists" }] } });
    let labels = json!([{ "labels": { "app": "web", "wave": "1", "free": "1" } }]);
    let part = json!({
        "updateStrategy": { "rollingUpdate": rolling }, "template": { "metadata": labels },
    });
    let why = "of this PodDecoration reads the label: a decoration must not change which Pods it selects; set another label, \
               or select by another one";
    let want = [
        format!(
            "spec.template.metadata[0].labels[app]: \"web\": can't be set, because spec.selector {why}"
        ),
        format!(
            "spec.template.metadata[0].labels[wave]: \"1\": can't be set, because spec.updateStrategy.rollingUpdate.selector \
             {why}"
        ),
    ];
    assert_eq!(errors(part), want);
}

#[test]
fn entries_have_names_of_their_own() {
    for list in ["initContainers", "containers", "volumes"] {
        let entries = json!({ list: [{ "name": "a" }, {}, { "name": "a" }, "x"] });
        let path = format!("spec.template.{list}");
        let required = "is required: give each entry a name of its own";
        assert_eq!(
            in_template(entries),
            [
                format!("{path}[1].name: {required}"),
                format!(
                    "{path}[2].name: \"a\": is the name of an earlier entry of {path}: give each entry a name of its own"
                ),
                format!("{path}[3].name: {required}"),
            ]
        );
    }
    assert_eq!(
        in_entry(
            "containers",
            json!({ "name": "a", "injectPolicy": "Middle" })
        ),
        ["injectPolicy: \"Middle\": must be BeforePrimaryContainer or AfterPrimaryContainer"]
    );
}

#[test]
fn primary_container_patches_are_complete() {
    let mount = |mount: Value| json!({ "volumeMounts": [mount] });
    for (entry, want) in [
        (
            json!({ "targetPolicy": "Some" }),
            "targetPolicy: \"Some\": must be ByName or All or First or Last",
        ),
        (
            json!({ "targetPolicy": "ByName" }),
            "name: is required with targetPolicy ByName: set it to the name of a container, or choose All, First or Last",
        ),
        (
            json!({ "env": [{ "value": "1" }] }),
            "env[0].name: is required: set it to the name of the environment variable",
        ),
        (
            json!({ "env": [{ "name": "A=B" }] }),
            "env[0].name: \"A=B\": must have only printable ASCII characters other than '='",
        ),
        (
            mount(json!({ "mountPath": "/a" })),
            "volumeMounts[0].name: is required: set it to the name of a volume",
        ),
        (
            mount(json!({ "name": "v" })),
            "volumeMounts[0].mountPath: is required: set it to the path in the container, such as /data",
        ),
        (
            mount(json!({ "name": "v", "mountPath": "/a", "subPath": "/b" })),
            "volumeMounts[0].subPath: \"/b\": must be relative to the volume: remove the leading '/'",
        ),
        (
            mount(json!({ "name": "v", "mountPath": "/a", "subPathExpr": "b/../c" })),
            "volumeMounts[0].subPathExpr: \"b/../c\": must not leave the volume: remove '..'",
        ),
        (
            mount(json!({ "name": "v", "mountPath": "/a", "subPath": "b", "subPathExpr": "c" })),
            "volumeMounts[0].subPathExpr: \"c\": can't be set together with subPath: remove one of them",
        ),
        (
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/a" }, { "name": "w", "mountPath": "/a" }] }),
            "volumeMounts[1].mountPath: \"/a\": is the path of an earlier mount: mount each volume at a path of its own",
        ),
    ] {
        assert_eq!(in_entry("primaryContainers", entry), [want]);
    }
}

#[test]
fn runtime_class_name_is_a_dns_name() {
    assert_eq!(
        in_template(json!({ "runtimeClassName": "A" })),
        [
            "spec.template.runtimeClassName: \"A\": must have at most 253 lower-case letters, digits, '-' or '.', and begin and \
          end with a letter or digit: set it to the name of a RuntimeClass, or leave it out"
        ]
    );
}

#[test]
fn settings_without_effect_are_warned_of() {
    let warned = |old: Value, new: Value| {
        let old: PodDecorationSpec = serde_json::from_value(old).unwrap();
        warnings(Some(&old), &serde_json::from_value(new).unwrap())
    };
    assert_eq!(warned(json!({}), json!({})), [""; 0]);
    let rolling = json!({ "rollingUpdate": { "partition": 1, "selector": {} } });
    let patches = json!([{ "name": "web" }, { "name": "web", "targetPolicy": "All" }]);
    let new = json!({ "updateStrategy": rolling, "template": { "primaryContainers": patches } });
    let want = [
        "spec.selector: is left out, so no Pod is selected and all Pods lose this decoration; set it to {} to select all Pods \
         of CollaSets",
        "spec.updateStrategy.rollingUpdate.partition: has no effect, because selector is set, too; remove one of them",
        "spec.template.primaryContainers[1].name: \"web\" has no effect with targetPolicy All; set ByName to change only this \
         container",
    ];
    assert_eq!(warned(json!({ "selector": {} }), new), want);
}
