//! Answers that are not verdicts, as the `metav1.Status` that Kubernetes clients show.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

/// A failure with this HTTP status, and a message for users.
pub(super) fn failure_response(code: StatusCode, reason: &'static str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "code": code.as_u16(), "reason": reason, "message": message,
    });
    json_response(code, status.to_string().into_bytes())
}

/// An answer with a JSON body.
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

/// Closes an HTTP/1 connection after this answer, because the rest of the request was not read.
pub(super) fn close_connection(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
