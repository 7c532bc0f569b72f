#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::*;

fn review() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "name": "web-0",
            "namespace": "shop",
            "operation": "DELETE",
            "userInfo": {"username": "ann", "groups": ["dev"], "extra": {"x": ["y"]}},
            "object": null,
            "oldObject": {"metadata": {"name": "web-0"}, "newField": 1.50},
            "dryRun": false,
            "options": {"kind": "DeleteOptions"},
        }
    })
}

fn parse(review: &Value) -> Result<Request, Malformed> {
    Request::parse(review.to_string().as_bytes())
}

#[test]
fn deletecollection_object_is_named_by_old_object() {
    let mut review = review();
    review["request"]["name"] = json!("");
    assert_eq!(parse(&review).unwrap().object_name(), "shop/web-0");
    review["request"]["oldObject"] = json!(null);
    assert_eq!(parse(&review).unwrap().object_name(), "shop/");
}

/// The error after `change`. It must have the uid.
fn error_after(change: impl FnOnce(&mut Value)) -> String {
    let mut review = review();
    change(&mut review);
    let error = parse(&review).unwrap_err();
    assert_eq!(error.uid.as_deref(), Some("u-1"), "{error}");
    error.message
}

#[test]
fn reads_the_request_and_keeps_objects_byte_for_byte() {
    let request = parse(&review()).unwrap();
    assert_eq!(request.uid, "u-1");
    assert_eq!(request.kind.kind, "Pod");
    assert_eq!(request.resource.resource, "pods");
    assert_eq!(request.sub_resource, None);
    assert_eq!(request.object_name(), "shop/web-0");
    assert_eq!(request.operation, RequestOperation::Delete);
    assert_eq!(request.user_info.username, "ann");
    assert_eq!(request.user_info.groups, ["dev"]);
    assert!(!request.dry_run);
    assert!(request.object.is_none());
    assert_eq!(
        request.old_object.unwrap().get(),
        review()["request"]["oldObject"].to_string()
    );
    assert!(request.options.is_some());
}

#[test]
fn absent_optional_fields_are_empty() {
    let mut review = review();
    for name in [
        "name",
        "namespace",
        "userInfo",
        "object",
        "oldObject",
        "dryRun",
        "options",
    ] {
        review["request"].as_object_mut().unwrap().remove(name);
    }
    let request = parse(&review).unwrap();
    assert_eq!(request.object_name(), "");
    assert!(!request.dry_run && request.old_object.is_none() && request.options.is_none());
}

#[test]
fn subresource_and_dry_run_are_parsed() {
    let mut review = review();
    review["request"]["subResource"] = json!("eviction");
    review["request"]["dryRun"] = json!(true);
    let request = parse(&review).unwrap();
    assert_eq!(request.sub_resource.as_deref(), Some("eviction"));
    assert!(request.dry_run);
}

#[test]
fn errors_name_the_field_and_quote_nothing() {
    let text = error_after(|r| r["request"]["operation"] = json!("s3cret"));
    assert_eq!(
        text,
        "request.operation: must be CREATE, UPDATE, DELETE or CONNECT"
    );
    let text = error_after(|r| r["request"]["dryRun"] = json!("s3cret"));
    assert_eq!(text, "request.dryRun: must be true or false");
    let text = error_after(|r| r["request"]["oldObject"] = json!("s3cret"));
    assert_eq!(text, "request.oldObject: must be an object or null");
    let text = error_after(|r| r["request"]["name"] = json!(["s3cret"]));
    assert_eq!(text, "request.name: must be a string");
    let text = error_after(|r| {
        r["request"].as_object_mut().unwrap().remove("resource");
    });
    assert_eq!(
        text,
        "request.resource: missing; must be an object with the strings group, version and resource"
    );
}

#[test]
fn another_version_or_kind_keeps_the_uid() {
    let text = error_after(|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1"));
    assert_eq!(text, "apiVersion: must be admission.k8s.io/v1");
    let text = error_after(|r| r["kind"] = json!("ConversionReview"));
    assert_eq!(text, "kind: must be AdmissionReview");
}

#[test]
fn missing_request_or_uid_is_an_error() {
    let error = Request::parse(br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#)
        .unwrap_err();
    assert_eq!(
        error,
        Malformed {
            uid: None,
            message: "request: missing".to_owned()
        }
    );
    let mut review = review();
    review["request"]["uid"] = json!("");
    assert_eq!(
        parse(&review).unwrap_err().message,
        "request.uid: must not be empty"
    );
    review["request"]["uid"] = json!(7);
    assert_eq!(
        parse(&review).unwrap_err().message,
        "request.uid: must be a string"
    );
}

#[test]
fn uid_is_parsed_from_truncated_body() {
    let text = review().to_string();
    let end_of_uid = text.find("u-1").unwrap() + 4;
    for end in 0..text.len() {
        let error = Request::parse(&text.as_bytes()[..end]).unwrap_err();
        assert_eq!(error.uid.is_some(), end >= end_of_uid, "cut at {end}");
        assert!(error.message.starts_with("the body "), "{error}");
    }
}

#[test]
fn bytes_that_are_not_json_are_refused() {
    for body in [
        &b"\xff\xfe"[..],
        b"hello",
        b"[]",
        b"null",
        b"\"x\"",
        b"{\"request\":[]}",
    ] {
        assert!(Request::parse(body).unwrap_err().uid.is_none());
    }
    let mut trailing = review().to_string();
    trailing.push('x');
    assert!(
        Request::parse(trailing.as_bytes())
            .unwrap_err()
            .message
            .starts_with("the body is not JSON")
    );
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    let deep = "[".repeat(1 << 20);
    let body = format!(r#"{{"request":{{"uid":"u","object":{deep}"#);
    assert_eq!(
        Request::parse(body.as_bytes()).unwrap_err().uid.as_deref(),
        Some("u")
    );
}

fn answer(verdict: &Verdict) -> Value {
    serde_json::from_slice(&verdict.to_json("u-1").unwrap()).unwrap()
}

#[test]
fn allowing_answer_is_minimal() {
    assert_eq!(
        answer(&Verdict::allow()),
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
               "response": {"uid": "u-1", "allowed": true}})
    );
}

#[test]
fn patch_is_base64_json_and_empty_patch_is_omitted() {
    let patch: json_patch::Patch =
        serde_json::from_value(json!([{"op": "add", "path": "/metadata/labels/a", "value": "b"}]))
            .unwrap();
    let response = answer(&Verdict::allow().with_patch(patch.clone()))["response"].take();
    assert_eq!(response["patchType"], "JSONPatch");
    let sent: k8s_openapi::ByteString = serde_json::from_value(response["patch"].clone()).unwrap();
    assert_eq!(
        serde_json::from_slice::<json_patch::Patch>(&sent.0).unwrap(),
        patch
    );

    let empty = answer(&Verdict::allow().with_patch(json_patch::Patch(Vec::new())));
    assert!(empty["response"].get("patchType").is_none());
    let denied = answer(&Verdict::deny(403, "Forbidden", "no").with_patch(patch));
    assert!(denied["response"].get("patch").is_none());
}

#[test]
fn denial_carries_whole_status() {
    let verdict = Verdict::deny(429, "TooManyRequests", "3 of 3 in use")
        .with_warning("a\nb\u{7}c")
        .with_audit("decision", "held");
    assert!(!verdict.is_allowed());
    assert_eq!(
        (verdict.code(), verdict.reason(), verdict.message()),
        (429, "TooManyRequests", "3 of 3 in use")
    );
    assert_eq!(
        answer(&verdict)["response"],
        json!({"uid": "u-1", "allowed": false,
               "status": {"metadata": {}, "status": "Failure", "code": 429, "reason": "TooManyRequests",
                          "message": "3 of 3 in use"},
               "warnings": ["a b c"], "auditAnnotations": {"decision": "held"}})
    );
}

#[test]
fn invalid_object_names_are_refused() {
    let long = "a".repeat(300);
    let hostile = [
        "kube-system/pods?x=",
        "a/b",
        "a?b",
        "a#b",
        "a%2fb",
        "..",
        "a b",
        "a\nb",
        "A",
        "ü",
        &long,
    ];
    for value in hostile {
        for (path, text) in [
            (
                "/request/namespace",
                "request.namespace: must have at most 63",
            ),
            ("/request/name", "request.name: must have at most 253"),
            (
                "/request/oldObject/metadata/name",
                "request.oldObject.metadata.name: must have",
            ),
        ] {
            let error = error_after(|r| *r.pointer_mut(path).unwrap() = json!(value));
            assert!(error.starts_with(text), "{path} {value:?}: {error}");
            assert!(value.len() < 3 || !error.contains(value), "{error}");
        }
        let error = error_after(|r| {
            r["request"]["object"] = json!({ "metadata": { "namespace": value } });
        });
        assert!(
            error.starts_with("request.object.metadata.namespace: must"),
            "{error}"
        );
    }
}

#[test]
fn objects_must_be_the_one_that_the_request_names() {
    let error = error_after(|r| r["request"]["oldObject"]["metadata"]["name"] = json!("web-1"));
    assert_eq!(
        error,
        "request.oldObject.metadata.name: must be the same as request.name"
    );
    let error = error_after(|r| {
        r["request"]["object"] = json!({ "metadata": { "namespace": "other" } });
    });
    assert_eq!(
        error,
        "request.object.metadata.namespace: must be the same as request.namespace"
    );
    let error = error_after(|r| r["request"]["oldObject"] = json!({ "metadata": { "name": [] } }));
    assert_eq!(
        error,
        "request.oldObject.metadata: must be an object with the strings namespace and name"
    );
    // The same key twice: a `Value` of serde_json would take the last one.
    let body = review().to_string().replacen(
        r#""metadata":{"name":"web-0"}"#,
        r#""metadata":{"name":"web-0"},"metadata":{"name":"a/b"}"#,
        1,
    );
    assert!(Request::parse(body.as_bytes()).is_err());
}

#[test]
fn names_may_be_left_out_of_request_and_objects() {
    // Like a deletecollection, and like a CREATE with generateName whose name is already generated.
    let mut review = review();
    review["request"]["name"] = json!("");
    assert!(parse(&review).is_ok());
    review["request"]["name"] = json!("web.example.com");
    review["request"]["oldObject"]["metadata"] = json!({ "name": null, "namespace": "" });
    assert!(parse(&review).is_ok());
}

#[test]
fn user_from_unverified_caller_is_marked_unverified() {
    let mut request = parse(&review()).unwrap();
    assert_eq!(
        request.user(),
        "ann (as the caller says, without a client certificate)"
    );
    request.is_verified = true;
    assert_eq!(request.user(), "ann");
}
