//! Recognises the requests that replicas of this program send to the API server.
//!
//! The user name does not suffice: with an administrator's kubeconfig, people have the same name, and the replicas may
//! have different names while the kubeconfig is exchanged. Therefore the requests carry marks:
//!
//! | Request | Mark |
//! |---|---|
//! | patch of a Pod, dry run of an eviction | the field manager [`FIELD_MANAGER`] |
//! | DELETE of a Pod | both the UID and the resourceVersion as preconditions |
//! | dry run of a DELETE of a Pod | the UID as the only precondition |
//!
//! A request that copies a mark of the first two rows only loses the bypass. Since no rule holds the dry run, the user
//! name has to be right there, too.

use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::context::AdmissionContext;
use super::review::{Request, RequestOperation};
use crate::cluster::request_path::FIELD_MANAGER;

/// The fields of `UpdateOptions`, `CreateOptions` and `DeleteOptions` that carry the marks.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MarkedOptions {
    field_manager: Option<String>,
    preconditions: Option<Preconditions>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl MarkedOptions {
    fn from_request(request: &Request) -> MarkedOptions {
        let raw = request.options.as_deref();
        let read = raw.and_then(|raw| serde_json::from_str(raw.get()).ok());
        read.unwrap_or_default()
    }

    /// Whether the UID is a precondition, and whether the resourceVersion is.
    fn preconditions(&self) -> (bool, bool) {
        let set = self.preconditions.as_ref();
        set.map_or((false, false), |set| {
            (set.uid.is_some(), set.resource_version.is_some())
        })
    }
}

/// Whether a request is a patch by this program. Such a request never asks for a bypass: the user who set the reason
/// on the Pod may lack the right that the user of this program has.
pub fn is_own_write(request: &Request) -> bool {
    MarkedOptions::from_request(request)
        .field_manager
        .as_deref()
        == Some(FIELD_MANAGER)
}

/// Whether a request is a DELETE by this program, which never asks for a bypass.
pub fn is_own_deletion(request: &Request) -> bool {
    request.operation == RequestOperation::Delete
        && !request.dry_run
        && MarkedOptions::from_request(request).preconditions() == (true, true)
}

/// Whether a request is the dry run by which this program asks whether policies and other webhooks accept a deletion or
/// an eviction. No rule holds such a dry run.
pub async fn is_own_dry_run(
    context: &AdmissionContext,
    request: &Request,
    deadline: Instant,
) -> bool {
    let is_marked = match request.operation {
        RequestOperation::Create => {
            request.sub_resource.as_deref() == Some("eviction") && is_own_write(request)
        }
        RequestOperation::Delete => {
            MarkedOptions::from_request(request).preconditions() == (true, false)
        }
        _ => false,
    };
    if !(request.dry_run && is_marked) {
        return false;
    }
    let name = timeout_at(deadline, context.identity.user_name(&context.client)).await;
    matches!(name, Ok(Ok(name)) if name == request.user_info.username)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::time::Duration;

    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A context of a program with this user name; `None` if the API server does not say it.
    fn context(name: Option<&'static str>) -> AdmissionContext {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
            "status": { "userInfo": { "username": name } },
        });
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let body = Body::from(review.to_string().into_bytes());
            let code = if name.is_some() { 201 } else { 500 };
            let answer = http::Response::builder().status(code).body(body);
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        AdmissionContext::at_epoch(Client::new(service, "default"))
    }

    fn request(operation: &str, sub_resource: &str, dry_run: bool, options: Value) -> Request {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": operation, "namespace": "shop", "name": "web-1",
                "subResource": sub_resource, "dryRun": dry_run, "options": options,
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "userInfo": { "username": "operating" },
            },
        });
        Request::parse(review.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn field_manager_marks_a_write() {
        for (options, own) in [
            (json!({ "fieldManager": "operating" }), true),
            (json!({ "fieldManager": "kubectl-edit" }), false),
            (json!({ "fieldManager": 7 }), false),
            (json!({}), false),
            (Value::Null, false),
        ] {
            let request = request("UPDATE", "", false, options.clone());
            assert_eq!(is_own_write(&request), own, "{options}");
        }
    }

    #[tokio::test]
    async fn preconditions_mark_deletions() {
        let both = json!({ "preconditions": { "uid": "u", "resourceVersion": "7" } });
        let uid = json!({ "preconditions": { "uid": "u" } });
        let none = json!({});
        let deadline = Instant::now() + Duration::from_secs(10);
        for (options, dry_run, name, own_deletion, own_dry_run) in [
            (&both, false, Some("operating"), true, false),
            (&both, false, Some("alice"), true, false),
            (&both, false, None, true, false),
            (&uid, false, Some("operating"), false, false),
            (&none, false, Some("operating"), false, false),
            (&both, true, Some("operating"), false, false),
            (&uid, true, Some("operating"), false, true),
            (&uid, true, Some("alice"), false, false),
            (&uid, true, None, false, false),
            (&none, true, Some("operating"), false, false),
        ] {
            let context = context(name);
            let request = request("DELETE", "", dry_run, options.clone());
            let found = (
                is_own_deletion(&request),
                is_own_dry_run(&context, &request, deadline).await,
            );
            let expected = (own_deletion, own_dry_run);
            assert_eq!(found, expected, "{options} {dry_run} {name:?}");
        }
    }

    #[tokio::test]
    async fn dry_run_of_an_eviction_needs_the_field_manager() {
        let deadline = Instant::now() + Duration::from_secs(10);
        let own = json!({ "fieldManager": "operating" });
        for (sub_resource, dry_run, options, expected) in [
            ("eviction", true, &own, true),
            ("eviction", true, &json!({}), false),
            ("eviction", false, &own, false),
            ("binding", true, &own, false),
        ] {
            let request = request("CREATE", sub_resource, dry_run, options.clone());
            let found = is_own_dry_run(&context(Some("operating")), &request, deadline).await;
            assert_eq!(found, expected, "{sub_resource} {dry_run} {options}");
        }
    }
}
