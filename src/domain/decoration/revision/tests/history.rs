use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::decoration;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::revision::{
    RevisionHistory, RevisionWrite, plan_history, revision_data,
};

fn template(image: &str) -> Value {
    json!({ "containers": [{ "name": "log", "image": image }] })
}

fn with_data(name: &str, number: i64, data: Value) -> Arc<Revision> {
    Arc::new(Revision {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        revision: number,
        data,
        controller: Some("u1".to_owned()),
        ..Revision::default()
    })
}

/// A stored revision of the image `log:<number>`.
fn stored(name: &str, number: i64) -> Arc<Revision> {
    let of_image = decoration(template(&format!("log:{number}")), json!({}));
    with_data(name, number, revision_data(&of_image.spec))
}

fn plan(decoration: &PodDecoration, revisions: &[Arc<Revision>]) -> RevisionHistory {
    plan_history(decoration, revisions, &BTreeSet::new(), None, false)
}

fn created(history: &RevisionHistory) -> &Arc<Revision> {
    match &history.write {
        Some(RevisionWrite::Create(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

fn names(revisions: &[Arc<Revision>]) -> Vec<&str> {
    revisions.iter().map(|r| r.name.as_str()).collect()
}

#[test]
fn first_revision_is_created() {
    let decoration = decoration(template("log:1"), json!({}));
    let history = plan(&decoration, &[]);
    let revision = created(&history);
    assert_eq!(
        (history.updated.as_deref(), history.is_stored),
        (None, false)
    );
    assert_eq!(revision.revision, 1);
    assert_eq!(revision.data, revision_data(&decoration.spec));
    assert_eq!(revision.controller.as_deref(), Some("u1"));
    let hash = revision.name.strip_prefix("log-").unwrap();
    let labels = [
        ("app", "web"),
        (keys::REVISION_DATA_HASH, hash),
        (keys::REVISION_COLLISION, "0"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(revision.labels, labels.into());
    let again = plan(&decoration, std::slice::from_ref(revision));
    assert_eq!((again.write, again.is_stored), (None, true));
    assert_eq!(again.updated.as_deref(), Some(revision.name.as_str()));
    assert_eq!(again.revisions.keys().collect::<Vec<_>>(), [&revision.name]);
    assert_eq!(history.collisions, None);
}

// A PodDecoration and its revision, as a running Kuperator left them.
#[test]
fn revision_of_kuperator_is_found_and_has_name_of_ours() {
    let sidecar = json!({ "image": "side:1", "injectPolicy": "AfterPrimaryContainer", "name": "side", "resources": {} });
    let metadata = json!([{ "annotations": { "deco": "1" }, "patchPolicy": "Overwrite" }]);
    let mut deco = decoration(
        json!({ "containers": [sidecar], "metadata": metadata }),
        json!({}),
    );
    deco.metadata.name = Some("deco".into());
    deco.spec.weight = Some(0);
    let history = plan(&deco, &[]);
    assert_eq!(created(&history).name, "deco-5fc49b7cf4");
    let data = json!({ "spec": {
        "template": { "$patch": "replace", "containers": [sidecar], "metadata": metadata }, "weight": 0,
    } });
    let history = plan(&deco, &[with_data("deco-5fc49b7cf4", 1, data)]);
    assert_eq!((history.write, history.is_stored), (None, true));
}

#[test]
fn former_revision_stays_until_new_one_is_stored() {
    let revisions = [stored("log-a", 1), stored("log-b", 2), stored("log-c", 3)];
    let in_use = BTreeSet::new();
    for (published, status, updated) in [
        (Some("log-a"), "log-b", "log-a"),
        (None, "log-b", "log-b"),
        (Some("log-x"), "log-b", "log-b"),
        (None, "log-x", "log-c"),
        (None, "", "log-c"),
    ] {
        let decoration = decoration(template("log:4"), json!({ "updatedRevision": status }));
        for refused in [false, true] {
            let history = plan_history(&decoration, &revisions, &in_use, published, refused);
            assert_eq!(history.updated.as_deref(), Some(updated));
            assert!(!history.is_stored);
            assert_eq!(history.write.is_none(), refused);
            assert!(refused || created(&history).revision == 4);
        }
    }
}

#[test]
fn rollback_renumbers_latest_equal_revision() {
    let revisions = [stored("log-a", 1), stored("log-b", 2), stored("log-c", 3)];
    let decoration = decoration(template("log:1"), json!({ "updatedRevision": "log-c" }));
    let in_use = BTreeSet::new();
    for refused in [false, true] {
        let history = plan_history(&decoration, &revisions, &in_use, Some("log-c"), refused);
        assert_eq!(history.updated.as_deref(), Some("log-a"));
        assert!(history.is_stored);
        let renumbering = RevisionWrite::Renumber(Arc::clone(&revisions[0]), 4);
        assert_eq!(history.write, (!refused).then_some(renumbering));
    }
    let twin = with_data("log-d", 2, revisions[0].data.clone());
    let highest = with_data("log-e", i64::MAX, json!({}));
    let twins = [
        Arc::clone(&revisions[0]),
        Arc::clone(&twin),
        Arc::clone(&highest),
    ];
    let history = plan(&decoration, &twins);
    assert_eq!(history.write, Some(RevisionWrite::Renumber(twin, i64::MAX)));
}

#[test]
fn name_that_is_taken_raises_collision_count() {
    let decoration = decoration(template("log:9"), json!({}));
    let first = created(&plan(&decoration, &[])).name.clone();
    let taken = [with_data(&first, 1, json!({}))];
    let history = plan(&decoration, &taken);
    assert_eq!(history.collisions, Some(1));
    assert_eq!(created(&history).labels[keys::REVISION_COLLISION], "1");
    assert_ne!(created(&history).name, first);
    let mut counted = decoration;
    counted.status = serde_json::from_value(json!({ "collisionCount": 1 })).unwrap();
    assert_eq!(created(&plan(&counted, &[])).name, created(&history).name);
    let history = plan_history(&counted, &taken, &BTreeSet::new(), None, true);
    assert_eq!(history.collisions, Some(1), "refused");
}

#[test]
fn oldest_unused_revisions_beyond_limit_are_deleted() {
    let name = |number: i64| format!("log-{number}");
    let mut revisions: Vec<_> = (1..=30).rev().map(|n| stored(&name(n), n)).collect();
    let terminating = Revision {
        terminating: true,
        ..(*stored("log-0", 0)).clone()
    };
    revisions.push(Arc::new(terminating));
    let in_use = BTreeSet::from(["log-2".to_owned()]);
    let status = json!({ "updatedRevision": "log-3", "currentRevision": "log-1" });
    let mut decoration = decoration(template("log:4"), status);
    // The unused ones are 5 to 30.
    for (limit, first, count) in [
        (None, 5, 6),
        (Some(0), 5, 6),
        (Some(-2), 5, 6),
        (Some(1), 5, 25),
        (Some(24), 5, 2),
        (Some(26), 5, 0),
        (Some(100), 5, 0),
    ] {
        decoration.spec.history_limit = limit;
        let history = plan_history(&decoration, &revisions, &in_use, None, false);
        let wanted: Vec<_> = (first..first + count).map(name).collect();
        assert_eq!(names(&history.unused), wanted, "{limit:?}");
    }
}

#[test]
fn unreadable_revision_is_reported_and_left_alone() {
    let mut decoration = decoration(template("log:1"), json!({ "updatedRevision": "log-x" }));
    decoration.spec.history_limit = Some(1);
    let unreadable = with_data("log-x", 7, json!({ "spec": {} }));
    let history = plan(&decoration, &[Arc::clone(&unreadable)]);
    assert_eq!(
        history.problems,
        [
            "ControllerRevision log-x cannot be read: data.spec.template is missing. It is left alone; delete it"
        ]
    );
    assert_eq!(
        (history.updated.as_deref(), history.unused.len()),
        (None, 0)
    );
    assert_eq!(created(&history).revision, 8);
    assert!(history.revisions.is_empty());
}
