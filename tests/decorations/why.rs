//! `operating why` names the decorations of a Pod, and why the Pod does not have their updated revisions.

use operating::api::keys::Family;
use serde_json::{Value, json};
use testbed::Bed;

use crate::fixtures::{Decoration, by_partition};
use crate::sets::{Set, label};

#[tokio::test]
async fn why_names_operation_and_partition() {
    let bed = Bed::shared().await;
    let scope = bed.scope("why-decorated").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let former = log.updated_revision().await;
    let name = set.pods().await.into_values().next().unwrap();
    let name = name.metadata.name.unwrap();
    let decorations = || -> Vec<Value> {
        let output = bed.operating(&["why", &name, "-n", &scope.namespace, "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
        diagnosis["decorations"].as_array().unwrap().clone()
    };
    let settled = json!([{ "name": "log", "revision": former, "wantedRevision": former, "verdict": "upToDate" }]);
    assert_eq!(json!(decorations()), settled);

    set.hold().await;
    log.image("side:2").await;
    let waits = Family::PreCheck.key("collaset");
    set.until_pods("all to wait", |pods| {
        pods.values().all(|pod| label(pod, &waits).is_some())
    })
    .await;
    let revision = log.updated_revision().await;
    let reason = "operation collaset (update) is in PreCheck, and its line says what it waits for";
    let waiting = json!([
        { "name": "log", "revision": former, "wantedRevision": revision, "verdict": "waits", "reason": reason },
    ]);
    assert_eq!(json!(decorations()), waiting);

    set.release().await;
    log.settled().await;
    let kept = Decoration::new(&scope, "kept", by_partition(3)).await;
    kept.settled().await;
    let found = decorations();
    let verdicts: Vec<_> = found.iter().map(|d| (&d["name"], &d["verdict"])).collect();
    let wanted = [("kept", "stays"), ("log", "upToDate")];
    let wanted = wanted.map(|(name, verdict)| (json!(name), json!(verdict)));
    assert_eq!(
        verdicts,
        wanted.each_ref().map(|(name, verdict)| (name, verdict))
    );
    let reason = found[0]["reason"].as_str().unwrap();
    assert!(
        reason.contains("partition keeps 3 Pods as they are, and this Pod is one of them"),
        "{reason}"
    );
}
