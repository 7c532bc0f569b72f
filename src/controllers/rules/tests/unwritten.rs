//! The rule controller, if the API server refuses to write the status of rules.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;

use super::super::super::ControllerStats;
use super::super::*;

/// A context with one rule, whose API server refuses all writes and counts the writes of a status that are no dry run.
fn context_that_refuses_writes() -> (Arc<ControllerContext>, Arc<AtomicUsize>) {
    let writes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&writes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_dry = request.uri().query().unwrap_or("").contains("dryRun");
        let is_write = request.method() == Method::PATCH && !is_dry;
        if is_write && request.uri().path().ends_with("/status") {
            count.fetch_add(1, Ordering::Relaxed);
        }
        async {
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no" });
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(403).body(body).unwrap())
        }
    });
    let context = ControllerContext::at_epoch(Client::new(service, "default"));
    let rule = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "5", "generation": 1 },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    let rule = serde_json::from_value(rule).unwrap();
    context.index.apply_rule(rule);
    (context, writes)
}

#[tokio::test(start_paused = true)]
async fn status_that_is_refused_is_written_with_growing_pauses() {
    let (context, writes) = context_that_refuses_writes();
    let stop = CancellationToken::new();
    let queues = ControllerStats::default().begin_term();
    let wait_queue = WaitQueue::new(&context, &queues, &stop);
    let rules = RuleController::new(&context, &queues, &wait_queue, &stop);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let pause = match rules.reconcile(("n".to_owned(), "web".to_owned())).await {
            ReconcileOutcome::Done => panic!("nobody would write the status again"),
            ReconcileOutcome::After(pause) | ReconcileOutcome::Early(pause) => pause,
            ReconcileOutcome::Retry => Duration::from_millis(40),
        };
        tokio::time::sleep(pause.min(Duration::from_millis(500))).await; // changes enqueue the rule all the time
    }
    let writes = writes.load(Ordering::Relaxed);
    assert!((5..=12).contains(&writes), "{writes} writes in a minute");
}
