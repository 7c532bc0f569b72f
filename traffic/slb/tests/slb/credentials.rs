//! Credentials from files and from OIDC, against the double of the API.

use std::path::Path;

use crate::common::*;
use serde_json::{Value, json};
use testbed::slb_double::{Effect, Fault, Listener, Role, SlbDouble};
use traffic::{Adapter, AdapterError, Pod};
use traffic_slb::SlbAdapter;

fn none(_: &str) -> Option<String> {
    None
}

fn with_credentials(double: &SlbDouble, credentials: Value) -> SlbAdapter {
    let settings = settings(double, "observe", json!({ "credentials": credentials }));
    SlbAdapter::with_environment(settings, &none).unwrap()
}

async fn with_listener() -> SlbDouble {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    double
}

fn some_pods() -> Vec<Pod> {
    vec![pod("a", "10.0.0.1")]
}

async fn call(adapter: &SlbAdapter) -> Result<(), AdapterError> {
    let observation = adapter.observe(&service("web"), &some_pods()).await;
    observation.map(drop)
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn key_files(directory: &Path, id: &str, secret: &str) -> Value {
    json!({ "files": {
        "accessKeyIdFile": write(directory, "id", id),
        "accessKeySecretFile": write(directory, "secret", secret),
    }})
}

#[tokio::test]
async fn changed_files_are_read_when_the_key_is_refused() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let files = key_files(directory.path(), "key-id\n", "key-secret\n");
    let adapter = with_credentials(&double, files);
    call(&adapter).await.unwrap();
    {
        let mut state = double.state();
        state.people.keys.clear();
        let key = ("key-2".to_owned(), "secret-2".to_owned());
        state.people.keys.extend([key]);
    }
    key_files(directory.path(), "key-2", "secret-2");
    call(&adapter).await.unwrap();
}

#[tokio::test]
async fn temporary_key_from_files_has_its_token() {
    let double = with_listener().await;
    let (id, secret, token, _) = double.state().people.issue();
    let directory = tempfile::tempdir().unwrap();
    let mut files = key_files(directory.path(), &id, &secret);
    files["files"]["securityTokenFile"] = json!(write(directory.path(), "token", &token));
    call(&with_credentials(&double, files)).await.unwrap();
}

#[tokio::test]
async fn missing_or_empty_file_is_named() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let files = key_files(directory.path(), "key-id", " \n");
    let adapter = with_credentials(&double, files.clone());
    let error = call(&adapter).await.unwrap_err().to_string();
    assert!(
        error.contains("credentials.files.accessKeySecretFile"),
        "{error}"
    );
    std::fs::remove_file(directory.path().join("id")).unwrap();
    let error = call(&with_credentials(&double, files)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("credentials.files.accessKeyIdFile"),
        "{error}"
    );
    assert!(double.calls().is_empty());
}

#[tokio::test]
async fn wrong_secret_is_permanent_and_not_shown() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let files = key_files(directory.path(), "key-id", "wrong-secret");
    let adapter = with_credentials(&double, files);
    let error = call(&adapter).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Permanent(text) if text.contains("SignatureDoesNotMatch"))
    );
    let shown = format!("{error} {error:?} {adapter:?}");
    assert!(
        !shown.contains("wrong-secret") && !shown.contains("key-id"),
        "{shown}"
    );
    // The files are read again once for each call, and no more.
    assert_eq!(double.calls().len(), 2);
}

/// A double that knows a role, and an adapter that may assume it.
fn oidc(double: &SlbDouble, directory: &Path) -> SlbAdapter {
    let role = Role {
        role: "acs:ram::1:role/operating".to_owned(),
        provider: "acs:ram::1:oidc-provider/cluster".to_owned(),
        token: "service-account-token".to_owned(),
    };
    let token_file = write(directory, "token", &role.token);
    let settings = settings(double, "observe", json!({}));
    // As "RAM roles for service accounts" sets the environment.
    let variables = {
        let role = role.clone();
        move |name: &str| match name {
            "ALIBABA_CLOUD_ROLE_ARN" => Some(role.role.clone()),
            "ALIBABA_CLOUD_OIDC_PROVIDER_ARN" => Some(role.provider.clone()),
            "ALIBABA_CLOUD_OIDC_TOKEN_FILE" => Some(token_file.clone()),
            _ => None,
        }
    };
    double.state().people.roles.push(role);
    SlbAdapter::with_environment(settings, &variables).unwrap()
}

#[tokio::test]
async fn role_is_assumed_once_for_many_calls() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let adapter = oidc(&double, directory.path());
    for n in 2..10 {
        double.state().add_load_balancer(&format!("lb-{n}"));
    }
    let services = (1..10).map(|n| {
        let mut service = service("web");
        let id = format!("lb-{n}");
        service
            .labels
            .insert(traffic_slb::LOAD_BALANCER.to_owned(), id);
        service
    });
    let services: Vec<_> = services.collect();
    let pods = some_pods();
    let calls = services
        .iter()
        .map(|service| adapter.observe(service, &pods));
    for result in futures::future::join_all(calls).await {
        result.unwrap();
    }
    assert_eq!(double.count("AssumeRoleWithOIDC"), 1);
}

/// The clock of STS, or of this machine, is wrong, or STS lies.
#[tokio::test]
async fn role_that_has_expired_at_once_is_not_assumed_for_each_call() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let adapter = oidc(&double, directory.path());
    double.state().people.lifetime = std::time::Duration::ZERO;
    for _ in 0..4 {
        call(&adapter).await.unwrap_err();
    }
    assert_eq!(double.count("AssumeRoleWithOIDC"), 1);
}

#[tokio::test]
async fn expired_token_is_replaced_once_in_the_middle() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let adapter = oidc(&double, directory.path());
    call(&adapter).await.unwrap();
    double.state().people.expire();
    call(&adapter).await.unwrap();
    assert_eq!(double.count("AssumeRoleWithOIDC"), 2);
}

#[tokio::test]
async fn new_tokens_that_are_refused_are_not_replaced_without_end() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let adapter = oidc(&double, directory.path());
    let expired = Effect::Refuse(403, "InvalidSecurityToken.Expired".to_owned());
    double.fault(Fault::new(expired).on("DescribeLoadBalancerListeners"));
    for _ in 0..4 {
        let error = call(&adapter).await.unwrap_err();
        assert!(
            matches!(&error, AdapterError::Transient(text) if text.contains("Expired")),
            "{error}"
        );
    }
    assert_eq!(double.count("AssumeRoleWithOIDC"), 1);
    assert_eq!(double.count("DescribeLoadBalancerListeners"), 4);
}

#[tokio::test]
async fn refused_role_is_said_without_the_token() {
    let double = with_listener().await;
    let directory = tempfile::tempdir().unwrap();
    let adapter = oidc(&double, directory.path());
    let name = "token";
    write(directory.path(), name, "old-token");
    for _ in 0..3 {
        let error = call(&adapter).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(
            text.contains("credentials.oidc") && text.contains("OIDCToken.Expired"),
            "{text}"
        );
        assert!(!text.contains("old-token"), "{text}");
    }
    assert_eq!(
        double.count("AssumeRoleWithOIDC"),
        1,
        "failures have a pause"
    );
    // Nobody sees the token in the address of a call.
    let calls = double.calls();
    assert!(calls.iter().all(|call| call.action == "AssumeRoleWithOIDC"));
}
