//! The segment in front of the webhook paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::{StatusCode, Uri, uri};
use tower::ServiceExt;

use super::caller::Caller;
use super::quiet::Quiet;
use super::status::{closing, failure};
use crate::telemetry::metrics::{RefusedLabel, ServerMetrics};
use crate::tls::doors::Doors;

/// Lines of the log about such calls, for each ten seconds.
const LINES: u64 = 5;
const CLOSED: &str = "calls need the path that the webhook configurations have";

/// Takes the segment off before `webhooks` see the path; refuses calls that need one and have it not. A caller with a client
/// certificate needs none.
pub fn guard(webhooks: Router, doors: Arc<Doors>, metrics: &ServerMetrics) -> Router {
    let refused = RefusedLabel { reason: "path" };
    let refused = metrics.refused.get_or_create_owned(&refused);
    let quiet = Arc::new(Quiet::new(
        "calls by other paths",
        LINES,
        metrics.load.unlogged.clone(),
    ));
    Router::new().fallback(move |mut request: Request| {
        let (webhooks, doors) = (webhooks.clone(), Arc::clone(&doors));
        let (refused, quiet) = (refused.clone(), Arc::clone(&quiet));
        async move {
            let known = request.extensions().get() == Some(&Caller::Known);
            let path = request.uri().path();
            let plain = match doors.enter(path) {
                Some(plain) => plain,
                None if known => crate::tls::selfmanaged::segments::split(path).1,
                None => {
                    refused.inc();
                    if quiet.may_log() {
                        tracing::warn!(
                            "a call by a path without the segment of the webhook configurations"
                        );
                    }
                    return closing(failure(StatusCode::FORBIDDEN, "Forbidden", CLOSED));
                }
            };
            if plain.len() != path.len()
                && let Some(uri) = behind(request.uri(), plain)
            {
                *request.uri_mut() = uri;
            }
            match webhooks.oneshot(request).await {
                Ok(response) => response.into_response(),
                Err(never) => match never {},
            }
        }
    })
}

/// `uri` with another path and the same query.
fn behind(uri: &Uri, path: &str) -> Option<Uri> {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(uri::PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}
