//! Properties that hold for all actions of operators, rules, controller, kubelet and cooperators, in any order, with
//! the webhook up or down.

use std::collections::BTreeMap;

use operating::api::keys::{self, Family};
use operating::domain::lifecycle::{LifecycleWrite, Stage, controller_step, operator, validate};
use operating::domain::pod::{Pod, ReadinessGate};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use crate::world::{FINALIZER, World};

const IDS: [&str; 3] = ["a", "b", "c"];
const TYPES: [&str; 2] = ["update", "restart"];

#[derive(Clone, Debug)]
enum Action {
    Begin(&'static str, &'static str, bool),
    Finish(&'static str),
    Undo(&'static str),
    Hold(&'static str),
    Release(&'static str),
    Deny(&'static str),
    Protect(bool),
    StayOffline(bool),
    Crash,
    Controller,
    Kubelet,
    Cooperator,
    Webhook(bool),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let id = || select(&IDS[..]);
    let action = prop_oneof![
        6 => (id(), select(&TYPES[..]), any::<bool>()).prop_map(|(id, t, d)| Action::Begin(id, t, d)),
        4 => id().prop_map(Action::Finish),
        2 => id().prop_map(Action::Undo),
        2 => id().prop_map(Action::Hold),
        2 => id().prop_map(Action::Release),
        2 => id().prop_map(Action::Deny),
        1 => any::<bool>().prop_map(Action::Protect),
        1 => any::<bool>().prop_map(Action::StayOffline),
        1 => Just(Action::Crash),
        8 => Just(Action::Controller),
        5 => Just(Action::Kubelet),
        5 => Just(Action::Cooperator),
        2 => any::<bool>().prop_map(Action::Webhook),
    ];
    vec(action, 0..60)
}

fn worlds() -> impl Strategy<Value = World> {
    select(vec![
        World::serving(),
        World::serving().with_traffic(),
        World::bare(),
        {
            let mut new = World::serving().with_traffic();
            new.pod.status.conditions.clear();
            new.pod.metadata.finalizers.clear();
            new.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
            new.pod
                .metadata
                .labels
                .insert(keys::CREATING.to_owned(), "1".to_owned());
            new
        },
    ])
}

fn act(world: &mut World, action: &Action) {
    match *action {
        Action::Begin(id, type_, deletes) => {
            let begin = operator::begin_labels(&world.pod, id, type_, deletes, world.now);
            world.patch(&begin).unwrap();
        }
        Action::Finish(id) => world.finish(id),
        Action::Undo(id) => world.undo(id),
        Action::Hold(id) => _ = world.held.insert(id.to_owned()),
        Action::Release(id) => {
            world.held.remove(id);
            world.denied.remove(id);
        }
        Action::Deny(id) => _ = world.denied.insert(id.to_owned()),
        Action::Protect(on) => {
            let finalizers = if on {
                vec![FINALIZER.to_owned()]
            } else {
                Vec::new()
            };
            world
                .write(|pod| pod.metadata.finalizers = finalizers)
                .unwrap();
        }
        Action::StayOffline(on) => world
            .write(|pod| {
                pod.metadata.labels.remove(keys::STAY_OFFLINE);
                if on {
                    pod.metadata
                        .labels
                        .insert(keys::STAY_OFFLINE.to_owned(), String::new());
                }
            })
            .unwrap(),
        Action::Crash => {
            let mut status = world.clone();
            status.set_condition("Ready", false);
            world.write(|pod| *pod = status.pod).unwrap();
        }
        Action::Controller => _ = world.reconcile(),
        Action::Kubelet => world.kubelet(),
        Action::Cooperator => world.cooperator(),
        Action::Webhook(up) => world.webhook_down = !up,
    }
}

/// Types with a permission, and types of IDs whose rules have passed.
fn permissions(world: &World) -> (Vec<String>, Vec<String>) {
    let labels = &world.pod.metadata.labels;
    let permitted = labels.keys().filter_map(|k| match Family::parse(k) {
        Some((Family::OperationPermission, type_)) => Some(type_.to_owned()),
        _ => None,
    });
    let passed = IDS.iter().filter(|id| world.has(Family::PreChecked, id));
    let mut passed: Vec<_> = passed
        .filter_map(|id| labels.get(&Family::OperationType.key(id)).cloned())
        .collect();
    passed.sort();
    passed.dedup();
    (permitted.collect(), passed)
}

/// Operators finish their operations once they may, and all other components do their work.
fn drain(world: &mut World) {
    world.webhook_down = false;
    world.held.clear();
    world.denied.clear();
    act(world, &Action::StayOffline(false));
    for _ in 0..=IDS.len() {
        world.quiesce();
        for id in IDS {
            if world.has(Family::Operating, id) {
                assert!(
                    world.has(Family::Operate, id),
                    "{id} waits forever: {:?}",
                    world.labels()
                );
                world.finish(id);
            }
        }
    }
    world.quiesce();
}

// PROPTEST_CASES sets the number of cases (default 256).
proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_ends_and_leaves_nothing_behind(mut world in worlds(), actions in actions()) {
        for action in &actions {
            act(&mut world, action);
        }
        drain(&mut world);
        prop_assert!(world.is_idle(), "{:?}", world.labels());
        prop_assert_ne!(world.condition(), Some(false));
        let writes = world.writes;
        world.quiesce();
        prop_assert_eq!(world.writes, writes, "an idle Pod is not written");
    }

    #[test]
    fn no_operation_precedes_its_rules_or_the_traffic(mut world in worlds(), actions in actions()) {
        for action in &actions {
            world.took_offline = false;
            let before = world.clone();
            act(&mut world, action);
            let busy = IDS.iter().any(|id| world.has(Family::Preparing, id) || world.has(Family::Operate, id));
            prop_assert!(!(busy && world.available()), "{action:?}: {:?}", world.labels());
            for id in IDS {
                let is_new = |family| world.has(family, id) && !before.has(family, id);
                if is_new(Family::PreChecked) || is_new(Family::PostChecked) {
                    let denied = world.denied.contains(id) && !world.webhook_down;
                    prop_assert!(!world.held.contains(id) && !denied, "{action:?} passed {id}: {:?}", world.labels());
                }
                if is_new(Family::Operate) {
                    prop_assert!(!world.pod.is_protected(), "{action:?} of a protected Pod");
                    let on = world.pod.has_service_ready_gate() && world.condition() == Some(true);
                    prop_assert!(!on, "{action:?} of a Pod on traffic");
                }
            }
            if before.condition() == Some(true) && world.condition() == Some(false) {
                prop_assert!(!world.available(), "{action:?} takes traffic off a Pod that counts as available");
            }
            if before.pod.is_available() && !world.available() && !world.webhook_down {
                prop_assert!(world.took_offline, "{action:?} takes the Pod away unnoticed");
            }
            if !world.webhook_down && world.writes > before.writes {
                let (permitted, passed) = permissions(&world);
                prop_assert_eq!(permitted, passed, "{:?}", action);
            }
        }
    }

    #[test]
    fn controller_and_webhook_take_equal_steps(mut world in worlds(), actions in actions()) {
        for action in &actions {
            act(&mut world, action);
            let mut unobserved = world.clone();
            unobserved.webhook_down = true;
            let mut observed = world.clone();
            observed.webhook_down = false;
            // The webhook asks the rules immediately. Without rules, the steps with and without the webhook are equal.
            for world in [&mut unobserved, &mut observed] {
                world.held.extend(IDS.map(str::to_owned));
                for _ in 0..8 {
                    world.reconcile();
                }
            }
            prop_assert_eq!(unobserved.labels(), observed.labels(), "after {:?}: {:?}", action, world.labels());
            prop_assert_eq!(unobserved.condition(), observed.condition());
        }
    }

    /// On a Pod without a readiness gate no operation blocks another.
    #[test]
    fn operation_goes_same_way_alone_and_beside_another(actions in actions()) {
        let (mut alone, mut beside) = (World::bare(), World::bare());
        for action in &actions {
            // The operation has its own type, because operations of a type share the permission.
            let action = match action {
                Action::Begin(id, _, deletes) => Action::Begin(id, if *id == "a" { "update" } else { "restart" }, *deletes),
                Action::StayOffline(_) | Action::Crash | Action::Webhook(_) => continue,
                other => other.clone(),
            };
            act(&mut beside, &action);
            if !matches!(action, Action::Begin("b" | "c", ..) | Action::Finish("b" | "c") | Action::Undo("b" | "c")) {
                act(&mut alone, &action);
            }
            // Beside another operation, a write of that operation may carry a step for which a single operation has to
            // wait for the controller.
            alone.reconcile();
            beside.reconcile();
            prop_assert_eq!(alone.labels_of("a"), beside.labels_of("a"));
        }
    }

    /// On a Pod with a readiness gate, an operation that only waits in PreCheck does not change the way of another.
    #[test]
    fn waiting_operation_is_not_noticed_by_another(mut alone in worlds(), actions in actions()) {
        let mut beside = alone.clone();
        beside.held.insert("b".to_owned());
        beside.begin("b", "restart");
        for action in &actions {
            if matches!(action, Action::Begin("b" | "c", ..) | Action::Release("b") | Action::Finish("b") | Action::Undo("b")) {
                continue;
            }
            act(&mut alone, action);
            act(&mut beside, action);
            let of_b = |label: &String| label.ends_with("/b") || label.contains("/b=") || label == "preparing-to-delete";
            let mut rest = beside.labels();
            rest.retain(|label| !of_b(label));
            let mut expected = alone.labels();
            expected.retain(|label| !of_b(label));
            prop_assert_eq!(rest, expected, "{:?}", action);
            prop_assert_eq!(alone.condition(), beside.condition());
        }
    }

    #[test]
    fn malformed_objects_do_not_break_the_lifecycle(old in pods(), new in pods(), now: u64) {
        for old in [None, Some(&old)] {
            let _ = validate(old, &new);
            let mut run = LifecycleWrite::from_write(old, &new, now);
            for stage in [Stage::PreCheck, Stage::PostCheck] {
                for (i, id) in run.ids_awaiting_stage(stage).into_iter().enumerate() {
                    if i % 2 == 0 { run.pass_stage(stage, &id) } else { run.hold_stage(stage, &id) }
                }
            }
            run.advance_all();
            let once = run.patch();
            run.advance_all();
            prop_assert_eq!(&run.patch(), &once);
            let mut settled = new.clone();
            once.apply(&mut settled.metadata.labels);
            // A type that this write adds may announce an operation; the next write knows that it does not. A Pod is
            // also not available in the write that creates it or asks its rules.
            let announced = |key: &String| {
                [keys::PREPARING_TO_DELETE, keys::SERVICE_AVAILABLE, keys::CREATING, keys::COMPLETING].contains(&key.as_str()) || matches!(Family::parse(key), Some((Family::OperationType, _)))
            };
            for first in [true, false] {
                let mut again = LifecycleWrite::from_write(Some(&settled), &settled, now);
                again.advance_all();
                let patch = again.patch();
                let more = patch.0.keys().filter(|key| !first || !announced(key)).count();
                prop_assert_eq!(more, 0, "{:?} has more to do: {:?}", settled.metadata.labels, patch);
                patch.apply(&mut settled.metadata.labels);
            }
        }
    }

    #[test]
    fn controller_comes_to_rest_on_any_object(mut pod in pods(), now: u64) {
        pod.metadata.labels.insert(keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
        let mut world = World { pod, now: now / 2, webhook_down: true, ..World::default() };
        for _ in 0..8 {
            world.reconcile();
        }
        let writes = world.writes;
        let step = controller_step(&world.pod, now);
        prop_assert!(step.labels.is_empty() && step.service_ready.is_none(), "{step:?} of {:?}", world.labels());
        prop_assert_eq!(world.writes, writes);
    }
}

/// Pods with any combination of labels, including malformed labels.
fn pods() -> impl Strategy<Value = Pod> {
    let id = select(vec!["a", "b", "", "a/b", "-", "update"]);
    let of_id = (select(&Family::ALL[..]), id).prop_map(|(family, id)| family.key(id));
    let other = select(vec![
        keys::SERVICE_AVAILABLE,
        keys::CREATING,
        keys::STAY_OFFLINE,
        keys::PREPARING_TO_DELETE,
        "operating.podopslifecycle.kusionstack.io",
        "/",
        "",
    ])
    .prop_map(str::to_owned);
    let value =
        select(vec!["1", "update", "", "!", "18446744073709551616"]).prop_map(str::to_owned);
    let labels = btree_map(prop_oneof![8 => of_id, 2 => other], value, 0..14);
    let annotation = proptest::option::of(select(vec!["{", "[]", "{}", crate::world::EXPECTED]));
    (
        labels,
        annotation,
        any::<(bool, bool, bool)>(),
        proptest::option::of(any::<bool>()),
        any::<bool>(),
    )
        .prop_map(
            |(labels, annotation, (gate, protected, terminating), condition, ready)| {
                pod_of(
                    labels,
                    annotation,
                    gate,
                    protected,
                    terminating,
                    condition,
                    ready,
                )
            },
        )
}

fn pod_of(
    labels: BTreeMap<String, String>,
    annotation: Option<&str>,
    gate: bool,
    protected: bool,
    terminating: bool,
    condition: Option<bool>,
    ready: bool,
) -> Pod {
    let mut world = World::default();
    world.pod.metadata.labels = labels;
    if let Some(text) = annotation {
        world
            .pod
            .metadata
            .annotations
            .insert(keys::AVAILABLE_CONDITIONS.to_owned(), text.to_owned());
    }
    if gate {
        *world.pod.spec.readiness_gates = vec![ReadinessGate {
            condition_type: keys::SERVICE_READY.to_owned(),
        }];
    }
    if protected {
        world.pod.metadata.finalizers.push(FINALIZER.to_owned());
    }
    world.pod.metadata.deletion_timestamp = terminating.then(|| "2026-01-01T00:00:00Z".to_owned());
    if let Some(condition) = condition {
        world.set_condition(keys::SERVICE_READY, condition);
    }
    world.set_condition("Ready", ready);
    world.pod
}
