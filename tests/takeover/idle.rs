//! The take-over itself touches no Pod, writes each object once at most, and then leaves everything at rest.

use std::collections::BTreeMap;

use serde_json::Value;
use testbed::plane::audit::Event;

use crate::taken_over::{Namespace, Objects, taken_over};

/// The objects of a kind, by name.
fn of_kind<'a>(objects: &'a Objects, kind: &str) -> BTreeMap<&'a str, &'a Value> {
    let of_kind = objects.iter().filter(|((of, _), _)| of == kind);
    of_kind
        .map(|((_, name), object)| (&**name, object))
        .collect()
}

/// Every set is at rest, or somebody else holds what is in flight.
#[tokio::test]
async fn pods_and_claims_are_not_written() {
    let cluster = taken_over().await;
    for (kind, count) in [("Pod", 36), ("PersistentVolumeClaim", 5)] {
        let before = of_kind(&cluster.dumped.before, kind);
        assert_eq!(before.len(), count);
        for (name, object) in &before {
            let after = cluster
                .dumped
                .after
                .get(&(kind.to_owned(), (*name).to_owned()));
            assert_eq!(after, Some(*object), "{kind} {name}");
        }
        assert_eq!(of_kind(&cluster.dumped.after, kind).len(), count);
    }
}

/// Besides Pods: no revision is made or dropped, and each instance keeps its ID.
#[tokio::test]
async fn revisions_and_instance_ids_are_kept() {
    let cluster = taken_over().await;
    let (before, after) = (&cluster.dumped.before, &cluster.dumped.after);
    let data = |objects| -> BTreeMap<String, Value> {
        let revisions = of_kind(objects, "ControllerRevision").into_iter();
        revisions
            .map(|(name, object)| (name.to_owned(), object["data"].clone()))
            .collect()
    };
    assert_eq!(data(after), data(before));
    let ids = |objects| -> BTreeMap<String, Vec<Value>> {
        let pools = of_kind(objects, "ResourceContext").into_iter();
        let ids = |pool: &Value| {
            let entries = pool["spec"]["contexts"].as_array().unwrap();
            entries.iter().map(|entry| entry["id"].clone()).collect()
        };
        pools
            .map(|(name, pool)| (name.to_owned(), ids(pool)))
            .collect()
    };
    assert_eq!(ids(after), ids(before));
}

/// What users wrote stays as it is.
#[tokio::test]
async fn specs_and_finalizers_of_owners_are_kept() {
    let cluster = taken_over().await;
    for kind in [
        "CollaSet",
        "PodDecoration",
        "PodTransitionRule",
        "OperationJob",
    ] {
        let after = of_kind(&cluster.dumped.after, kind);
        for (name, before) in of_kind(&cluster.dumped.before, kind) {
            let after = after[name];
            assert_eq!(after["spec"], before["spec"], "{kind} {name}");
            let (now, former) = (&after["metadata"], &before["metadata"]);
            assert_eq!(now["generation"], former["generation"], "{kind} {name}");
            assert_eq!(now["finalizers"], former["finalizers"], "{kind} {name}");
        }
    }
}

/// What an event wrote: `VERB RESOURCE/SUBRESOURCE`, and the object.
fn object(event: &Event) -> (String, String) {
    let about = event.object_ref.clone().unwrap_or_default();
    (about.resource, about.name)
}

fn writes_by_object(namespace: &Namespace) -> BTreeMap<(String, String), Vec<String>> {
    let mut writes = BTreeMap::<_, Vec<_>>::new();
    for event in &namespace.writes {
        // A write that is a dry run stores nothing.
        if !event.request_uri.contains("dryRun=All") {
            let request = format!("{} {}", event.verb, event.request_uri);
            writes.entry(object(event)).or_default().push(request);
        }
    }
    writes
}

#[tokio::test]
async fn takeover_writes_each_object_at_most_once() {
    let cluster = taken_over().await;
    let writes = writes_by_object(&cluster.dumped);
    // The figure is not zero: each set gets a status of its own.
    let sets = writes.keys().filter(|(kind, _)| kind == "collasets");
    assert_eq!(sets.count(), 10, "{writes:#?}");
    let twice: Vec<_> = writes.iter().filter(|(_, w)| w.len() > 1).collect();
    assert_eq!(twice, [], "{writes:#?}");
}

#[tokio::test]
async fn nothing_is_written_after_takeover() {
    let cluster = taken_over().await;
    for namespace in cluster.namespaces() {
        let writes = &namespace.writes_at_rest;
        assert_eq!(writes.len(), 0, "{writes:#?}");
    }
}
