//! A restore from a backup, or a manifest that was exported earlier, puts an earlier record of the adapters back.

use kube::api::PostParams;
use testbed::pods::may_operate;
use testbed::wait;

use crate::bed::alone;
use crate::fixtures::{adapter, in_use, names, serving_by};

const ID: &str = "manual";

/// The manifest is from before the move to `guarded`, so its record does not name this adapter.
#[tokio::test]
async fn earlier_record_forgets_no_load_balancer() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("earlier-record").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let mut exported = web.get().await;
    web.edit(adapter("guarded")).await;
    wait::until("the move", async || in_use(&web).await == "guarded").await;
    web.consistent(2).await;
    exported.metadata.resource_version = None;
    exported.metadata.managed_fields = None;
    let params = PostParams::default();
    web.api.replace("web", &params, &exported).await.unwrap();
    wait::until("the record to name the load balancer again", async || {
        in_use(&web).await == "edge,guarded"
    })
    .await;
    scope.begin(&pods[0], ID).await.unwrap();
    wait::until("the operation", async || {
        may_operate(&scope.get(&pods[0]).await, ID)
    })
    .await;
    assert!(!bed.guarded.serving(&scope.namespace).contains(&pods[0]));
    wait::until("the members at the load balancer to go", async || {
        let state = bed.guarded.state();
        let mut keys = state.members.keys();
        keys.all(|key| key.0 != scope.namespace)
    })
    .await;
    assert!(bed.guarded.state().cut.is_empty());
    wait::until("the record", async || in_use(&web).await == "edge").await;
    scope.finish(&pods[0], ID).await.unwrap();
    web.consistent(2).await;
}
