//! A rule that is edited while requests are in flight.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{join, join_all};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::pods::names;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};
use tokio_util::task::AbortOnDropHandle;

const PODS: usize = 40;
/// 10% of the Pods.
const LIMIT: usize = 4;

/// Records every version of the rule `web` from now on.
struct Versions {
    rules: Arc<Mutex<Vec<PodTransitionRule>>>,
    _watching: AbortOnDropHandle<()>,
}

impl Versions {
    async fn follow(scope: &Scope) -> Versions {
        let rules: Api<PodTransitionRule> = scope.api();
        let from = rules.get("web").await.unwrap();
        let version = from.resource_version().unwrap();
        let rules_seen = Arc::new(Mutex::new(vec![from]));
        let sink = rules_seen.clone();
        let watching = tokio::spawn(async move {
            let params = WatchParams::default().fields("metadata.name=web");
            let events = rules.watch(&params, &version).await.unwrap();
            let mut events = events.boxed();
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Modified(rule) = event {
                    sink.lock().push(rule);
                }
            }
        });
        Versions {
            rules: rules_seen,
            _watching: AbortOnDropHandle::new(watching),
        }
    }

    /// Pods that held a claim in some version before the change of the spec, including all versions up to this call.
    async fn claimed_before_the_change(&self, scope: &Scope) -> BTreeSet<String> {
        let last = scope.rules().get("web").await.unwrap().resource_version();
        wait::until("all versions of the rule", async || {
            let versions = self.rules.lock();
            versions.iter().any(|r| r.resource_version() == last)
        })
        .await;
        let versions = self.rules.lock();
        let before = versions.iter().filter(|r| r.metadata.generation == Some(1));
        let ledgers = before.filter_map(|r| r.status.as_ref()?.ledger.as_ref());
        ledgers
            .flat_map(|l| l.claims.iter().map(|c| c.pod_name.clone()))
            .collect()
    }
}

async fn set_max(scope: &Scope, max: Value) -> kube::Result<PodTransitionRule> {
    let rules = json!([{"name": "availability", "availablePolicy": {"maxUnavailableValue": max}}]);
    let patch = Patch::Merge(json!({"spec": {"rules": rules}}));
    scope
        .api()
        .patch("web", &PatchParams::default(), &patch)
        .await
}

#[tokio::test]
async fn tightened_limit_holds_from_its_resource_version() {
    let bed = Bed::shared().await;
    let scope = bed.scope("tightened").await;
    scope.deploy_where_open("web", PODS).await;
    let pods = names(&scope.all_available("app=web", PODS).await);
    // Lost Pods are not replaced.
    scope.close_nodes().await;
    scope.rule("web", json!({"app": "web"}), json!("50%")).await;
    scope.until_at_rest("web", 40).await;
    let versions = Versions::follow(&scope).await;

    let delete = |pod: &String| {
        let (scope, pod) = (&scope, pod.clone());
        async move {
            let outcome = scope.delete(&pod).await;
            (pod, outcome)
        }
    };
    // First more deletions than the new limit allows, then deletions during the change, then the rest.
    let mut outcomes = join_all(pods[..6].iter().map(delete)).await;
    assert!(outcomes.iter().all(|(_, o)| o.is_ok()), "{outcomes:?}");
    let meanwhile = join_all(pods[6..18].iter().map(delete));
    let (meanwhile, tightened) = join(meanwhile, set_max(&scope, json!("10%"))).await;
    assert_eq!(tightened.unwrap().metadata.generation, Some(2));
    outcomes.extend(meanwhile);
    let after = join_all(pods[18..30].iter().map(delete)).await;
    for (pod, outcome) in after {
        let status = refusal(outcome);
        assert!(
            status.code == 429 && status.message.contains(&format!("the limit is {LIMIT}")),
            "{pod}: {status:?}"
        );
    }
    let before = versions.claimed_before_the_change(&scope).await;
    let passed = outcomes.iter().filter(|(_, o)| o.is_ok());
    let passed: BTreeSet<_> = passed.map(|(pod, _)| pod.clone()).collect();
    assert!(passed.is_subset(&before), "{passed:?} {before:?}");

    // Earlier claims stay, and the status reports the new spec.
    let lost = i32::try_from(passed.len()).unwrap();
    scope
        .until_status("web", "the tightened limit", |s: &RuleStatus| {
            s.observed_generation == 2
                && s.unavailable_limit == Some(i32::try_from(LIMIT).unwrap())
                && s.unavailable_pods == lost
                && s.disruptions_allowed == Some(0)
        })
        .await;
    let last_pod = &pods[39];
    for outcome in [scope.delete(last_pod).await, scope.evict(last_pod).await] {
        assert_eq!(refusal(outcome).code, 429);
    }

    // An invalid limit is refused and changes nothing. A higher limit allows disruptions again.
    let bad = refusal(set_max(&scope, json!("ten%")).await);
    assert!(
        bad.code == 422 && bad.message.contains("maxUnavailableValue"),
        "{bad:?}"
    );
    let status = refusal(scope.delete(last_pod).await);
    assert!(
        status.message.contains(&format!("the limit is {LIMIT}")),
        "{status:?}"
    );
    set_max(&scope, json!("75%")).await.unwrap();
    wait::until("the wider limit", async || {
        scope.delete(last_pod).await.is_ok()
    })
    .await;
}
