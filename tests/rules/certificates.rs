//! Certificates that Go's TLS clients accept, and bundles that were never needed for a verification.

use kube::ResourceExt;
use serde_json::json;
use testbed::Bed;
use testbed::endpoint::RuleServer;

use crate::helpers::{RuleScope, ask, spec, waits};

/// A certificate as `openssl req -x509` makes it: it is its own CA, and the endpoint serves it directly.
#[tokio::test]
async fn certificate_that_is_its_own_bundle_is_trusted() {
    let scope = Bed::shared().await.scope("own-bundle").await;
    for (name, is_ca) in [("own-ca", true), ("pinned", false)] {
        let server = RuleServer::self_signed(is_ca).await;
        scope.pod(name, json!({})).await;
        scope.until_idle(name).await;
        let rules = json!([ask(server.config(), json!({"failurePolicy": "Fail"}))]);
        scope.try_rule(name, spec(name, rules)).await.unwrap();
        scope.begin_under_rule(name, name, "x").await;
        scope.until_past_precheck(name, "x").await;
        assert_eq!(server.times(name), 1, "{name}");
    }
}

#[tokio::test]
async fn bundle_of_another_certificate_of_the_name_is_not_trusted() {
    let scope = Bed::shared().await.scope("other-bundle").await;
    let (server, other) = (
        RuleServer::self_signed(true).await,
        RuleServer::self_signed(true).await,
    );
    scope.pod("web", json!({})).await;
    scope.until_idle("web").await;
    let config = json!({"url": server.url("/"), "caBundle": other.ca_bundle});
    scope
        .create_rule("web", json!([ask(config, json!({}))]))
        .await;
    scope.begin_under_rule("web", "web", "x").await;
    scope.until_reason("web", "web", "ask", "caBundle").await;
    let pod = scope.get("web").await;
    assert!(waits(&pod, "x"), "{:?}", pod.labels());
    assert_eq!(server.asked().len(), 0);
}
