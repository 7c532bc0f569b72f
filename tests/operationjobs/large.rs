//! A job of many targets: what each target costs in requests, and that nothing is sent after the end. `JOB_TARGETS=1000`
//! measures a job of 1,000.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt;
use serde_json::json;
use testbed::Bed;
use testbed::plane::audit::Event;
use testbed::wait;

use crate::fixtures::Job;
use crate::sets::Set;

/// The targets, if `JOB_TARGETS` does not say how many.
const TARGETS: i32 = 300;
/// How long nothing may be sent after the job has ended.
const REST: Duration = Duration::from_secs(30);

/// The requests of the server about a namespace that are no list and no watch, by verb and kind. Events are left out: a
/// repeated Event about the CollaSet is written once a minute.
fn requests(events: &[Event], namespace: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        let Some(object) = &event.object_ref else {
            continue;
        };
        let is_of_server = event.user_agent.starts_with("operating/");
        let is_counted = object.resource != "events" && !["list", "watch"].contains(&&*event.verb);
        if is_of_server && is_counted && object.namespace == namespace {
            let kind = match object.subresource.is_empty() {
                true => object.resource.clone(),
                false => format!("{}/{}", object.resource, object.subresource),
            };
            *counts.entry(format!("{} {kind}", event.verb)).or_default() += 1;
        }
    }
    counts
}

/// All audit events, once the server has sent nothing about the namespace for some seconds: the figures of the set's
/// status follow the end of the job.
async fn quiet(bed: &Bed, namespace: &str, since: usize) -> Vec<Event> {
    let mut seen = since;
    wait::value("the server to be at rest", async || {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let events = bed.audit_events().await.unwrap();
        let is_quiet = requests(&events[seen..], namespace).is_empty();
        seen = events.len();
        is_quiet.then_some(events)
    })
    .await
}

#[tokio::test]
async fn many_targets_cost_few_requests_and_nothing_after_the_end() {
    let asked = std::env::var("JOB_TARGETS").ok();
    let targets = asked.map_or(TARGETS, |text| text.parse().unwrap());
    let bed = Bed::own().await; // a shared plane may have no audit log
    let scope = bed.scope("job-large").await;
    let set = Set::new(&scope, "web", targets, json!({})).await;
    let names: Vec<String> = set
        .pods()
        .await
        .values()
        .map(ResourceExt::name_any)
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let since = bed.audit_events().await.unwrap().len();
    let job = Job::replace(&scope, "swap", &names).await;
    let status = job.succeeded().await;
    assert_eq!(status.succeeded_pod_count, targets);
    set.settled().await;
    let events = quiet(&bed, &scope.namespace, since).await;
    let counts = requests(&events[since..], &scope.namespace);
    for (kind, count) in &counts {
        println!(
            "{count:6} {kind}: {:.2} for each target",
            *count as f64 / f64::from(targets)
        );
    }
    let of_job: usize = counts
        .iter()
        .filter(|(kind, _)| kind.contains("operationjobs"))
        .map(|(_, count)| count)
        .sum();
    assert!(of_job < targets as usize / 2, "{of_job} writes of the job");
    assert!(
        counts.get("get pods").copied().unwrap_or(0) < 20,
        "{counts:?}"
    );
    tokio::time::sleep(REST).await;
    let later = bed.audit_events().await.unwrap();
    let counts = requests(&later[events.len()..], &scope.namespace);
    assert!(counts.is_empty(), "{counts:?}");
}
