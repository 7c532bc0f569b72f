//! `operating uninstall` releases Services and their Pods.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::json;
use testbed::{Bed, wait};

use crate::fixtures::Employer;
use crate::sets::Set;

/// A protection finalizer of another program.
const FOREIGN: &str = "prot.podopslifecycle.kusionstack.io/slb";

/// The servers are stopped first, so nobody but the command removes the marks.
#[tokio::test]
async fn pods_and_services_can_be_deleted_after_uninstalling() {
    let bed = Bed::own().await;
    let scope = bed.scope("traffic-uninstall").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let part = json!({ "metadata": { "finalizers": ["example.com/keep"] } });
    let web = Employer::new(&scope, "web", part).await;
    web.consistent(2).await;
    let names: Vec<_> = set
        .pods()
        .await
        .values()
        .map(ResourceExt::name_any)
        .collect();
    for name in &names {
        web.marks(name, (true, true)).await;
    }
    let mut finalizers = scope.get(&names[0]).await.finalizers().to_vec();
    finalizers.push(FOREIGN.to_owned());
    let foreign = json!({ "metadata": { "finalizers": finalizers } });
    scope.patch(&names[0], foreign).await.unwrap();
    bed.kill_all().await;

    let output = bed.operating(&["uninstall", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("members stay registered"), "{output}");
    for name in &names {
        web.marks(name, (false, false)).await;
    }
    assert_eq!(scope.get(&names[0]).await.finalizers(), [FOREIGN]);
    let service = web.get().await;
    assert_eq!(service.finalizers(), ["example.com/keep"]);
    let ours = service.annotations().keys();
    let ours: Vec<_> = ours
        .filter(|key| key.starts_with(keys::CONSIST_PREFIX))
        .collect();
    assert_eq!(ours, [keys::CONSIST_DRAIN_SECONDS]);
    assert_eq!(web.condition().await, None);

    let free = json!({ "metadata": { "finalizers": [] } });
    scope.patch(&names[0], free.clone()).await.unwrap();
    for name in &names {
        let pod = scope.get(name).await;
        scope.delete(name).await.unwrap();
        scope.until_gone(&pod).await;
    }
    web.edit(free).await;
    web.delete().await;
    web.gone().await;
    wait::until("no Pod to be left", async || {
        scope.list("app=web").await.is_empty()
    })
    .await;
}
