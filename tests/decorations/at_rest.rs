//! A cluster in which nothing changes gets no writes, and no revision that is in use is deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;
use testbed::pods::is_idle;
use testbed::{Bed, Scope};

use crate::fixtures::{Decoration, by_partition, instances, revision, side_images};
use crate::sets::Set;

/// How long nothing may be written. The controllers have no timers that are slower.
const REST: Duration = Duration::from_secs(60);

#[tokio::test]
async fn settled_decorations_cause_no_writes() {
    let bed = Bed::own().await; // a shared plane may have no audit log
    let scope = bed.scope("rest").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let log = Decoration::new(&scope, "log", json!({ "selector": instances(&[0]) })).await;
    log.settled().await;
    let all = json!({ "selector": { "matchLabels": { "app": "web" }, "matchExpressions": null } });
    log.edit(all).await;
    log.settled().await;
    set.settled().await;
    set.until_pods("all at rest", |pods| pods.values().all(is_idle))
        .await;
    assert_eq!(side_images(&set.pods().await), [Some("side:1"); 3]);
    // The figures of the status follow within a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let since = bed.audit_events().await.unwrap().len();
    tokio::time::sleep(REST).await;
    let writes = bed.server_writes(&scope.namespace, since).await.unwrap();
    assert_eq!(writes.len(), 0, "{writes:#?}");
}

/// Names of the revisions of PodDecorations that are stored.
async fn stored(scope: &Scope) -> BTreeSet<String> {
    let revisions = scope.api::<ControllerRevision>();
    let list = revisions.list(&ListParams::default()).await.unwrap();
    let of_decoration = |object: &ControllerRevision| {
        let owners = object.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|o| o.kind == "PodDecoration")
    };
    let found = list.items.into_iter().filter(of_decoration);
    found.map(|object| object.name_any()).collect()
}

#[tokio::test]
async fn revisions_in_use_are_never_pruned() {
    let scope = Bed::shared().await.scope("history").await;
    let log = Decoration::new(&scope, "log", json!({ "historyLimit": 1 })).await;
    let first = log.updated_revision().await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    log.settled().await;
    log.edit(by_partition(2)).await;
    for image in ["side:2", "side:3", "side:4", "side:5"] {
        log.image(image).await;
        log.settled().await;
    }
    set.settled().await;
    let pods = set.pods().await;
    assert!(
        pods.values()
            .all(|pod| revision(pod, "log") == Some(&*first))
    );
    let updated = log.updated_revision().await;
    testbed::wait::until("the unused revisions to be pruned", async || {
        // The revision of the Pods, that of the spec, and an unused one.
        stored(&scope).await.len() == 3
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let revisions = stored(&scope).await;
    assert!(
        revisions.contains(&first) && revisions.contains(&updated),
        "{revisions:?}"
    );
    let lost = &pods[&0];
    scope.delete(&lost.name_any()).await.unwrap();
    scope.until_gone(lost).await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [Some("side:1"); 2]);
}
