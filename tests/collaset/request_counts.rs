//! How often the server writes to the API server for a rollout.

use std::collections::BTreeMap;

use serde_json::json;
use testbed::Bed;

use crate::fixtures::Set;

/// The successful writes of the server to each Pod of a namespace, after the first `since` requests. Only a creation in
/// a dry run by admission has no Pod name.
async fn writes(bed: &Bed, namespace: &str, since: usize) -> BTreeMap<String, Vec<String>> {
    let events = bed.server_writes(namespace, since).await.unwrap();
    let mut writes = BTreeMap::<String, Vec<String>>::new();
    for event in events {
        let about = event.object_ref.unwrap_or_default();
        if about.resource != "pods" || about.name.is_empty() {
            continue;
        }
        let dry = event.request_uri.contains("dryRun=All");
        let request = match dry {
            true => DRY_RUN.to_owned(),
            false => format!("{} {}", event.verb, about.subresource),
        };
        writes.entry(about.name).or_default().push(request);
    }
    writes
}

/// The entry of a dry run in the list of writes.
const DRY_RUN: &str = "dry run";

/// A Pod that goes off traffic in the write of its begin needs one write less. Before the first change, one Pod gets a
/// dry run.
#[tokio::test]
async fn in_place_update_needs_five_writes_per_waiting_pod() {
    let bed = Bed::own().await; // a shared plane may have no audit log
    let scope = bed.scope("requests").await;
    let set = Set::new(&scope, "web", 6, json!({})).await;
    scope.rule("web", json!({ "app": "web" }), json!(2)).await;
    scope.until_at_rest("web", 6).await;
    let since = bed.audit_events().await.unwrap().len();
    set.image("app:2").await;
    set.settled().await;
    let writes = writes(&bed, &scope.namespace, since).await;
    let is_dry = |request: &&String| *request == DRY_RUN;
    let dry: usize = writes
        .values()
        .map(|w| w.iter().filter(is_dry).count())
        .sum();
    let of_each = writes.values().map(|w| w.len());
    let total: usize = of_each.sum();
    assert_eq!((total - dry, dry), (2 * 4 + 4 * 5, 1), "{writes:#?}");
}
