//! Random walks: whatever is done to a set, once it is left alone it comes to rest as its spec says.

use proptest::prelude::*;
use serde_json::json;

use super::cases::one_claim;
use super::world::World;
use crate::api::collaset::PodNamingSuffixPolicy;
use crate::api::keys;
use crate::domain::collaset::pool;

#[derive(Clone, Debug)]
enum Act {
    Scale(i32),
    Image(u8),
    Partition(i32),
    ByLabel,
    Policy(&'static str),
    Pause(bool),
    /// A Pod dies, is told to go, is told to be replaced, has that taken back, is labelled for byLabel, fails.
    Kill(usize),
    Fail(usize),
    ToDelete(usize),
    ToReplace(usize),
    TakeBack(usize),
    Include(usize),
    /// Somebody edits the pool away, or a Pod's ID.
    LosePool,
    Renumber(usize, i64),
    /// Somebody takes a Pod's ID, or its owner, from it.
    Unnumber(usize),
    Orphan(usize),
    /// Some rounds pass.
    Step,
    /// As many rounds as there is something to do in.
    Rest,
    Surroundings,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..6i32).prop_map(Act::Scale),
        (1..4u8).prop_map(Act::Image),
        (0..4i32).prop_map(Act::Partition),
        Just(Act::ByLabel),
        prop::sample::select(&["Recreate", "InPlaceIfPossible", "Replace"][..])
            .prop_map(Act::Policy),
        any::<bool>().prop_map(Act::Pause),
        (0..6usize).prop_map(Act::Kill),
        (0..6usize).prop_map(Act::Fail),
        (0..6usize).prop_map(Act::ToDelete),
        (0..6usize).prop_map(Act::ToReplace),
        (0..6usize).prop_map(Act::TakeBack),
        (0..6usize).prop_map(Act::Include),
        Just(Act::LosePool),
        (0..6usize, 0..6i64).prop_map(|(pod, id)| Act::Renumber(pod, id)),
        (0..6usize).prop_map(Act::Unnumber),
        (0..6usize).prop_map(Act::Orphan),
        Just(Act::Step),
        Just(Act::Step),
        Just(Act::Step),
        Just(Act::Rest),
        Just(Act::Surroundings),
        Just(Act::Surroundings),
    ]
}

fn act_on(world: &mut World, act: Act) {
    let name = |world: &World, index: usize| world.pods.keys().nth(index).cloned();
    let label = |world: &mut World, index: usize, key: &str, value: Option<&str>| {
        if let Some(pod) = name(world, index).and_then(|n| world.pods.get_mut(&n)) {
            match value {
                Some(value) => pod.metadata.labels.insert(key.into(), value.into()),
                None => pod.metadata.labels.remove(key),
            };
        }
    };
    match act {
        Act::Scale(n) => world.edit(json!({ "replicas": n })),
        Act::Image(n) => world.image(&format!("app:{n}")),
        Act::Partition(n) => world.edit(
            json!({ "updateStrategy": { "rollingUpdate": { "byLabel": null, "byPartition": { "partition": n } } } }),
        ),
        Act::ByLabel => world.edit(json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } })),
        Act::Policy(policy) => world.edit(json!({ "updateStrategy": { "podUpgradePolicy": policy } })),
        Act::Pause(paused) => world.edit(json!({ "paused": paused })),
        Act::Kill(index) => {
            if let Some(name) = name(world, index) {
                world.delete(&name);
            }
        }
        Act::Fail(index) => {
            if let Some(pod) = name(world, index).and_then(|n| world.pods.get_mut(&n)) {
                pod.status.phase = "Failed".into();
                pod.status.conditions.clear();
            }
        }
        Act::ToDelete(index) => label(world, index, keys::TO_DELETE, Some("1")),
        Act::ToReplace(index) => label(world, index, keys::TO_REPLACE, Some("1")),
        Act::TakeBack(index) => label(world, index, keys::TO_REPLACE, None),
        Act::Include(index) => label(world, index, keys::UPDATE_INCLUDED, Some("1")),
        Act::LosePool => world.pool = None,
        Act::Renumber(index, id) => label(world, index, keys::INSTANCE_ID, Some(&id.to_string())),
        Act::Unnumber(index) => label(world, index, keys::INSTANCE_ID, None),
        // A Pod with a name that persists and without an owner holds up its successor until it is gone.
        Act::Orphan(_) if is_sequence(world) => {}
        Act::Orphan(index) => {
            if let Some(pod) = name(world, index).and_then(|n| world.pods.get_mut(&n)) {
                pod.metadata.owner_references.clear();
            }
        }
        Act::Step => {
            world.step();
        }
        Act::Rest => world.rest(),
        Act::Surroundings => {
            world.surroundings();
        }
    }
}

fn is_sequence(world: &World) -> bool {
    let naming = world.set.spec.naming_strategy.clone().unwrap_or_default();
    naming.pod_naming_suffix_policy == Some(PodNamingSuffixPolicy::PersistentSequence)
}

fn check(world: &World) {
    let wanted = usize::try_from(world.set.spec.replicas.unwrap()).unwrap();
    let members = world.members();
    assert_eq!(members.len(), wanted, "{members:#?}");
    let status = world.set.status.clone().unwrap();
    let updated = &status.updated_revision;
    let rolling = world
        .set
        .spec
        .update_strategy
        .clone()
        .unwrap_or_default()
        .rolling_update
        .unwrap_or_default();
    let old = members
        .values()
        .filter(|p| p.label(keys::REVISION) != Some(updated))
        .count();
    if rolling.by_label.is_none() {
        let kept = rolling
            .by_partition
            .unwrap_or_default()
            .partition
            .unwrap_or(0);
        assert!(
            old <= usize::try_from(kept).unwrap(),
            "{old} of older revisions, {kept} may be"
        );
    }
    for (id, pod) in &members {
        // The Pod is what its label says.
        let revision = &world.revisions[pod.label(keys::REVISION).unwrap()];
        let image = &revision.data["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(*image, pod.spec.containers[0].image, "ID {id}");
        for key in [
            keys::TO_REPLACE,
            keys::REPLACE_PAIR_NEW_ID,
            keys::REPLACE_PAIR_ORIGIN_NAME,
        ] {
            assert_eq!(pod.label(key), None, "ID {id}");
        }
    }
    let contexts = world.pool.iter().flat_map(|p| &p.contexts);
    let ids: Vec<i64> = contexts.clone().map(|c| c.id).collect();
    assert_eq!(ids, world.ids(), "the pool holds what is there");
    for context in contexts {
        let revision = members[&context.id].label(keys::REVISION);
        assert_eq!(
            context.data.get(pool::REVISION).map(String::as_str),
            revision
        );
    }
    let claims = world.set.spec.volume_claim_templates.len();
    for (id, pod) in &members {
        assert_eq!(pod.spec.claims.len(), claims, "ID {id}");
        for claim in &pod.spec.claims {
            let claim = &world.claims[claim];
            assert_eq!(
                claim.labels[keys::INSTANCE_ID],
                id.to_string(),
                "{}",
                claim.name
            );
        }
    }
    let ready = status
        .conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .unwrap();
    assert_eq!(ready.status, "True", "{ready:?}");
}

proptest! {
    #[test]
    fn a_set_that_is_left_alone_becomes_what_its_spec_says(
        sequence in any::<bool>(),
        claims in any::<bool>(),
        retain in any::<bool>(),
        acts in prop::collection::vec(act(), 0..40),
    ) {
        let naming = if sequence { "PersistentSequence" } else { "Random" };
        let mut spec = if claims { one_claim() } else { json!({}) };
        spec["namingStrategy"] = json!({ "podNamingSuffixPolicy": naming });
        let policy = if retain { "Retain" } else { "Delete" };
        spec["scaleStrategy"] = json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": policy } });
        let mut world = World::new(3, spec);
        world.settle();
        for act in acts {
            act_on(&mut world, act);
        }
        world.edit(json!({ "paused": false }));
        world.settle();
        // A user's own request stays until it is taken back.
        for pod in world.pods.values_mut() {
            pod.metadata.labels.remove(keys::TO_REPLACE);
        }
        world.settle();
        check(&world);
    }
}
