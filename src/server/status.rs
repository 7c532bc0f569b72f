//! Answers that are no verdict, as the `metav1.Status` that Kubernetes clients show.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// A failure `code` with a message for people.
pub(super) fn failure_response(code: StatusCode, reason: &'static str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "code": code.as_u16(), "reason": reason, "message": message,
    });
    json_response(code, status.to_string().into_bytes())
}

/// A JSON body.
pub(super) fn json_response(code: StatusCode, body: Vec<u8>) -> Response {
    (
        code,
        [(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )],
        body,
    )
        .into_response()
}

/// Makes an HTTP/1 connection end after this answer, because the rest of the request was not read.
pub(super) fn close_connection(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
