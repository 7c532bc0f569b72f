//! Selects the handlers to which the API server sends a review, by the table of webhooks.

use crate::admission::review::Request;
use crate::admission::routes::{WEBHOOKS, WebhookKind};

/// Paths of the handlers for a request, mutating ones first. Match conditions are ignored: a stored review has passed
/// them, and the handlers allow all requests that the conditions would exclude.
pub fn handler_paths(request: &Request) -> anyhow::Result<Vec<&'static str>> {
    let resource = match &request.sub_resource {
        Some(sub) => format!("{}/{sub}", request.resource.resource),
        None => request.resource.resource.clone(),
    };
    let mut routes: Vec<_> = WEBHOOKS
        .iter()
        .filter(|webhook| {
            webhook.rules.iter().any(|rule| {
                rule.group == request.resource.group
                    && rule.resource == resource
                    && rule.operations.contains(&request.operation.as_str())
            })
        })
        .map(|webhook| webhook.route)
        .collect();
    routes.sort_by_key(|route| (route.kind() != WebhookKind::Mutating, route.path()));
    routes.dedup();
    let dot = if request.resource.group.is_empty() {
        ""
    } else {
        "."
    };
    anyhow::ensure!(
        !routes.is_empty(),
        "request.resource: the API server never sends {} of {resource}{dot}{} here; nothing holds it",
        request.operation.as_str(),
        request.resource.group
    );
    Ok(routes.into_iter().map(|route| route.path()).collect())
}
