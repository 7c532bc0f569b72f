//! Metrics, labels and Events for people on call.

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use testbed::fleet::HOME;
use testbed::{Bed, wait};

/// Metrics of `docs/metrics.md` with their labels, each label set sorted.
fn documented(metric: &str) -> Option<Vec<String>> {
    let page = include_str!("../../docs/metrics.md");
    let row = format!("| `{metric}` |");
    let line = page.lines().find(|line| line.starts_with(&row))?;
    let labels = line.split(" | ").nth(2)?;
    let labels = labels.split(", ").map(|label| label.trim_matches('`'));
    let labels = labels.filter(|label| !label.is_empty()).map(str::to_owned);
    Some(labels.collect())
}

/// Name and labels of a sample. The samples of a histogram count for the histogram.
fn sample(line: &str) -> (String, Vec<String>) {
    let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
    let labels = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    let pairs = labels.map_or("", |(labels, _)| labels).split("\",");
    let names = pairs.filter_map(|pair| pair.split_once('='));
    let mut names: Vec<_> = names.map(|(name, _)| name.to_owned()).collect();
    names.retain(|name| name != "le");
    names.sort();
    let parts = ["_bucket", "_sum", "_count"];
    let whole = parts.iter().find_map(|part| name.strip_suffix(part));
    let is_histogram = whole.is_some_and(|whole| documented(whole).is_some());
    let name = whole.filter(|_| is_histogram).unwrap_or(name);
    (name.to_owned(), names)
}

#[tokio::test]
async fn metrics_and_labels_match_the_documentation() {
    let bed = Bed::shared().await;
    for text in bed.scrapes().await {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, labels) = sample(line);
            assert_eq!(Some(labels), documented(&name), "{line}");
        }
    }
}

#[tokio::test]
async fn loss_of_a_leader_shows_in_metric_and_event() {
    let bed = Bed::own().await;
    let former = bed.leader().await;
    bed.kill(former).await;
    let leads = async || bed.metric("operating_leader").await.iter().sum::<f64>() == 1.0;
    wait::until("another replica to lead", leads).await;
    let events: Api<Event> = Api::namespaced(bed.admin(), HOME);
    let of_lease = ListParams::default().fields("involvedObject.kind=Lease,reason=LeaderElected");
    let since = format!(", since replica-{former}_");
    wait::until("an Event that names the former leader", async || {
        let all = events.list(&of_lease).await.unwrap();
        let mut messages = all.items.iter().filter_map(|event| event.message.as_ref());
        messages.any(|message| message.contains(&since))
    })
    .await;
}
