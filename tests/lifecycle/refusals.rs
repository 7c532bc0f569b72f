//! Writes that are refused, each with its field and the remedy; and forged labels, which have no effect.

use operating::api::keys::{self, Family};
use operating::domain::lifecycle::{LifecycleWrite, Phase, Stage, validate};
use operating::domain::pod::Pod;

use crate::world::World;

/// The only error about an added label on a serving Pod.
fn refusal(world: &World, key: &str, value: &str) -> (String, String) {
    let mut new = world.pod.clone();
    new.metadata.labels.insert(key.to_owned(), value.to_owned());
    let mut errors = validate(Some(&world.pod), &new);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = errors.remove(0);
    (error.path, error.message)
}

fn operated_on() -> World {
    let mut world = World::serving();
    world.begin("a", "update");
    world.quiesce();
    assert!(world.has(Family::Operate, "a"));
    world
}

#[test]
fn malformed_keys_and_values_name_the_rule() {
    let world = World::serving();
    let rule = "use 1 to 63 of letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";
    let long = "x".repeat(64);
    let cases = [
        (
            Family::Operating.prefix().to_owned(),
            "1",
            format!(
                "name the operation after a slash: {}/<ID>",
                Family::Operating.prefix()
            ),
        ),
        (
            Family::Operating.key(""),
            "1",
            format!("\"\" is no ID: {rule}"),
        ),
        (
            Family::Operating.key("a/b"),
            "1",
            format!("\"a/b\" is no ID: {rule}"),
        ),
        (
            Family::Operating.key(&long),
            "1",
            format!("\"{long}\" is no ID: {rule}"),
        ),
        (
            Family::Operating.key("a"),
            &long,
            format!("\"{long}\" is no label value: {rule}"),
        ),
        (
            Family::OperationPermission.key("-t"),
            "1",
            format!("\"-t\" is no type: {rule}"),
        ),
        (
            Family::OperationType.key("a"),
            "",
            "the type is empty: name the operation, for example \"update\"".to_owned(),
        ),
    ];
    for (key, value, message) in cases {
        assert_eq!(
            refusal(&world, &key, value),
            (format!("metadata.labels[{key}]"), message)
        );
    }
}

#[test]
fn malformed_annotation_names_its_form() {
    let world = World::serving();
    let mut new = world.pod.clone();
    new.metadata
        .annotations
        .insert(keys::AVAILABLE_CONDITIONS.to_owned(), "[]".to_owned());
    let errors = validate(Some(&world.pod), &new);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].path,
        "metadata.annotations[pod.kusionstack.io/available-conditions]"
    );
    assert_eq!(
        errors[0].message,
        "invalid type: sequence, expected a map at line 1 column 0; write \
         {\"expectedFinalizers\":{\"<Kind>/<namespace>/<name>\":\"<finalizer>\"}} or remove the annotation"
    );
    assert_eq!(
        validate(None, &new).len(),
        2,
        "at creation too, where service-available is one as well"
    );
}

#[test]
fn malformed_stored_keys_block_no_unrelated_update() {
    let mut world = World::serving();
    world
        .pod
        .metadata
        .annotations
        .insert(keys::AVAILABLE_CONDITIONS.to_owned(), "{".to_owned());
    world
        .pod
        .metadata
        .labels
        .insert(Family::Operated.key("old"), "1".to_owned());
    world
        .pod
        .metadata
        .labels
        .insert(Family::OperationType.key("old"), String::new());
    let mut new = world.pod.clone();
    new.metadata
        .labels
        .insert("app".to_owned(), "web".to_owned());
    assert_eq!(validate(Some(&world.pod), &new), []);
}

#[test]
fn forged_labels_are_refused_with_what_is_missing() {
    let idle = World::serving();
    let tail = "; only the lifecycle writes this label: leave it out, and begin an operation with \
        operating.podopslifecycle.kusionstack.io/<ID> and operation-type.podopslifecycle.kusionstack.io/<ID>";
    let operating = Family::Operating.key("a");
    let cases = [
        (Family::PreCheck, format!("{operating} is missing")),
        (
            Family::PreChecked,
            format!("it needs {operating} and the label operation-permission of its type"),
        ),
        (
            Family::OperationPermission,
            "no ID of type \"a\" is pre-checked".to_owned(),
        ),
        (Family::Preparing, "its rules have not passed".to_owned()),
        (Family::Operate, "its rules have not passed".to_owned()),
        (
            Family::Operated,
            format!(
                "the operation is not finished: remove {operating} once it may be operated and is done"
            ),
        ),
        (
            Family::DoneOperationType,
            "the operation is not finished".to_owned(),
        ),
        (
            Family::PostCheck,
            "the operation is not finished".to_owned(),
        ),
        (
            Family::PostChecked,
            "the operation is not finished".to_owned(),
        ),
        (
            Family::Completing,
            "the operation is not finished".to_owned(),
        ),
    ];
    for (family, missing) in cases {
        assert_eq!(
            refusal(&idle, &family.key("a"), "1").1,
            format!("{missing}{tail}"),
            "{family:?}"
        );
    }
    let mut preparing = World::serving();
    preparing.begin("a", "update");
    assert_eq!(
        refusal(&preparing, &Family::Operate.key("a"), "1").1,
        format!(
            "the Pod still serves, or a finalizer prot.podopslifecycle.kusionstack.io protects it{tail}"
        )
    );
    let operated = refusal(&operated_on(), &Family::Operated.key("a"), "1").1;
    assert!(
        operated.starts_with("the operation is not finished: remove operating."),
        "{operated}"
    );
}

#[test]
fn refused_service_available_label_names_what_the_pod_lacks() {
    let remedy = "leave the label out, the lifecycle controller adds it once the Pod serves";
    let reason = |pod: Pod| {
        let world = World {
            pod,
            ..World::default()
        };
        refusal(&world, keys::SERVICE_AVAILABLE, "1").1
    };
    let with = |change: fn(&mut World)| {
        let mut world = World::serving();
        world.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
        change(&mut world);
        world.pod
    };
    let cases: [(Pod, &str); 6] = [
        (operated_on().pod, "an operation is in flight on the Pod"),
        (
            with(|w| {
                _ = w
                    .pod
                    .metadata
                    .labels
                    .insert(keys::STAY_OFFLINE.to_owned(), "1".to_owned())
            }),
            "the Pod is labelled podopslifecycle.kusionstack.io/stay-offline",
        ),
        (
            with(|w| w.set_condition(keys::SERVICE_READY, false)),
            "its condition pod.kusionstack.io/service-ready is not True",
        ),
        (
            with(|w| w.set_condition("Ready", false)),
            "the Pod is not Ready",
        ),
        (
            with(|w| {
                *w = w.clone().with_traffic();
                w.pod.metadata.finalizers.clear();
            }),
            "finalizers expected by the annotation pod.kusionstack.io/available-conditions are missing",
        ),
        (
            with(|w| w.pod.metadata.deletion_timestamp = Some("now".to_owned())),
            "the Pod is terminating",
        ),
    ];
    for (pod, expected) in cases {
        assert_eq!(reason(pod), format!("{expected}: {remedy}"));
    }
    let entitled = with(|_| ());
    let mut new = entitled.clone();
    new.metadata
        .labels
        .insert(keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
    assert_eq!(validate(Some(&entitled), &new), []);
    assert_eq!(
        validate(None, &new)[0].message,
        format!("the Pod is new: {remedy}")
    );
}

/// Without validation, too: the state machine removes forged labels.
#[test]
fn forged_labels_do_not_advance_an_operation() {
    let world = World::serving();
    let mut new = world.pod.clone();
    for family in Family::ALL {
        if family != Family::UndoOperationType {
            new.metadata.labels.insert(family.key("a"), "a".to_owned());
        }
    }
    let mut run = LifecycleWrite::from_write(Some(&world.pod), &new, 7);
    assert_eq!(
        run.ids_awaiting_stage(Stage::PreCheck),
        ["a"],
        "the mark only asks"
    );
    assert!(run.ids_awaiting_stage(Stage::PostCheck).is_empty());
    run.pass_stage(Stage::PreCheck, "a");
    run.hold_stage(Stage::PreCheck, "a");
    run.advance_all();
    assert_eq!(run.phase_of("a"), Phase::PreCheck);
    assert!(!run.takes_offline());
    run.patch().apply(&mut new.metadata.labels);
    let result = World {
        pod: new,
        ..World::default()
    };
    assert_eq!(
        result.labels(),
        [
            "operating/a=a",
            "operation-type/a=a",
            "pre-check/a",
            "service-available"
        ]
    );
}

#[test]
fn webhook_labels_cannot_be_removed_by_hand() {
    let mut world = operated_on();
    let before = world.labels();
    world
        .write(|pod| {
            for family in [Family::PreChecked, Family::Operate] {
                pod.metadata.labels.remove(&family.key("a"));
            }
            pod.metadata
                .labels
                .remove(&Family::OperationPermission.key("update"));
        })
        .unwrap();
    assert_eq!(world.labels(), before);
}

#[test]
fn new_pod_begins_only_operations_that_its_owner_requests() {
    let mut new = operated_on().pod;
    new.metadata
        .labels
        .insert(keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
    new.metadata
        .labels
        .insert(keys::CREATING.to_owned(), "1".to_owned());
    let mut run = LifecycleWrite::from_write(None, &new, 7);
    assert_eq!(run.ids_awaiting_stage(Stage::PreCheck), ["a"]);
    run.advance_all();
    assert!(!run.takes_offline());
    run.patch().apply(&mut new.metadata.labels);
    assert_eq!(validate(None, &new), []);
    let result = World {
        pod: new,
        ..World::default()
    };
    assert_eq!(
        result.labels(),
        [
            "creating",
            "operating/a",
            "operation-type/a=update",
            "pre-check/a"
        ]
    );
}

#[test]
fn operation_without_type_waits_for_it() {
    let mut world = World::serving();
    world
        .write(|pod| {
            _ = pod
                .metadata
                .labels
                .insert(Family::Operating.key("a"), "1".to_owned())
        })
        .unwrap();
    assert_eq!(world.labels_of("a"), ["operating/a", "pre-check/a"]);
    world.quiesce();
    world.begin("a", "update");
    world.quiesce();
    assert!(world.has(Family::Operate, "a"));
}

#[test]
fn ninth_operation_is_refused_and_stored_operations_continue() {
    let mut world = World::serving();
    let begin = |pod: &mut Pod, id: &str| {
        let labels = &mut pod.metadata.labels;
        labels.insert(Family::Operating.key(id), "1".to_owned());
        labels.insert(Family::OperationType.key(id), "update".to_owned());
    };
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        begin(&mut world.pod, id);
    }
    let mut eighth = world.pod.clone();
    begin(&mut eighth, "h");
    assert_eq!(validate(Some(&world.pod), &eighth), []);

    let mut ninth = eighth.clone();
    begin(&mut ninth, "i");
    let errors = validate(Some(&eighth), &ninth);
    let paths: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!(
        paths,
        [Family::Operating, Family::OperationType]
            .map(|f| format!("metadata.labels[{}]", f.key("i")))
    );
    assert_eq!(
        errors[0].message,
        "9 operations would be in flight on the Pod, and at most 8 may: finish or undo some first"
    );
    // A new Pod may not have nine operations either, because all of them begin at its creation.
    let mut new = ninth.clone();
    new.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    assert_eq!(validate(None, &new).len(), 18);

    // The server's own deletion still begins, and nine stored operations can be finished.
    let mut deleted = eighth.clone();
    begin(&mut deleted, "pod-delete");
    assert_eq!(validate(Some(&eighth), &deleted), []);
    let mut finished = ninth.clone();
    finished.metadata.labels.remove(&Family::Operating.key("a"));
    finished
        .metadata
        .labels
        .insert(Family::UndoOperationType.key("b"), "update".to_owned());
    assert_eq!(validate(Some(&ninth), &finished), []);
}
