//! The segment in front of the webhook paths.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::{StatusCode, Uri, uri};
use tower::ServiceExt;

use super::caller::Caller;
use super::status::{closing, failure};
use crate::tls::doors::Doors;

const CLOSED: &str = "calls need the path that the webhook configurations have";

/// Takes the segment off before `webhooks` see the path; refuses calls that need one and have it not. A caller with a client
/// certificate needs none.
pub fn guard(webhooks: Router, doors: Arc<Doors>) -> Router {
    Router::new().fallback(move |mut request: Request| {
        let (webhooks, doors) = (webhooks.clone(), Arc::clone(&doors));
        async move {
            let known = request.extensions().get() == Some(&Caller::Known);
            let path = request.uri().path();
            let plain = match doors.enter(path) {
                Some(plain) => plain,
                None if known => crate::tls::selfmanaged::segments::split(path).1,
                None => return closing(failure(StatusCode::FORBIDDEN, "Forbidden", CLOSED)),
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
