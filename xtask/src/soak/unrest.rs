//! Details about objects that do not come to rest, for the search for the cause.

use anyhow::Result;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// Maximum number of Events in the output.
const EVENTS: usize = 25;

/// The ReplicaSets of the namespace (the list of objects names none that a Deployment owns), and the last
/// Events.
///
/// # Errors
/// When they cannot be read.
pub async fn context(client: &Client, namespace: &str) -> Result<String> {
    let mut lines = Vec::new();
    let all = ListParams::default();
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    for set in sets.list(&all).await?.items {
        lines.push(format!(
            "ReplicaSet/{} generation {:?}: spec {:?}, status {}",
            set.name_any(),
            set.metadata.generation,
            set.spec.as_ref().and_then(|spec| spec.replicas),
            serde_json::to_string(&set.status)?
        ));
    }
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let mut events = events.list(&all).await?.items;
    events.sort_by_key(|event| event.last_timestamp.clone().map(|time| time.0));
    for event in events.iter().rev().take(EVENTS).rev() {
        lines.push(format!(
            "{} {}/{} {} x{}: {}",
            event
                .last_timestamp
                .as_ref()
                .map_or_else(String::new, |time| time.0.to_string()),
            event.involved_object.kind.as_deref().unwrap_or_default(),
            event.involved_object.name.as_deref().unwrap_or_default(),
            event.reason.as_deref().unwrap_or_default(),
            event.count.unwrap_or(1),
            event.message.as_deref().unwrap_or_default()
        ));
    }
    Ok(lines.join("\n  "))
}
