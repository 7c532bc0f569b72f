#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;
use crate::api::keys::{self, Family};

/// A good spec with `part` merged into it.
fn spec(part: Value) -> CollaSetSpec {
    let mut spec = json!({
        "replicas": 3,
        "selector": { "matchLabels": { "app": "a" } },
        "template": {
            "metadata": { "labels": { "app": "a", "kusionstack.io/control": "true" } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        },
        "volumeClaimTemplates": [pvc_template("data")],
    });
    json_patch::merge(&mut spec, &part);
    serde_json::from_value(spec).unwrap()
}

fn pvc_template(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": 1 } } },
    })
}

fn lines(errors: &FieldErrors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn validate_part(part: Value) -> Vec<String> {
    lines(&validate("web", &spec(part)))
}

fn validate_scale_strategy(strategy: Value) -> Vec<String> {
    validate_part(json!({ "scaleStrategy": strategy }))
}

const NONE: [&str; 0] = [];

#[test]
fn good_specs_pass() {
    for part in [
        json!({}),
        json!({ "replicas": 0, "historyLimit": 0, "paused": true }),
        json!({ "template": { "metadata": { "labels": { keys::STAY_OFFLINE: "" } } } }),
        json!({ "selector": { "matchLabels": null, "matchExpressions": [{ "key": "app", "operator": "Exists" }] } }),
        json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "operationDelaySeconds": 0,
            "rollingUpdate": { "byPartition": { "partition": 9 }, "byLabel": {} } } }),
        json!({ "scaleStrategy": { "context": "pool", "podToExclude": ["a"], "podToInclude": ["b"], "podToDelete": ["c"],
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Delete" } } }),
        json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" }, "scaleStrategy": { "podToDelete": ["c"] } }),
        json!({ "volumeClaimTemplates": [pvc_template("a"), pvc_template("b")] }),
    ] {
        assert_eq!(validate_part(part.clone()), NONE, "{part}");
    }
}

#[test]
fn bounds_of_an_update_let_some_pod_be_updated() {
    let update = |part: Value| validate_part(json!({ "updateStrategy": part }));
    for good in [
        json!({ "maxUnavailable": 1, "maxSurge": 0 }),
        json!({ "maxUnavailable": "10%" }),
        json!({ "podUpgradePolicy": "Replace", "maxUnavailable": 0, "maxSurge": "25%" }),
        json!({ "rollingUpdate": { "byPartition": { "partitionPercent": 100 }, "priorityLabel": "example.com/order" } }),
    ] {
        assert_eq!(update(good.clone()), NONE, "{good}");
    }
    let zero = "must be 1 or more: with 0 no Pod would ever be updated; leave it out for no bound, or set paused";
    let percentage = "must be a percentage from \"0%\" to \"100%\" such as \"30%\", or a count written without quotes such as 3";
    for (bad, field, problem) in [
        (json!({ "maxUnavailable": 0 }), "maxUnavailable: 0", zero),
        (
            json!({ "maxUnavailable": "0%" }),
            "maxUnavailable: 0%",
            zero,
        ),
        (
            json!({ "podUpgradePolicy": "Replace", "maxSurge": 0 }),
            "maxSurge: 0",
            zero,
        ),
        (
            json!({ "maxSurge": "many" }),
            "maxSurge: \"many\"",
            percentage,
        ),
        (
            json!({ "rollingUpdate": { "byPartition": { "partition": 1, "partitionPercent": 10 } } }),
            "rollingUpdate.byPartition.partitionPercent: 10",
            "must not be given beside partition: leave one of them out",
        ),
        (
            json!({ "rollingUpdate": { "byPartition": { "partitionPercent": 101 } } }),
            "rollingUpdate.byPartition.partitionPercent: 101",
            "must be a percentage from 0 to 100",
        ),
    ] {
        assert_eq!(
            update(bad),
            [format!("spec.updateStrategy.{field}: {problem}")]
        );
    }
    let key = update(json!({ "rollingUpdate": { "priorityLabel": "a b" } }));
    assert!(
        key[0].starts_with("spec.updateStrategy.rollingUpdate.priorityLabel: \"a b\": "),
        "{key:?}"
    );
}

#[test]
fn rollout_step_is_either_partition_or_pause() {
    let rolling =
        |part: Value| validate_part(json!({ "updateStrategy": { "rollingUpdate": part } }));
    for good in [
        json!([{ "partition": "90%" }, { "pause": { "duration": "1h30m" } }, { "pause": {} }, { "partition": 0 }]),
        json!([]),
    ] {
        assert_eq!(rolling(json!({ "steps": good })), NONE);
    }
    let either_problem =
        "must have partition or pause, one of them: write each as a step of its own";
    let duration = "must be a duration such as 90s, 10m or 1h30m, of numbers of nine digits at most; leave it out to wait until the rollout is promoted";
    let path = "spec.updateStrategy.rollingUpdate.steps";
    for (step, problem) in [
        (json!({}), format!("{path}[1]: {either_problem}")),
        (
            json!({ "partition": 1, "pause": {} }),
            format!("{path}[1]: {either_problem}"),
        ),
        (
            json!({ "pause": { "duration": "soon" } }),
            format!("{path}[1].pause.duration: \"soon\": {duration}"),
        ),
        (
            json!({ "pause": { "duration": "-1m" } }),
            format!("{path}[1].pause.duration: \"-1m\": {duration}"),
        ),
        (
            json!({ "pause": { "duration": "1h-5s" } }),
            format!("{path}[1].pause.duration: \"1h-5s\": {duration}"),
        ),
        (
            json!({ "pause": { "duration": "9999999999999999999999h" } }),
            format!("{path}[1].pause.duration: \"9999999999999999999999h\": {duration}"),
        ),
        (
            json!({ "pause": { "duration": "10" } }),
            format!("{path}[1].pause.duration: \"10\": {duration}"),
        ),
        (
            json!({ "pause": { "duration": "" } }),
            format!("{path}[1].pause.duration: \"\": {duration}"),
        ),
    ] {
        let steps = json!([{ "partition": 1 }, step]);
        assert_eq!(rolling(json!({ "steps": steps })), [problem]);
    }
    let percent = rolling(json!({ "steps": [{ "partition": "101%" }] }));
    assert!(
        percent[0].starts_with(&format!("{path}[0].partition: \"101%\": ")),
        "{percent:?}"
    );
    let labelled = rolling(json!({ "byLabel": {}, "steps": [{ "pause": {} }] }));
    assert!(
        labelled[0].starts_with(&format!("{path}: needs byPartition")),
        "{labelled:?}"
    );
    let many = rolling(json!({ "steps": vec![json!({ "pause": {} }); 65] }));
    assert_eq!(
        many,
        [format!(
            "{path}: has 65 entries and may have 64: take some out"
        )]
    );
}

#[test]
fn progress_deadline_is_longer_than_min_ready_seconds() {
    let good = json!({ "minReadySeconds": 30, "progressDeadlineSeconds": 31 });
    assert_eq!(validate_part(good), NONE);
    let bad = validate_part(json!({ "minReadySeconds": 30, "progressDeadlineSeconds": 30 }));
    assert!(
        bad[0].starts_with(
            "spec.progressDeadlineSeconds: 30: must be more than minReadySeconds, which is 30"
        ),
        "{bad:?}"
    );
    assert_eq!(
        validate_part(json!({ "progressDeadlineSeconds": 0 })).len(),
        1
    );
    assert_eq!(validate_part(json!({ "minReadySeconds": -1 })).len(), 1);
}

#[test]
fn all_errors_are_reported_together() {
    assert_eq!(
        lines(&validate("web", &CollaSetSpec::default())),
        [
            "spec.template: is required: describe the Pod to create, with metadata and spec",
            "spec.selector: is required: set it to labels that spec.template carries",
        ]
    );
    let part = json!({
        "replicas": -1,
        "historyLimit": -2,
        "updateStrategy": { "podUpgradePolicy": "Later", "operationDelaySeconds": -3,
            "rollingUpdate": { "byPartition": { "partition": -4 } } },
        "scaleStrategy": { "operationDelaySeconds": -5,
            "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Keep", "whenScaled": "" } },
        "namingStrategy": { "podNamingSuffixPolicy": "Odd" },
    });
    assert_eq!(
        validate_part(part),
        [
            "spec.replicas: -1: must be 0 or more",
            "spec.updateStrategy.podUpgradePolicy: \"Later\": must be Recreate or InPlaceIfPossible or InPlaceOnly or Replace",
            "spec.updateStrategy.rollingUpdate.byPartition.partition: -4: must be 0 or more",
            "spec.updateStrategy.operationDelaySeconds: -3: must be 0 or more",
            "spec.namingStrategy.podNamingSuffixPolicy: \"Odd\": must be Random or PersistentSequence",
            "spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenDeleted: \"Keep\": must be Retain or Delete",
            "spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled: \"\": must be Retain or Delete",
            "spec.scaleStrategy.operationDelaySeconds: -5: must be 0 or more",
            "spec.historyLimit: -2: must be 0 or more",
        ]
    );
}

#[test]
fn collaset_name_leaves_room_for_derived_names() {
    let sequence =
        || spec(json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } }));
    let (long, longer) = ("a".repeat(57), "a".repeat(64));
    for (name, spec, want) in [
        ("", sequence(), None),
        ("a.b", spec(json!({})), None),
        (&long, spec(json!({})), None),
        (&long[1..], sequence(), None),
        (
            &longer,
            spec(json!({})),
            Some(
                "must have at most 63 characters: the names of revisions and Pods begin with it; shorten it",
            ),
        ),
        (
            &long,
            sequence(),
            Some(
                "must have at most 56 characters with podNamingSuffixPolicy PersistentSequence: Pods have <name>-<instance \
                 ID> as their name and hostname; choose another name, or Random",
            ),
        ),
        (
            "a.b",
            sequence(),
            Some(
                "must have only lower-case letters, digits and '-' with podNamingSuffixPolicy PersistentSequence: Pods have \
                 <name>-<instance ID> as their name and hostname; choose another name, or Random",
            ),
        ),
    ] {
        let want: Vec<_> = want
            .map(|w| format!("metadata.name: {name:?}: {w}"))
            .into_iter()
            .collect();
        assert_eq!(lines(&validate(name, &spec)), want);
    }
}

#[test]
fn selector_is_well_formed_and_matches_template() {
    for selector in [
        json!({ "matchLabels": null }),
        json!({ "matchLabels": null, "matchExpressions": [] }),
    ] {
        assert_eq!(
            validate_part(json!({ "selector": selector })),
            [
                "spec.selector: {}: must not be empty: the CollaSet would take every PersistentVolumeClaim of the namespace for its own; set \
                 it to labels that spec.template carries"
            ]
        );
    }
    assert_eq!(
        validate_part(
            json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "Is" }] } })
        ),
        [
            "spec.selector.matchExpressions[0].operator: \"Is\": must be In, NotIn, Exists or DoesNotExist"
        ]
    );
    assert_eq!(
        validate_part(json!({ "selector": { "matchLabels": { "app": "b" } } })),
        [
            "spec.template.metadata.labels: \"app=a,kusionstack.io/control=true\": must match spec.selector, which is app=b: \
             a Pod that it does not select is released at once; add these labels"
        ]
    );
    for (key, operator, values, is_good) in [
        (keys::INSTANCE_ID, "DoesNotExist", json!([]), false),
        (keys::INSTANCE_ID, "NotIn", json!(["1"]), false),
        (keys::INSTANCE_ID, "In", json!(["0"]), false),
        (keys::REVISION, "In", json!(["0"]), false),
        (keys::CREATING, "DoesNotExist", json!([]), false),
        (keys::COMPLETING, "DoesNotExist", json!([]), false),
        (keys::SERVICE_AVAILABLE, "Exists", json!([]), false),
        (keys::ORPHANED, "DoesNotExist", json!([]), false),
        (keys::INSTANCE_ID, "Exists", json!([]), true),
        (keys::REVISION, "Exists", json!([]), true),
        (keys::CONTROL, "In", json!(["true"]), true),
    ] {
        let by_expression = json!({
            "matchLabels": { "app": "a" },
            "matchExpressions": [{ "key": key, "operator": operator, "values": values }],
        });
        let problems = validate_part(json!({ "selector": by_expression }));
        assert_eq!(problems.is_empty(), is_good, "{problems:?}");
        let problem = format!("must not ask for {key}, which is set on single Pods");
        assert!(
            problems.iter().all(|p| p.contains(&problem)),
            "{problems:?}"
        );
    }
    let by_label = json!({ "matchLabels": { keys::INSTANCE_ID: "0" } });
    assert_eq!(validate_part(json!({ "selector": by_label })).len(), 1);
}

#[test]
fn malformed_template_is_refused_with_path() {
    let labels = "spec.template.metadata.labels: is required: a map from text to text with the labels that spec.selector matches";
    let wrong = labels.replace("labels: is", "labels: an object: is");
    for (template, want) in [
        (
            json!([]),
            "spec.template: a list: is required: describe the Pod to create, with metadata and spec",
        ),
        (
            json!({ "spec": null }),
            "spec.template.spec: is required: describe the Pod to create, with its containers",
        ),
        (
            json!({ "spec": "x" }),
            "spec.template.spec: a text: is required: describe the Pod to create, with its containers",
        ),
        (json!({ "metadata": null }), labels),
        (json!({ "metadata": { "labels": { "app": 1 } } }), &wrong),
    ] {
        assert_eq!(
            validate_part(json!({ "template": template })),
            [want],
            "{template}"
        );
    }
}

#[test]
fn labels_of_single_pods_are_refused_in_template() {
    for key in [
        keys::INSTANCE_ID,
        keys::REVISION,
        keys::TO_DELETE,
        keys::TO_REPLACE,
        keys::ORPHANED,
        keys::SERVICE_AVAILABLE,
        &Family::Operating.key("x"),
        &Family::OperationPermission.key("y"),
    ] {
        assert_eq!(
            validate_part(json!({ "template": { "metadata": { "labels": { key: "1" } } } })),
            [format!(
                "spec.template.metadata.labels[{key}]: \"1\": is reserved: it is set on single Pods, by CollaSet or for it; \
                 take it out of the template"
            )]
        );
    }
    assert_eq!(
        validate_part(
            json!({ "template": { "metadata": { "labels": { keys::CONTROL: "false" } } } })
        ),
        [
            "spec.template.metadata.labels[kusionstack.io/control]: \"false\": must be true: CollaSet manages all of its \
             Pods and sets the label itself; take it out"
        ]
    );
    assert_eq!(
        validate_part(
            json!({ "template": { "metadata": { "annotations": { keys::LAST_POD_STATUS: "{}" } } } })
        ),
        [
            "spec.template.metadata.annotations[collaset.kusionstack.io/last-pod-status]: \"{}\": is reserved: it is set on \
             single Pods, by CollaSet or for it; take it out of the template"
        ]
    );
}

#[test]
fn pvc_templates_need_unique_names_and_storage_requests() {
    let nameless = json!({ "spec": pvc_template("x")["spec"] });
    assert_eq!(
        validate_part(
            json!({ "volumeClaimTemplates": [pvc_template("a"), nameless, pvc_template("a"), pvc_template("A.b"), { "metadata": { "name": "d" } }] })
        ),
        [
            "spec.volumeClaimTemplates[1].metadata.name: is required: it is the name of the volume that containers mount",
            "spec.volumeClaimTemplates[2].metadata.name: \"a\": is the name of an earlier entry of spec.volumeClaimTemplates: give each entry a \
             name of its own",
            "spec.volumeClaimTemplates[3].metadata.name: \"A.b\": must have at most 63 lower-case letters, digits or '-', and \
             begin and end with a letter or digit",
            "spec.volumeClaimTemplates[4].spec.accessModes: is required: list at least one, such as ReadWriteOnce",
            "spec.volumeClaimTemplates[4].spec.resources.requests.storage: is required: set it to the size of the \
             volume, such as 10Gi",
        ]
    );
}

#[test]
fn invalid_context_name_is_refused() {
    for good in ["", "pool", "a.b-c"] {
        assert_eq!(
            validate_scale_strategy(json!({ "context": good })),
            NONE,
            "{good}"
        );
    }
    for bad in ["A b", "a/b", "-a"] {
        assert_eq!(
            validate_scale_strategy(json!({ "context": bad })),
            [format!(
                "spec.scaleStrategy.context: {bad:?}: must have at most 253 lower-case letters, digits, '-' or '.', and begin and \
                 end with a letter or digit: it is the name of a ResourceContext (a DNS-1123 subdomain); leave it out to use the \
                 name of the CollaSet"
            )]
        );
    }
}

#[test]
fn pod_named_twice_is_refused() {
    assert_eq!(
        validate_scale_strategy(
            json!({ "podToExclude": ["a", "a"], "podToInclude": ["b", ""], "podToDelete": ["a", "c", "b"] })
        ),
        [
            "spec.scaleStrategy.podToExclude[1]: \"a\": is in podToExclude already: take it out here",
            "spec.scaleStrategy.podToInclude[1]: \"\": must be the name of a Pod: take the empty entry out",
            "spec.scaleStrategy.podToDelete[0]: \"a\": is in podToExclude too: a Pod can only be excluded, included or \
             deleted; remove it from one of the lists",
            "spec.scaleStrategy.podToDelete[2]: \"b\": is in podToInclude too: a Pod can only be excluded, included or \
             deleted; remove it from one of the lists",
        ]
    );
}

#[test]
fn persistent_names_refuse_exclusion_and_inclusion() {
    let part = json!({
        "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" },
        "scaleStrategy": { "podToExclude": ["a"], "podToInclude": ["b"] },
    });
    let problem = "must be empty with podNamingSuffixPolicy PersistentSequence: the name of such a Pod belongs to its place \
                   in the set";
    assert_eq!(
        validate_part(part),
        [
            format!("spec.scaleStrategy.podToExclude: \"a\": {problem}"),
            format!("spec.scaleStrategy.podToInclude: \"b\": {problem}"),
        ]
    );
}

#[test]
fn selector_and_context_are_immutable() {
    let change = |old: Value, new: Value| lines(&validate_change(&spec(old), &spec(new)));
    let with_context = |context: &str| json!({ "scaleStrategy": { "context": context } });
    let with_label = |value: &str| json!({ "selector": { "matchLabels": { "app": value } } });
    for (old, new) in [
        (json!({}), json!({ "replicas": 7 })),
        (json!({}), json!({ "selector": { "matchExpressions": [] } })),
        (json!({}), json!({ "selector": null })), // another error says that it is required
        (json!({ "selector": null }), json!({})),
        (json!({ "selector": { "matchLabels": null } }), json!({})),
        (with_label("not a value"), json!({})),
        (json!({}), with_context("")),
        (with_context("a"), with_context("a")),
    ] {
        assert_eq!(change(old.clone(), new.clone()), NONE, "{old} to {new}");
    }
    assert_eq!(
        change(json!({}), with_label("b")),
        [
            "spec.selector: \"app=b\": is immutable, it was app=a: Pods would leave the CollaSet unseen; create another \
             CollaSet to select by other labels"
        ]
    );
    assert_eq!(
        change(with_context("a"), with_context("")),
        [
            "spec.scaleStrategy.context: \"\": is immutable, it was \"a\": create another CollaSet to use another pool of \
             instance IDs"
        ]
    );
}

#[test]
fn probably_unintended_fields_give_warnings() {
    let partition = |partition: i32, by_label: Value| {
        spec(json!({ "updateStrategy": { "rollingUpdate": {
            "byPartition": { "partition": partition }, "byLabel": by_label } } }))
    };
    assert_eq!(warnings(None, &partition(3, json!(null))), NONE);
    assert_eq!(warnings(None, &partition(4, json!({}))), NONE);
    assert_eq!(
        warnings(None, &partition(4, json!(null))),
        [
            "spec.updateStrategy.rollingUpdate.byPartition.partition: 4 is more than the 3 replicas: it is the number of Pods \
             kept on old revisions, so none is updated"
        ]
    );
    let sequence =
        spec(json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } }));
    let random = spec(json!({ "namingStrategy": {} }));
    assert_eq!(warnings(Some(&spec(json!({}))), &random), NONE);
    assert_eq!(warnings(None, &sequence), NONE);
    assert_eq!(
        warnings(Some(&random), &sequence),
        [
            "spec.namingStrategy.podNamingSuffixPolicy: Pods keep their names until they are recreated"
        ]
    );
}
