use serde_json::json;

use super::world::{NAME, World};
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::decoration::members::{Member, selected_members};

fn members_with(world: &World, selector: serde_json::Value) -> Vec<Member> {
    let selector = serde_json::from_value(selector).unwrap();
    selected_members(
        &world.observe(),
        &world.others,
        &Selector::compile(&selector).unwrap(),
    )
}

fn members(world: &World) -> Vec<Member> {
    members_with(world, json!({ "matchLabels": { "app": "x" } }))
}

/// Key, number of instances and revision of each member.
fn summary(world: &World) -> Vec<(String, usize, Option<String>)> {
    let members = members(world).into_iter();
    let summary = members.map(|member| {
        let (set, id) = &member.key;
        let held = member.instances.first().and_then(|i| i.held.clone());
        (format!("{set}-{id}"), member.instances.len(), held)
    });
    summary.collect()
}

fn entry(key: &str, instances: usize, held: Option<&str>) -> (String, usize, Option<String>) {
    (key.to_owned(), instances, held.map(str::to_owned))
}

#[test]
fn pods_and_pool_entries_are_members() {
    let mut world = World::new().with_set("web", 2).with_set("api", 1);
    let recorded = format!(r#"[{{"name":"{NAME}","revision":"log-1"}}]"#);
    world.add_entry("web", 2, &[(data::DECORATIONS, &recorded)]);
    world.add_entry("web", 3, &[(data::REPLACED, "true")]);
    world.add_pod("web", 5, Some("log-2")); // its entry was lost
    world.add_pod("web", 1, Some("log-1"));
    world.set("web").pods.get_mut(&1).unwrap().is_terminating = true;
    let want = [
        entry("api-0", 1, None),
        entry("web-0", 1, None),
        entry("web-1", 1, Some("log-1")),
        entry("web-2", 1, Some("log-1")),
        entry("web-5", 1, Some("log-2")),
    ];
    assert_eq!(summary(&world), want);
    let vacant = members(&world)
        .into_iter()
        .filter(|m| m.pods().next().is_none());
    let vacant: Vec<i64> = vacant.map(|member| member.key.1).collect();
    assert_eq!(vacant, [1, 2]);
}

#[test]
fn entries_of_other_sets_are_not_members() {
    let mut world = World::new().with_set("web", 2);
    let entry_data = world.set("web").entries.get_mut(&1).unwrap();
    entry_data.insert(data::OWNER.to_owned(), "api".to_owned());
    assert_eq!(summary(&world), [entry("web-0", 1, None)]);
}

#[test]
fn pair_counts_once_at_its_origin() {
    let mut world = World::new().with_set("web", 2);
    let link = |key: &str, id: &str| (key.to_owned(), id.to_owned());
    let web = world.set("web");
    web.entries
        .get_mut(&1)
        .unwrap()
        .extend([link(data::REPLACE_NEW, "4")]);
    world.add_entry(
        "web",
        4,
        &[(data::REPLACE_ORIGIN, "1"), (data::JUST_CREATE, "true")],
    );
    assert_eq!(
        summary(&world),
        [entry("web-0", 1, None), entry("web-1", 2, None)]
    );
    assert!(
        !members(&world)[1].has_revision("log-2"),
        "the new half is no new member"
    );
    world.add_pod("web", 4, Some("log-2"));
    assert!(members(&world)[1].has_revision("log-2"));
    let web = world.set("web");
    web.entries.remove(&1);
    web.pods.remove(&1);
    assert_eq!(
        summary(&world),
        [entry("web-0", 1, None), entry("web-4", 1, Some("log-2"))]
    );
}

#[test]
fn members_that_are_removed_leave() {
    let mut world = World::new().with_set("web", 2).with_set("api", 1);
    let entry = world.set("web").entries.get_mut(&1).unwrap();
    entry.insert(data::SCALE_IN.to_owned(), "true".to_owned());
    world.set("api").is_deleting = true;
    world.add_entry("api", 1, &[]);
    let leaving = members(&world)
        .into_iter()
        .map(|m| (m.key.clone(), m.is_leaving()));
    let key = |set: &str, id| (set.to_owned(), id);
    let want = [
        (key("api", 0), true),
        (key("web", 0), false),
        (key("web", 1), true),
    ];
    assert_eq!(leaving.collect::<Vec<_>>(), want);
}

#[test]
fn labels_of_next_template_revision_and_own_labels_select() {
    let mut world = World::new().with_set("web", 2);
    let ids = |world: &World, selector| -> Vec<i64> {
        members_with(world, selector)
            .iter()
            .map(|member| member.key.1)
            .collect()
    };
    let by_id = json!({ "matchLabels": { "collaset.kusionstack.io/instance-id": "1" } });
    assert_eq!(ids(&world, by_id), [1]);
    let by_revision = json!({ "matchLabels": { "controller-revision-hash": "t1" } });
    assert_eq!(ids(&world, by_revision), [0, 1]);
    let pod = world.set("web").pods.get_mut(&0).unwrap();
    pod.labels.insert("color".to_owned(), "blue".to_owned());
    assert_eq!(
        ids(&world, json!({ "matchLabels": { "color": "blue" } })),
        [0]
    );
}

#[test]
fn labels_that_decorations_set_do_not_select() {
    let mut world = World::new().with_set("web", 1);
    world.spec["template"]["metadata"][0] =
        json!({ "patchPolicy": "Overwrite", "labels": { "color": "blue", "app": "y" } });
    let plan = world.roll_out();
    let pod = world.set("web").pods.get_mut(&0).unwrap();
    pod.labels.insert("color".to_owned(), "blue".to_owned());
    world.others = vec![plan.publish.into()];
    assert_eq!(
        members_with(&world, json!({ "matchLabels": { "color": "blue" } })).len(),
        0
    );
    let pod = world.set("web").pods.get_mut(&0).unwrap();
    pod.labels.insert("color".to_owned(), "green".to_owned());
    assert_eq!(
        members_with(&world, json!({ "matchLabels": { "color": "green" } })).len(),
        1
    );
}
