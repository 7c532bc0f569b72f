//! Checks and removes the segment before the webhook paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::{StatusCode, Uri, uri};
use tower::ServiceExt;

use super::caller::Caller;
use super::log_limiter::LogLimiter;
use super::status::{close_connection, failure_response};
use crate::telemetry::metrics::{RefusedLabel, ServerMetrics};
use crate::tls::path_guard::PathGuard;

/// Log lines about refused calls in ten seconds.
const MAX_LOGGED_REFUSALS: u64 = 5;
const PATH_REFUSED: &str = "calls need the path that the webhook configurations have";

/// Removes the segment before `webhooks` see the path. Calls that need a segment and do not have it are refused. A
/// caller with an allowed client certificate needs no segment.
pub fn filter_paths(webhooks: Router, doors: Arc<PathGuard>, metrics: &ServerMetrics) -> Router {
    let refused = RefusedLabel { reason: "path" };
    let refused = metrics.refused.get_or_create_owned(&refused);
    let quiet = Arc::new(LogLimiter::new(
        "calls by other paths",
        MAX_LOGGED_REFUSALS,
        metrics.load.unlogged.clone(),
    ));
    Router::new().fallback(move |mut request: Request| {
        let (webhooks, doors) = (webhooks.clone(), Arc::clone(&doors));
        let (refused, quiet) = (refused.clone(), Arc::clone(&quiet));
        async move {
            let known = request.extensions().get() == Some(&Caller::Known);
            let path = request.uri().path();
            let plain = match doors.strip_segment(path) {
                Some(plain) => plain,
                None if known => crate::tls::selfmanaged::segments::split_path(path).1,
                None => {
                    refused.inc();
                    if quiet.may_log() {
                        tracing::warn!(
                            "a call by a path without the segment of the webhook configurations is refused"
                        );
                    }
                    return close_connection(failure_response(
                        StatusCode::FORBIDDEN,
                        "Forbidden",
                        PATH_REFUSED,
                    ));
                }
            };
            if plain.len() != path.len()
                && let Some(uri) = with_path(request.uri(), plain)
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
fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(uri::PathAndQuery::try_from(target).ok()?);
    Uri::from_parts(parts).ok()
}
