//! `operating check` and `kubectl operating check` against a real API server: what a running server, a stopped one and
//! a spoilt installation look like.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod findings;

use findings::{Report, check, check_as};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use operating::admission::routes::MUTATING_CONFIGURATION;
use operating::api::keys;
use serde_json::json;
use testbed::{Bed, wait};

const PATCH: fn() -> PatchParams = PatchParams::default;

/// One server, first well and then spoilt in one way after the other. `--fixed-webhooks` keeps the leader from repairing
/// what the test spoils.
#[tokio::test(flavor = "multi_thread")]
async fn each_spoilt_part_is_named_and_everything_else_is_well() {
    let bed = Bed::own_with(&["--fixed-webhooks"]).await;
    let flags = ["--fixed-webhooks"];
    let well = check(&bed, &[&flags[..], &["--wait", "2m"]].concat());
    assert_eq!(well.code, 0, "{well:#?}");
    assert!(well.message("server").contains(env!("CARGO_PKG_VERSION")));
    // The Deployment is the only part that this server lacks.
    assert_eq!(well.bad(), ["deployment"], "{well:#?}");
    assert_eq!(well.state("rules"), "ok", "{well:#?}");

    let scope = bed.scope("rules").await;
    scope.web_under_rule(1, json!(1)).await;
    let excluded = json!({"metadata": {"labels": {keys::NAMESPACE_EXCLUDED: ""}}});
    let namespaces: Api<Namespace> = Api::all(bed.admin());
    let excluded = namespaces
        .patch(&scope.namespace, &PATCH(), &Patch::Merge(excluded))
        .await;
    excluded.unwrap();
    wait::until("the rule that is not enforced is noticed", async || {
        let found = check(&bed, &flags);
        let named = format!("Enforced is False for {}/web: ", scope.namespace);
        found.state("rules") == "problem" && found.message("rules").contains(&named)
    })
    .await;
    let included = json!({"metadata": {"labels": {keys::NAMESPACE_EXCLUDED: null}}});
    let included = namespaces
        .patch(&scope.namespace, &PATCH(), &Patch::Merge(included))
        .await;
    included.unwrap();
    wait::until("the rule is enforced again", async || {
        let found = check(&bed, &flags);
        found.state("rules") == "ok" && found.state("namespaces") == "ok"
    })
    .await;

    let crds: Api<CustomResourceDefinition> = Api::all(bed.admin());
    let name = "collasets.apps.kusionstack.io";
    let older = json!({"metadata": {"annotations": {keys::CRD_REVISION: "1"}}});
    crds.patch(name, &PATCH(), &Patch::Merge(older))
        .await
        .unwrap();
    let found = check(&bed, &flags);
    assert_eq!(
        (found.code, found.state("crds")),
        (1, "problem"),
        "{found:#?}"
    );
    assert!(found.message("crds").contains("revision 1"), "{found:#?}");
    assert_eq!(found.state("server"), "ok", "{found:#?}");
    let own = operating::api::crd::CRD_REVISION.to_string();
    let own = json!({"metadata": {"annotations": {keys::CRD_REVISION: own}}});
    crds.patch(name, &PATCH(), &Patch::Merge(own))
        .await
        .unwrap();

    let roles: Api<ClusterRole> = Api::all(bed.admin());
    roles
        .delete("operating-collasets", &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the missing role is noticed", async || {
        let found = check(&bed, &flags);
        found.state("rights") == "problem" && found.message("rights").contains("may not")
    })
    .await;
    let off = check(
        &bed,
        &["--fixed-webhooks", "--feature-gates", "CollaSets=false"],
    );
    assert_eq!(
        off.state("rights"),
        "ok",
        "rights of a feature that is off: {off:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_and_missing_webhooks_are_told_apart() {
    let bed = Bed::own().await;
    bed.kill_all().await;
    let stopped = check(&bed, &[]);
    assert_eq!(
        (stopped.code, stopped.state("server")),
        (1, "problem"),
        "{stopped:#?}"
    );
    assert!(
        stopped.message("server").contains("no answer"),
        "{stopped:#?}"
    );
    assert_eq!(stopped.state("webhooks"), "ok", "{stopped:#?}");
    // The Lease of a leader that was killed runs out.
    wait::until("nobody renews the Lease", async || {
        check(&bed, &[]).state("lease") == "problem"
    })
    .await;

    let both = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    let _ = bed.ask_kubectl(&["delete", both, "--all"]).await.success();
    wait::until("no webhook is called", async || {
        let found = check(&bed, &[]);
        found.message("server").contains("did not refuse") && found.state("webhooks") == "problem"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_authority_and_foreign_webhooks_are_named() {
    let bed = Bed::own_with(&["--fixed-webhooks"]).await;
    let api: Api<MutatingWebhookConfiguration> = Api::all(bed.admin());
    let mut stored = api.get(MUTATING_CONFIGURATION).await.unwrap();
    let mut webhooks = stored.webhooks.take().unwrap();
    let mut foreign = webhooks[0].clone();
    foreign.name = "mutating-generic.apps.kusionstack.io".to_owned();
    webhooks.push(foreign);
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    for webhook in &mut webhooks {
        webhook.client_config.ca_bundle.as_mut().unwrap().0 = other.cert.pem().into_bytes();
    }
    let change = Patch::Merge(json!({ "webhooks": webhooks }));
    // A replica may publish its own authority again at any time, also between two requests of one check.
    wait::until("both are named", async || {
        let patched = api.patch(MUTATING_CONFIGURATION, &PATCH(), &change).await;
        patched.unwrap();
        let found = check(&bed, &["--fixed-webhooks"]);
        let is_named = |check, text: &str| {
            let said = format!("{} {}", found.message(check), found.remedy(check));
            found.state(check) == "problem" && said.contains(text)
        };
        found.code == 1
            && is_named("server", "caBundle")
            && is_named(
                "webhooks",
                "mutating-generic.apps.kusionstack.io is not needed",
            )
    })
    .await;
}

/// Whoever may read nothing gets no OK for what nobody looked at.
#[tokio::test(flavor = "multi_thread")]
async fn plugin_names_what_a_plain_user_may_not_see() {
    let bed = Bed::own().await;
    let scope = bed.scope("plain").await;
    let rights = testbed::bed::rights_on_pods();
    let _user = bed.new_user(&scope, "plain", &[rights]).await;
    let file = bed
        .kubeconfig_for_service_account(&scope.namespace, "plain")
        .await;
    let found: Report = check_as(&bed, Some(&file.unwrap()), &[]).await;
    assert_eq!(found.code, 2, "{found:#?}");
    for name in [
        "server",
        "webhooks",
        "crds",
        "policies",
        "deployment",
        "lease",
        "namespaces",
        "rules",
        "rights",
    ] {
        assert_eq!(found.state(name), "forbidden", "{name}: {found:#?}");
    }
    assert_eq!(found.state("clock"), "ok", "{found:#?}");
    assert!(
        found.message("webhooks").contains("webhookconfigurations"),
        "{found:#?}"
    );
    let all = check_as(&bed, None, &["--wait", "2m"]).await;
    assert_eq!(all.code, 0, "{all:#?}");
}
