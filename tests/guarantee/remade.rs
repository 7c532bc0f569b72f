//! A rule that is deleted and made again under its name, as `kubectl replace --force` does.

use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::json;
use xtask::proxy::{Asked, Effect, Fault};

use crate::bed::Bed;
use crate::bed::objects::{at_once, names};
use crate::bed::observer::Observer;

fn pod_watches(asked: &Asked) -> bool {
    asked.watches() && asked.uri.path() == "/api/v1/pods"
}

#[tokio::test]
async fn pod_deleted_under_the_former_rule_is_missed_by_the_new_one() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("remade").await;
    scope.deploy_where_open("web", 10).await;
    let pods = scope.all_available("app=web", 10).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 10).await;
    scope.close_nodes().await;
    let observer = Observer::start(&scope).await;
    // From here on the caches show ten available Pods, whatever happens.
    bed.faults().set(Fault::new(Effect::Freeze).on(pod_watches));
    let name = names(&pods)[0].clone();
    scope.delete(&name).await.unwrap();
    scope.until_gone(&pods[0]).await;
    let rules = scope.rules();
    rules.delete("web", &DeleteParams::default()).await.unwrap();
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope
        .until_status("web", "enforcement", |s| {
            let mut of_it = s.conditions.iter();
            of_it.any(|c| c.type_ == "Enforced" && c.status == "True")
        })
        .await;
    let rest = names(&pods)[1..].to_vec();
    let outcomes = at_once(&rest, async |pod| scope.delete(&pod).await).await;
    let passed = outcomes.iter().filter(|o| o.is_ok()).count();
    assert_eq!(passed, 0, "{outcomes:?}");
    bed.faults().lift();
    scope.open_nodes().await;
    scope.all_available("app=web", 10).await;
    scope.until_at_rest("web", 10).await;
    let again = names(&scope.list("app=web").await);
    scope.delete(&again[0]).await.unwrap();
    observer.fewest_available(|_| true, 10).await.at_least(9);
}
