//! How fast an update goes.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::bed::Bed;
use crate::bed::observer::Observer;
use crate::sets::Set;

#[tokio::test]
async fn no_more_than_max_unavailable_are_down_for_an_update() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let scope = Bed::shared().await.scope("max-unavailable").await;
        let strategy = json!({ "podUpgradePolicy": policy, "maxUnavailable": "40%" });
        let set = Set::new(&scope, "web", 6, json!({ "updateStrategy": strategy })).await;
        let observer = Observer::start(&scope).await;
        set.image("app:2").await;
        set.settled().await;
        assert_eq!(set.images().await, ["app:2"; 6]);
        let fewest = observer.fewest_available(|_| true, 6).await;
        fewest.at_least(4);
        assert!(fewest.count < 6, "the observer saw the update");
    }
}

#[tokio::test]
async fn a_replace_makes_no_more_pods_than_max_surge_says() {
    let scope = Bed::shared().await.scope("max-surge").await;
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 2 });
    let set = Set::new(&scope, "web", 6, json!({ "updateStrategy": strategy })).await;
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 6]);
    let mut alive = std::collections::BTreeSet::new();
    let mut most = 0;
    for (uid, pod) in observer.changes().await {
        let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        match pod.filter(|pod| !going(pod)) {
            Some(_) => alive.insert(uid),
            None => alive.remove(&uid),
        };
        most = most.max(alive.len());
    }
    assert!((7..=8).contains(&most), "{most}");
}
