//! Connections to the API server that die without a sign: what they do not deliver is not decided without.

use std::time::Duration;

use operating::cluster::following::TRUSTED;
use serde_json::json;
use tokio::time::sleep;
use xtask::proxy::{Asked, Effect, Fault};

use crate::bed::Bed;
use crate::bed::objects::refusal;

fn rule_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path().ends_with("/podtransitionrules")
}

#[tokio::test]
async fn rule_that_no_watch_delivers_holds_its_pods_all_the_same() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("dead").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(rule_watches));
    sleep(TRUSTED + Duration::from_secs(1)).await;
    // The rules are as the replicas know them.
    scope.delete(&pods[0]).await.unwrap();

    scope.rule("stop", json!({"app": "web"}), json!(0)).await;
    for denied in [scope.delete(&pods[1]).await, scope.evict(&pods[2]).await] {
        let status = refusal(denied);
        assert_eq!(status.code, 429, "{status:?}");
    }
    bed.faults().lift();
    crate::bed::wait::until("the rule to be known", async || {
        let status = refusal(scope.delete(&pods[1]).await);
        status.message.contains("PodTransitionRule stop")
    })
    .await;
}
