//! A partition counts the members of all sets together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Decoration, by_partition, counts, mark, revision};
use crate::sets::{Set, label};

const DECORATION: &str = "log";

/// A part of the spec that selects the Pods of all sets of [`front`], and keeps this number of them back.
fn of_front(partition: usize) -> Value {
    let mut part = by_partition(partition);
    part["selector"] = json!({ "matchLabels": { "app": null, "tier": "front" } });
    part
}

/// Two sets of three Pods.
async fn front(scope: &Scope, part: Value) -> [Set<'_>; 2] {
    let mut part = part;
    json_patch::merge(
        &mut part,
        &json!({ "template": { "metadata": { "labels": { "tier": "front" } } } }),
    );
    let web = Set::new(scope, "web", 3, part.clone()).await;
    let api = Set::new(scope, "api", 3, part).await;
    [web, api]
}

/// Waits until the Pods of both sets are counted so by revision, and makes sure that it stays so.
async fn until_counts(sets: &[Set<'_>; 2], wanted: &[(&str, usize)]) {
    let wanted: BTreeMap<_, _> = wanted.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect();
    let sets = [&sets[0], &sets[1]];
    wait::until(&format!("Pods {wanted:?}"), async || {
        counts(&sets, DECORATION).await == wanted
    })
    .await;
    for set in sets {
        set.settled().await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counts(&sets, DECORATION).await, wanted);
}

#[tokio::test]
async fn partition_over_two_sets_is_exact_and_takes_nothing_back() {
    let scope = Bed::shared().await.scope("partition").await;
    let sets = front(&scope, json!({})).await;
    let observer = Observer::start(&scope).await;
    let log = Decoration::new(&scope, DECORATION, of_front(6)).await;
    let first = log.updated_revision().await;
    until_counts(&sets, &[("", 6)]).await;
    assert_eq!(log.status().await.current_revision, "");
    log.partition(4).await;
    until_counts(&sets, &[("", 4), (&first, 2)]).await;
    log.partition(1).await;
    until_counts(&sets, &[("", 1), (&first, 5)]).await;
    log.partition(3).await;
    until_counts(&sets, &[("", 1), (&first, 5)]).await;
    // Of the Pods that have the former revision, three get the next.
    let second = log.image("side:2").await;
    until_counts(&sets, &[("", 1), (&first, 2), (&second, 3)]).await;
    assert_eq!(log.status().await.current_revision, "");
    log.partition(0).await;
    until_counts(&sets, &[(&second, 6)]).await;
    let status = log.settled().await.status.unwrap();
    assert_eq!(status.current_revision, second);
    // No member has gone back to an older revision.
    let order = ["", &*first, &*second];
    let mut reached = BTreeMap::new();
    for pod in observer.versions().await {
        let member = (
            pod.labels()["app"].clone(),
            pod.labels()[keys::INSTANCE_ID].clone(),
        );
        let now = revision(&pod, DECORATION).unwrap_or_default();
        let now = order.iter().position(|revision| *revision == now).unwrap();
        // The former Pod of a member may be deleted after the next exists.
        if pod.metadata.deletion_timestamp.is_none() {
            let former = reached.insert(member.clone(), now).unwrap_or_default();
            assert!(former <= now, "{member:?}: {former} to {now}");
        }
    }
}

#[tokio::test]
async fn partition_holds_over_killed_leaders() {
    let bed = Bed::own().await;
    let scope = bed.scope("partition-kill").await;
    let slow = json!({ "updateStrategy": { "operationDelaySeconds": 2 } });
    let sets = front(&scope, slow).await;
    let log = Decoration::new(&scope, DECORATION, of_front(6)).await;
    let observer = Observer::start(&scope).await;
    log.partition(3).await;
    let mut revisions = BTreeSet::from([log.updated_revision().await]);
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(700 * round)).await;
        let leader = bed.leader().await;
        bed.kill(leader).await;
        bed.restart(leader).await;
        bed.leader().await;
        if round == 2 {
            revisions.insert(log.image("side:2").await);
        }
    }
    let last = log.updated_revision().await;
    wait::until("three Pods of the last revision", async || {
        counts(&[&sets[0], &sets[1]], DECORATION).await.get(&last) == Some(&3)
    })
    .await;
    for set in &sets {
        set.settled().await;
    }
    let key = mark(DECORATION);
    let mut members = BTreeMap::<String, BTreeSet<_>>::new();
    for pod in observer.versions().await {
        if let Some(revision) = label(&pod, &key) {
            let id = pod.labels()[keys::INSTANCE_ID].clone();
            let member = (pod.labels()["app"].clone(), id);
            members
                .entry(revision.to_owned())
                .or_default()
                .insert(member);
        }
    }
    assert_eq!(revisions.len(), 2);
    for revision in &revisions {
        let found = members.get(revision).map_or(0, BTreeSet::len);
        assert!(
            found <= 3,
            "{found} members have had {revision}: {members:?}"
        );
    }
}
