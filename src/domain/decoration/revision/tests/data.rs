use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::poddecoration::{PatchPolicy, PodDecorationSpec};
use crate::domain::collaset::core_v1::random_values::RandomValues;
use crate::domain::collaset::core_v1::{Kind, go_json};
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::DecorationRevision;
use crate::domain::decoration::revision::{is_equal_data, parse_revision, revision_data};

fn data(template: Value) -> Value {
    json!({ "spec": { "template": template, "weight": 0 } })
}

fn parse(data: Value) -> Result<DecorationRevision, String> {
    let revision = Revision {
        name: "log-1".into(),
        data,
        ..Revision::default()
    };
    parse_revision("log", &revision)
}

#[test]
fn data_has_format_of_kuperator_with_sorted_keys() {
    let container = json!({ "name": "a", "injectPolicy": "AfterPrimaryContainer", "args": [], "z": { "y": 1, "x": 2 } });
    let spec = json!({
        "weight": -3,
        "historyLimit": 5,
        "template": { "volumes": [{ "name": "v" }], "metadata": [{ "patchPolicy": "" }], "containers": [container] },
    });
    let spec: PodDecorationSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(
        revision_data(&spec).to_string(),
        concat!(
            r#"{"spec":{"template":{"$patch":"replace","#,
            r#""containers":[{"args":[],"injectPolicy":"AfterPrimaryContainer","name":"a","z":{"x":2,"y":1}}],"#,
            r#""metadata":[{"patchPolicy":""}],"volumes":[{"name":"v"}]},"weight":-3}}"#
        )
    );
    assert_eq!(
        revision_data(&PodDecorationSpec::default()).to_string(),
        r#"{"spec":{"template":{"$patch":"replace"},"weight":0}}"#
    );
}

#[test]
fn parsed_revision_has_template_and_weight() {
    let metadata = json!([{ "patchPolicy": "Overwrite", "labels": { "a": "b" } }]);
    let template = json!({ "$patch": "replace", "metadata": metadata, "containers": null });
    for (weight, read) in [(json!(7), 7), (json!(null), 0)] {
        let data = json!({ "spec": { "template": template, "weight": weight } });
        let revision = parse(data).unwrap();
        assert_eq!(
            (revision.decoration.as_str(), revision.name.as_str()),
            ("log", "log-1")
        );
        assert_eq!(revision.weight, read);
        let patch = &revision.template.metadata[0];
        assert_eq!(patch.patch_policy, Some(PatchPolicy::Overwrite));
        assert_eq!(
            patch.labels,
            BTreeMap::from([("a".to_owned(), "b".to_owned())])
        );
    }
    assert_eq!(
        parse(json!({ "spec": { "template": {} } })).unwrap().weight,
        0
    );
}

#[test]
fn data_of_other_form_names_field() {
    for (data, field) in [
        (json!(null), "data.spec.template is missing"),
        (json!({ "spec": [] }), "data.spec.template is missing"),
        (
            json!({ "spec": { "template": null } }),
            "data.spec.template is not an object",
        ),
        (
            json!({ "spec": { "template": { "containers": "a" } } }),
            "data.spec.template: invalid type",
        ),
        (
            json!({ "spec": { "template": {}, "weight": "a" } }),
            "data.spec.weight: invalid type",
        ),
        (
            json!({ "spec": { "template": {}, "weight": 5_000_000_000_i64 } }),
            "data.spec.weight: invalid value",
        ),
    ] {
        let problem = parse(data).unwrap_err();
        assert!(problem.starts_with(field), "{problem}");
    }
}

#[test]
fn notations_of_same_meaning_are_equal() {
    let primary = |patch: Value| json!({ "primaryContainers": [patch] });
    let container = |container: Value| json!({ "containers": [container] });
    for (brief, full) in [
        (
            json!({}),
            json!({
                "$patch": "replace", "metadata": [], "containers": null, "initContainers": [], "primaryContainers": null,
                "volumes": [], "tolerations": [], "affinity": {}, "runtimeClassName": "",
            }),
        ),
        (
            json!({}),
            json!({ "affinity": { "overrideAffinity": null, "nodeSelectorTerms": [] } }),
        ),
        (
            json!({ "metadata": [{ "labels": { "a": "" } }] }),
            json!({
                "metadata": [{ "patchPolicy": "Retain", "labels": { "a": "" }, "annotations": {} }],
            }),
        ),
        (
            json!({ "metadata": [{ "patchPolicy": "" }] }),
            json!({ "metadata": [{ "patchPolicy": "Retain" }] }),
        ),
        (
            container(json!({ "name": "a", "resources": { "limits": { "cpu": "1" } } })),
            container(json!({
                "name": "a", "injectPolicy": "BeforePrimaryContainer", "env": [],
                "resources": { "limits": { "cpu": "1000m" }, "requests": { "cpu": 1 } },
            })),
        ),
        (
            container(json!({ "name": "a" })),
            container(json!({ "name": "a", "injectPolicy": "" })),
        ),
        (
            json!({ "initContainers": [{ "name": "a" }] }),
            json!({ "initContainers": [{ "name": "a", "resources": {} }] }),
        ),
        (
            json!({ "volumes": [{ "name": "v" }] }),
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
        ),
        (
            json!({ "tolerations": [{ "key": "a" }] }),
            json!({ "tolerations": [{ "key": "a", "effect": "" }] }),
        ),
        (
            json!({ "affinity": { "nodeSelectorTerms": [{ "matchFields": [] }], "overrideAffinity": {} } }),
            json!({ "affinity": { "nodeSelectorTerms": [{}], "overrideAffinity": { "podAffinity": null } } }),
        ),
        (
            primary(json!({})),
            primary(json!({ "targetPolicy": "All", "name": "", "image": null, "env": null })),
        ),
        (
            primary(json!({ "targetPolicy": "All", "name": "a" })),
            primary(json!({ "targetPolicy": "All" })),
        ),
        (
            primary(json!({ "name": "a" })),
            primary(json!({ "targetPolicy": "ByName", "name": "a", "volumeMounts": [] })),
        ),
        (
            primary(
                json!({ "env": [{ "name": "A" }], "volumeMounts": [{ "mountPath": "/", "name": "v" }] }),
            ),
            primary(json!({
                "env": [{ "name": "A", "value": "" }],
                "volumeMounts": [{ "name": "v", "mountPath": "/", "readOnly": false }],
            })),
        ),
    ] {
        assert!(
            is_equal_data(&data(brief.clone()), &data(full.clone())),
            "{brief} {full}"
        );
    }
    let without_weight = json!({ "spec": { "template": {} } });
    assert!(is_equal_data(&without_weight, &data(json!({}))));
    let null_weight = json!({ "spec": { "template": {}, "weight": null } });
    assert!(is_equal_data(&without_weight, &null_weight));
}

#[test]
fn data_of_other_meaning_differ() {
    let primary = |patch: Value| json!({ "primaryContainers": [patch] });
    for (one, other) in [
        (json!({}), json!({ "containers": [{ "name": "a" }] })),
        (json!({}), json!({ "affinity": { "overrideAffinity": {} } })),
        (json!({}), json!({ "newer": {} })),
        (json!({}), json!({ "runtimeClassName": "kata" })),
        (
            json!({ "metadata": [{ "labels": { "a": "b" } }] }),
            json!({ "metadata": [{ "annotations": { "a": "b" } }] }),
        ),
        (
            json!({ "metadata": [{}] }),
            json!({ "metadata": [{ "patchPolicy": "Overwrite" }] }),
        ),
        (
            json!({ "containers": [{ "name": "a" }] }),
            json!({ "containers": [{ "name": "a", "injectPolicy": "AfterPrimaryContainer" }] }),
        ),
        (
            json!({ "containers": [{ "name": "a" }, { "name": "b" }] }),
            json!({ "containers": [{ "name": "b" }, { "name": "a" }] }),
        ),
        (
            json!({ "containers": [{ "name": "a" }] }),
            json!({ "initContainers": [{ "name": "a" }] }),
        ),
        (
            json!({ "volumes": [{ "name": "a" }] }),
            json!({ "volumes": [{ "name": "a", "hostPath": { "path": "/" } }] }),
        ),
        (
            json!({ "tolerations": [{ "key": "a" }] }),
            json!({ "tolerations": [{ "key": "a", "effect": "NoExecute" }] }),
        ),
        // Kuperator's webhook stored All in the spec, too: a user who corrects it to ByName gets that.
        (
            primary(json!({ "name": "a" })),
            primary(json!({ "name": "a", "targetPolicy": "All" })),
        ),
        (
            primary(json!({})),
            primary(json!({ "targetPolicy": "First" })),
        ),
        (
            primary(json!({ "name": "a" })),
            primary(json!({ "name": "b" })),
        ),
        (
            primary(json!({ "image": "a" })),
            primary(json!({ "image": "b" })),
        ),
    ] {
        let (one, other) = (data(one), data(other));
        assert!(!is_equal_data(&one, &other), "{one} {other}");
        assert!(!is_equal_data(&other, &one), "{one} {other}");
    }
    let weighty = json!({ "spec": { "template": {}, "weight": 1 } });
    assert!(!is_equal_data(&weighty, &data(json!({}))));
}

proptest! {
    #[test]
    fn what_go_made_of_data_is_equal_to_it(seed: u64) {
        let mut random = RandomValues(seed);
        let mut ours = json!({});
        let mut by_go = json!({});
        for (field, name) in [
            ("containers", "Container"),
            ("initContainers", "Container"),
            ("volumes", "Volume"),
            ("tolerations", "Toleration"),
        ] {
            let kind = Kind::List(Box::new(Kind::Struct(name)));
            ours[field] = random.random_value(&kind);
            by_go[field] = serde_json::from_str(&go_json(&kind, &ours[field])).unwrap();
        }
        for container in by_go["containers"].as_array_mut().into_iter().flatten() {
            container["injectPolicy"] = json!("BeforePrimaryContainer");
        }
        by_go["$patch"] = json!("replace");
        prop_assert!(is_equal_data(&data(ours), &data(by_go)));
    }
}
