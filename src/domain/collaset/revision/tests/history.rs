use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{kuperator_data, set, template};
use crate::api::collaset::{CollaSet, CollaSetStatus};
use crate::api::keys;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::RevisionChange;
use crate::domain::collaset::revision::history::{HistoryFailure, RevisionHistory, plan_history};
use crate::domain::collaset::revision::stable::RevisionUse;
use crate::domain::collaset::revision::{data, hash};

fn web_set(image: &str) -> CollaSet {
    set(template(image), json!([]))
}

fn stored_revision(name: &str, revision: i64, data: Value) -> Arc<Revision> {
    Arc::new(Revision {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        revision,
        data,
        controller: Some("u1".to_owned()),
        labels: [
            ("app".to_owned(), "web".to_owned()),
            (keys::REVISION_DATA_HASH.to_owned(), "x".to_owned()),
        ]
        .into(),
        ..Revision::default()
    })
}

fn our_revision(name: &str, revision: i64, image: &str) -> Arc<Revision> {
    stored_revision(name, revision, data::revision_data(&web_set(image).spec))
}

fn plan_unused(set: &CollaSet, revisions: &[Arc<Revision>]) -> RevisionHistory {
    plan_history(set, revisions, &RevisionUse::new(), false).unwrap()
}

/// The revisions after the changes are written.
fn apply_changes(
    mut revisions: Vec<Arc<Revision>>,
    changes: &[RevisionChange],
) -> Vec<Arc<Revision>> {
    let mut edit = |r: &Arc<Revision>, new: Option<Revision>| {
        revisions.retain(|x| x.name != r.name);
        revisions.extend(new.map(Arc::new));
    };
    for change in changes {
        match change {
            RevisionChange::Create(r) => edit(r, Some((**r).clone())),
            RevisionChange::Renumber(r, n, stable) => edit(
                r,
                Some(Revision {
                    revision: *n,
                    stable: Some(stable.clone()),
                    ..(**r).clone()
                }),
            ),
            RevisionChange::MarkStable(r, stable) => edit(
                r,
                Some(Revision {
                    stable: Some(stable.clone()),
                    ..(**r).clone()
                }),
            ),
            RevisionChange::Adopt(r) => edit(
                r,
                Some(Revision {
                    controller: Some("u1".into()),
                    ..(**r).clone()
                }),
            ),
            RevisionChange::Release(r) => edit(
                r,
                Some(Revision {
                    controller: None,
                    ..(**r).clone()
                }),
            ),
            RevisionChange::Delete(r) => edit(r, None),
        }
    }
    revisions
}

#[test]
fn first_revision_is_created_and_then_kept() {
    let set = web_set("a:1");
    let history = plan_unused(&set, &[]);
    let [RevisionChange::Create(created)] = &history.changes[..] else {
        panic!("{:?}", history.changes);
    };
    let short = hash::hash_data(&data::revision_data(&set.spec), None);
    assert_eq!(created.name, format!("web-{short}"));
    assert_eq!(created.revision, 1);
    assert_eq!(created.labels["app"], "web");
    assert_eq!(created.labels[keys::REVISION_DATA_HASH], short);
    assert_eq!(created.labels[keys::REVISION_COLLISION], "0");
    assert_eq!(
        (&history.updated.name, &history.current.name),
        (&created.name, &created.name)
    );
    assert!(
        history.find_revision(&created.name).is_some() && history.find_revision("other").is_none()
    );

    let history = plan_unused(&set, &apply_changes(vec![], &history.changes));
    assert_eq!(history.changes, []);
    assert_eq!(history.updated.name, format!("web-{short}"));
}

#[test]
fn revision_by_kuperator_is_taken_over() {
    let mut newer = template("a:1");
    newer["spec"]["hostUsers"] = json!(false);
    let revisions = [
        stored_revision("web-old", 3, kuperator_data(&template("a:0"), &[])),
        stored_revision("web-go", 7, kuperator_data(&newer, &[])),
    ];
    let history = plan_unused(&set(newer.clone(), json!([])), &revisions);
    assert_eq!(history.changes, []);
    assert_eq!(history.updated.name, "web-go");

    // An older revision that has lost fields must not become the target of a rollback.
    let revisions = [
        stored_revision("web-go", 3, kuperator_data(&newer, &[])),
        our_revision("web-2", 7, "a:2"),
    ];
    let history = plan_unused(&set(newer, json!([])), &revisions);
    assert!(
        matches!(&history.changes[..], [RevisionChange::Create(_)]),
        "{:?}",
        history.changes
    );
}

#[test]
fn rollback_gives_old_revision_new_number() {
    let revisions = [
        our_revision("web-1", 1, "a:1"),
        our_revision("web-2", 2, "a:2"),
        our_revision("web-3", 3, "a:3"),
    ];
    let mut set = web_set("a:1");
    set.status = Some(CollaSetStatus {
        current_revision: "web-3".into(),
        ..Default::default()
    });
    let history = plan_unused(&set, &revisions);
    assert_eq!(
        history.changes,
        [RevisionChange::Renumber(
            revisions[0].clone(),
            4,
            "web-3".to_owned()
        )]
    );
    assert_eq!(
        (history.updated.name.as_str(), history.updated.revision),
        ("web-1", 4)
    );
    assert_eq!(history.current.name, "web-3");
}

#[test]
fn largest_revision_number_is_reused() {
    let (a, b) = (
        our_revision("web-a", 1, "a:1"),
        our_revision("web-b", i64::MAX, "b:1"),
    );
    let set = web_set("a:1");
    let first = plan_unused(&set, &[Arc::clone(&a), Arc::clone(&b)]);
    assert_eq!(
        (&*first.updated.name, first.updated.revision),
        ("web-a", i64::MAX)
    );
    let then = apply_changes(vec![a, b], &first.changes);
    let second = plan_unused(&set, &then);
    assert_eq!(second.updated.name, "web-a");
    assert_eq!(second.changes, [], "not renumbered again and again");
}

#[test]
fn revision_name_taken_by_other_data_is_collision() {
    let set = web_set("a:1");
    let name = |n| hash::revision_name("web", &hash::hash_data(&data::revision_data(&set.spec), n));
    let history = plan_unused(
        &set,
        &[
            our_revision(&name(None), 1, "a:2"),
            our_revision(&name(Some(1)), 2, "a:3"),
        ],
    );
    assert_eq!(history.collisions, Some(2));
    assert_eq!(history.updated.name, name(Some(2)));
    assert_eq!(history.updated.labels[keys::REVISION_COLLISION], "2");
}

#[test]
fn collision_count_wraps_at_its_maximum() {
    let mut set = web_set("a:1");
    let last = Some(i32::MAX);
    set.status = Some(crate::api::collaset::CollaSetStatus {
        collision_count: last,
        ..Default::default()
    });
    let name = hash::revision_name(
        "web",
        &hash::hash_data(&data::revision_data(&set.spec), last),
    );
    let history = plan_unused(&set, &[our_revision(&name, 1, "a:2")]);
    assert_eq!(history.collisions, Some(i32::MIN));
}

#[test]
fn orphaned_revision_of_same_data_keeps_its_name() {
    let set = web_set("a:1");
    let name = hash::revision_name(
        "web",
        &hash::hash_data(&data::revision_data(&set.spec), None),
    );
    let mut stripped = (*our_revision(&name, 1, "a:1")).clone();
    stripped.controller = None;
    stripped.labels.clear();
    let history = plan_unused(&set, &[stripped.into()]);
    assert_eq!(history.updated.name, name);
    assert_eq!(history.collisions, None);
}

#[test]
fn only_selected_revisions_with_valid_format_are_adopted() {
    let orphan = |edit: fn(&mut Revision)| {
        let mut revision = (*our_revision("web-1", 1, "a:1")).clone();
        revision.controller = None;
        edit(&mut revision);
        Arc::new(revision)
    };
    let set = web_set("a:1");
    let good = orphan(|_| {});
    let history = plan_unused(&set, std::slice::from_ref(&good));
    assert_eq!(history.changes, [RevisionChange::Adopt(good.clone())]);
    assert_eq!(history.updated.name, "web-1");

    for bad in [
        orphan(|r| r.labels = [("app".to_owned(), "db".to_owned())].into()),
        orphan(|r| r.data = json!({ "raw": "of another controller" })),
        orphan(|r| r.controller = Some("u2".to_owned())),
    ] {
        let history = plan_unused(&set, &[bad]);
        assert!(
            matches!(&history.changes[..], [RevisionChange::Create(_)]),
            "{:?}",
            history.changes
        );
        assert_eq!(history.problems, Vec::<String>::new());
    }

    let mut expressions = set;
    expressions.spec.selector = serde_json::from_value(
        json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] }),
    )
    .unwrap();
    let history = plan_unused(&expressions, &[good]);
    assert!(matches!(&history.changes[..], [RevisionChange::Create(_)]));
}

/// Sets whose selectors overlap give their revisions the same labels.
#[test]
fn only_revisions_named_by_the_set_are_adopted() {
    let long = "a".repeat(60);
    let dashed = format!("{}-bcd", "a".repeat(51));
    for (set_name, revision, adopted) in [
        ("web", "web-65bb57b6b5", true),
        ("web", "web-a-65bb57b6b5", false),
        ("web", "two-65bb57b6b5", false),
        ("web", "web", false),
        ("web-a", "web-a-65bb57b6b5", true),
        ("web-a", "web-65bb57b6b5", false),
        (&long, &hash::revision_name(&long, "65bb57b6b5"), true),
        (&dashed, &hash::revision_name(&dashed, "65bb57b6b5"), true),
        // Kuperator truncates long names and replaces dots in this way.
        (&dashed, &format!("{}--65bb57b6b5", "a".repeat(51)), true),
        ("web.a", "web-a-65bb57b6b5", true),
        ("web.a", "web.a-65bb57b6b5", true),
        ("web-a", "web.a-65bb57b6b5", false),
    ] {
        let mut set = web_set("a:1");
        set.metadata.name = Some(set_name.to_owned());
        let orphan = Arc::new(Revision {
            controller: None,
            ..(*our_revision(revision, 1, "a:1")).clone()
        });
        let history = plan_unused(&set, std::slice::from_ref(&orphan));
        let adopts = history.changes == [RevisionChange::Adopt(orphan)];
        assert_eq!(adopts, adopted, "{set_name} and {revision}");
    }
}

#[test]
fn unreadable_revision_starts_no_rollout() {
    let broken = stored_revision("web-broken", 5, json!({ "spec": { "template": 1 } }));
    let mut set = web_set("a:1");
    let history = plan_unused(&set, &[broken.clone(), our_revision("web-1", 1, "a:1")]);
    assert_eq!(
        (history.changes.len(), history.updated.name.as_str()),
        (0, "web-1")
    );
    assert!(
        history.problems[0].contains("web-broken cannot be read: spec.template is not an object")
    );
    assert!(history.find_revision("web-broken").is_none());

    set.status = Some(CollaSetStatus {
        updated_revision: "web-broken".into(),
        ..Default::default()
    });
    let history = plan_unused(&set, &[broken]);
    assert_eq!(
        (history.changes.len(), history.updated.name.as_str()),
        (0, "web-broken")
    );
    assert_eq!(history.updated.data, data::revision_data(&set.spec));
    assert!(history.problems[0].contains("delete it to have the template rolled out"));
}

#[test]
fn malformed_template_is_an_error() {
    let error = plan_history(
        &set(json!("text"), json!([])),
        &[],
        &RevisionUse::new(),
        false,
    )
    .unwrap_err();
    assert_eq!(
        error,
        HistoryFailure::Invalid("spec.template is not an object".into())
    );
}

#[test]
fn latest_revision_replaces_one_that_cannot_be_written() {
    let first = our_revision("web-1", 1, "a:1");
    let plan = |revisions: &[Arc<Revision>]| {
        plan_history(&web_set("a:2"), revisions, &RevisionUse::new(), true)
    };
    let history = plan(std::slice::from_ref(&first)).unwrap();
    assert_eq!((&history.updated, history.changes), (&first, vec![]));
    assert_eq!(plan(&[]).unwrap_err(), HistoryFailure::NoRevision);
}

#[test]
fn note_stays_on_latest_revision_while_new_one_is_refused() {
    let revisions = [
        our_revision("web-1", 1, "a:1"),
        our_revision("web-2", 2, "a:2"),
    ];
    for template in ["a:1", "a:3"] {
        let mut set = web_set(template);
        set.status = Some(CollaSetStatus {
            current_revision: "web-2".into(),
            ..Default::default()
        });
        let planned = plan_history(&set, &revisions, &RevisionUse::new(), true)
            .unwrap()
            .changes;
        let note = RevisionChange::MarkStable(revisions[1].clone(), "web-2".to_owned());
        assert_eq!(planned, [note], "{template}");
    }
}

#[test]
fn terminating_revision_is_not_deleted_again() {
    let mut set = web_set("a:3");
    set.spec.history_limit = Some(0);
    let mut ends = Revision::clone(&our_revision("web-1", 1, "a:1"));
    for (terminating, deletions) in [(false, 1), (true, 0)] {
        ends.terminating = terminating;
        let revisions = [Arc::new(ends.clone()), our_revision("web-3", 3, "a:3")];
        let planned = plan_history(&set, &revisions, &RevisionUse::new(), false)
            .unwrap()
            .changes;
        let deleted = planned.iter();
        let deleted = deleted.filter(|change| matches!(change, RevisionChange::Delete(_)));
        assert_eq!(deleted.count(), deletions);
    }
}

#[test]
fn stable_revision_is_recorded_from_status() {
    let revisions = [
        our_revision("web-1", 1, "a:1"),
        our_revision("web-2", 2, "a:2"),
    ];
    let mut set = web_set("a:2");
    let changes = |set: &CollaSet, revisions: &[Arc<Revision>]| {
        plan_history(set, revisions, &RevisionUse::new(), false)
            .unwrap()
            .changes
    };
    assert_eq!(changes(&set, &revisions), [], "nothing is known yet");
    for stable in ["web-1", "web-2"] {
        set.status = Some(CollaSetStatus {
            current_revision: stable.into(),
            ..Default::default()
        });
        let marked = changes(&set, &revisions);
        let note = RevisionChange::MarkStable(revisions[1].clone(), stable.to_owned());
        assert_eq!(marked, [note]);
        assert_eq!(
            changes(&set, &apply_changes(revisions.to_vec(), &marked)),
            []
        );
    }
}

#[test]
fn oldest_beyond_limit_are_deleted_unless_in_use() {
    let revisions: Vec<_> = (1..=30)
        .map(|n| our_revision(&format!("web-{n}"), n, &format!("a:{n}")))
        .collect();
    let deleted = |limit: Option<i32>, in_use: &[&str]| -> Vec<String> {
        let mut set = web_set("a:30");
        set.spec.history_limit = limit;
        set.status = Some(CollaSetStatus {
            current_revision: "web-29".into(),
            ..Default::default()
        });
        let in_use = in_use.iter().map(|name| ((*name).to_owned(), 1)).collect();
        let history = plan_history(&set, &revisions, &in_use, false).unwrap();
        let name = |change: &RevisionChange| match change {
            RevisionChange::Delete(revision) => Some(revision.name.clone()),
            _ => None,
        };
        history.changes.iter().filter_map(name).collect()
    };
    assert_eq!(deleted(Some(26), &[]), ["web-1", "web-2"]);
    assert_eq!(deleted(Some(26), &["web-1"]), ["web-2"]);
    assert_eq!(deleted(None, &[]).len(), 8);
    assert_eq!(deleted(Some(0), &[]).len(), 28);
    assert_eq!(deleted(Some(-1), &[]).len(), 28);
    assert!(deleted(Some(100), &[]).is_empty());
}

proptest! {
    /// Each edit is planned until there is nothing left to do.
    #[test]
    fn plans_settle_and_keep_what_is_in_use(edits in proptest::collection::vec((0..6, 0..3), 1..12)) {
        let (mut revisions, mut current) = (vec![], String::new());
        for (image, limit) in edits {
            let mut set = web_set(&format!("a:{image}"));
            set.spec.history_limit = Some(limit);
            set.status = Some(CollaSetStatus { current_revision: current.clone(), ..Default::default() });
            let in_use: RevisionUse = revisions.first().map(|r: &Arc<Revision>| (r.name.clone(), 1)).into_iter().collect();
            let first = plan_history(&set, &revisions, &in_use, false).unwrap();
            revisions = apply_changes(revisions, &first.changes);
            let second = plan_history(&set, &revisions, &in_use, false).unwrap();
            prop_assert_eq!(&second.changes, &vec![]);
            prop_assert_eq!(&second.updated.name, &first.updated.name);
            prop_assert_eq!(&second.updated.data, &data::revision_data(&set.spec));
            prop_assert!(in_use.keys().chain([&first.current.name]).all(|name| second.find_revision(name).is_some()));
            prop_assert!(revisions.len() <= limit as usize + 3);
            prop_assert_eq!(revisions.iter().map(|r| r.revision).max(), Some(second.updated.revision));
            current = first.current.name.clone();
        }
    }
}
