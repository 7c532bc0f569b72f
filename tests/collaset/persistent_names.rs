//! Pod names that survive the Pod.

use kube::ResourceExt;
use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Set, uids};

#[tokio::test]
async fn persistent_names_are_ordinals_and_never_change() {
    let scope = Bed::shared().await.scope("sequence").await;
    let naming = json!({ "namingStrategy": { "podNamingSuffixPolicy": "PersistentSequence" } });
    let set = Set::new(&scope, "web", 4, naming).await;
    let pods = set.pods().await;
    for (id, pod) in &pods {
        let name = format!("web-{id}");
        assert_eq!(pod.name_any(), name);
        assert_eq!(pod.spec.as_ref().unwrap().hostname.as_ref(), Some(&name));
    }
    scope.delete("web-1").await.unwrap();
    scope.until_gone(&pods[&1]).await;
    set.until_pods("web-1 again", |pods| pods.len() == 4).await;
    set.settled().await;
    set.edit(json!({ "replicas": 3 })).await;
    set.settled().await;
    assert_eq!(set.names().await, ["web-0", "web-1", "web-2"]);

    // All Pods are recreated, one at a time.
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    let observer = Observer::start(&scope).await;
    let before = set.pods().await;
    set.edit(json!({ "template": { "spec": { "terminationGracePeriodSeconds": 7 } } }))
        .await;
    set.settled().await;
    assert_eq!(set.names().await, ["web-0", "web-1", "web-2"]);
    let after = uids(&set.pods().await);
    assert!(uids(&before).iter().all(|(id, uid)| after[id] != *uid));
    observer.fewest_available(|_| true, 3).await.at_least(2);
}
