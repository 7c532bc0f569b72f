//! Services that change where their Pods are members.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::wait;
use traffic_http::wire::PresenceInfo;

use crate::fixtures::Employer;
use crate::sets::Set;

fn target_port(port: Value) -> Value {
    json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": port }] } })
}

/// A Pod stays at its former port until it serves at the new one, and an operation waits until it is off both.
#[tokio::test]
async fn pod_serves_at_its_former_port_until_it_serves_at_the_new_one() {
    let (bed, _alone) = crate::bed::alone().await;
    let scope = bed.bed.scope("traffic-ports").await;
    let mut part = target_port(json!(8080));
    part["metadata"] = json!({ "annotations": { (keys::CONSIST_ADAPTER): "edge" } });
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let names: Vec<_> = set
        .pods()
        .await
        .values()
        .map(|pod| pod.name_any())
        .collect();
    let serving_at = |pod: &str| -> Vec<u16> {
        let state = bed.http.state();
        let of_pod = state.members.iter().filter(|(key, member)| {
            key.0 == scope.namespace
                && member.pod_name == pod
                && member.presence == PresenceInfo::Serving
        });
        of_pod.map(|(_, member)| member.port).collect()
    };
    // The new member of one Pod is refused.
    bed.http.state().refused_pods = [names[0].clone()].into();
    web.edit(target_port(json!(9090))).await;
    wait::until("the other Pod to serve at the new port only", async || {
        serving_at(&names[1]) == [9090]
    })
    .await;
    let report = web.until("the failure", |report| report.failed > 0).await;
    assert_eq!(serving_at(&names[0]), [8080], "{report:?}");
    let stays = report
        .waiting
        .iter()
        .find(|waiting| waiting.pod == names[0] && waiting.at.ends_with(":8080"));
    assert!(
        stays.unwrap().message.contains("traffic stays on"),
        "{report:?}"
    );
    // A named port that no container has leaves everybody where they are.
    bed.http.state().refused_pods.clear();
    web.edit(target_port(json!("nobody"))).await;
    web.until("the reason", |report| {
        report
            .last_error
            .as_ref()
            .is_some_and(|error| error.contains("nobody"))
    })
    .await;
    assert!(!serving_at(&names[0]).is_empty() && !serving_at(&names[1]).is_empty());
    // An operation of such a Pod takes it off.
    scope.begin(&names[1], "manual").await.unwrap();
    web.marks(&names[1], (true, false)).await;
    assert_eq!(serving_at(&names[1]), Vec::<u16>::new());
    web.edit(target_port(json!(9090))).await;
    scope.finish(&names[1], "manual").await.unwrap();
    web.consistent(2).await;
    assert_eq!(
        (serving_at(&names[0]), serving_at(&names[1])),
        (vec![9090], vec![9090])
    );
}
