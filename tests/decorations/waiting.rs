//! Updates for decorations that have to wait: they begin once, and nothing is undone.

use std::time::Duration;

use operating::api::keys::Family;
use serde_json::{Value, json};
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Decoration, begins, side_images};
use crate::sets::{Set, label};

/// Scopes of a set: its template is up to date in all cases, and the last Pods are out of scope in some.
fn scopes() -> [(&'static str, Value); 2] {
    let partition = |partition: i32| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } });
    [("waiting", partition(0)), ("waiting-part", partition(2))]
}

#[tokio::test]
async fn pod_held_by_a_rule_is_begun_once() {
    let bed = Bed::own().await; // a shared plane may have no audit log
    for (namespace, mut part) in scopes() {
        let scope = bed.scope(namespace).await;
        part["updateStrategy"]["podUpgradePolicy"] = json!("InPlaceIfPossible");
        let log = Decoration::new(&scope, "log", json!({})).await;
        let set = Set::new(&scope, "web", 3, part).await;
        set.hold().await;
        let observer = Observer::start(&scope).await;
        // Recreations would begin one by one until the first new Pod exists.
        log.image("side:2").await;
        let waits = Family::PreCheck.key("collaset");
        set.until_pods("all to wait", |pods| {
            pods.values().all(|pod| label(pod, &waits).is_some())
        })
        .await;
        let since = bed.audit_events().await.unwrap().len();
        // The set reconciles often in this time, because its Pods and its status change.
        for replicas in [4, 3] {
            set.edit(json!({ "historyLimit": replicas })).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        let writes = bed.server_writes(&scope.namespace, since).await.unwrap();
        let of_pods = |event: &&testbed::plane::audit::Event| {
            let object = event.object_ref.as_ref();
            let is_dry = event.request_uri.contains("dryRun");
            !is_dry && object.is_some_and(|object| object.resource == "pods")
        };
        assert_eq!(writes.iter().filter(of_pods).count(), 0, "{writes:#?}");
        set.release().await;
        log.settled().await;
        set.settled().await;
        assert_eq!(side_images(&set.pods().await), [Some("side:2"); 3]);
        let begins = begins(&observer).await;
        assert_eq!(begins.into_values().collect::<Vec<_>>(), [1; 3]);
    }
}

#[tokio::test]
async fn pod_with_operation_delay_is_begun_once() {
    for (namespace, mut part) in scopes() {
        let scope = Bed::shared().await.scope(namespace).await;
        part["updateStrategy"]["operationDelaySeconds"] = json!(5);
        let set = Set::new(&scope, "web", 3, part).await;
        let observer = Observer::start(&scope).await;
        let log = Decoration::new(&scope, "log", json!({})).await;
        log.settled().await;
        set.settled().await;
        assert_eq!(side_images(&set.pods().await), [Some("side:1"); 3]);
        let begins = begins(&observer).await;
        assert_eq!(begins.into_values().collect::<Vec<_>>(), [1; 3]);
    }
}
