//! Counts the reasons why the Pods of a rule object wait, if the Pods are too many to be listed. A count visits all
//! these Pods. Therefore the count is made in parts, and the pause before the next count is much longer than the count.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::RuleObjectName;
use super::super::yielder::{REST_FACTOR, STEPS_PER_YIELD, Yielder};
use super::RuleController;
use super::status::WaitReasonCounts;
use super::status::{self, QueueFacts, StatusInputs, StatusView};
use crate::ledger::store::Uid;

/// Minimum time between two counts of one rule object.
const MIN_COUNT_INTERVAL: Duration = Duration::from_secs(2);

impl RuleController {
    /// The counted reasons, if the status can't list all waiting Pods. Also returns the time until the next count, if
    /// an earlier count is still valid.
    pub(super) async fn count_wait_reasons(
        &self,
        name: &RuleObjectName,
        uid: &Uid,
        inputs: &StatusInputs,
        queue: &mut QueueFacts,
    ) -> (Option<Arc<WaitReasonCounts>>, Option<Duration>) {
        let exceeds_details =
            self.with_rule_entry(name, uid, |_, entry, _| status::exceeds_details(entry));
        if exceeds_details != Some(true) {
            self.store_reason_counts(name, None);
            return (None, None);
        }
        let now = Instant::now();
        let last_counted = self
            .last_reconciles
            .lock()
            .get(name)
            .and_then(|last| last.counted.clone());
        if let Some((until, counted)) = last_counted.filter(|(until, _)| *until > now) {
            return (Some(counted), Some(until - now));
        }
        let waits = self.with_rule_entry(name, uid, |_, entry, _| {
            let waits = status::all_stage_waits(entry, queue.head.as_ref());
            (waits, 1 + entry.snapshot.rules.rules.len())
        });
        let Some((waits, steps)) = waits else {
            return (None, None);
        };
        let (mut reasons, mut yielder) = (WaitReasonCounts::default(), Yielder::new());
        for part in waits.chunks((STEPS_PER_YIELD / steps).max(1)) {
            self.with_rule_entry(name, uid, |state, entry, call_states| {
                let gauges = self.collect_gauges(state, entry, queue);
                let view = StatusView {
                    state,
                    entry,
                    gauges,
                    call_states,
                    inputs,
                    queue,
                };
                status::count_reasons(&view, part, &mut reasons);
            });
            yielder.steps += part.len() * steps;
            yielder.yield_if_due().await;
        }
        let (_, _, elapsed) = yielder.into_totals();
        let counted = Arc::new(reasons);
        let until = Instant::now() + MIN_COUNT_INTERVAL.max(elapsed * REST_FACTOR);
        self.store_reason_counts(name, Some((until, Arc::clone(&counted))));
        (Some(counted), None)
    }

    fn store_reason_counts(
        &self,
        name: &RuleObjectName,
        counted: Option<(Instant, Arc<WaitReasonCounts>)>,
    ) {
        if let Some(last) = self.last_reconciles.lock().get_mut(name) {
            last.counted = counted;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::super::super::wait_queue::WaitQueue;
    use super::super::super::{ControllerContext, ControllerStats};
    use super::*;
    use crate::api::keys::{self, Family};
    use crate::domain::rules::conditions::{LedgerStorage, NamespaceState, SelectorMatches};

    fn pod(n: usize) -> serde_json::Value {
        let name = format!("web-{n:04}");
        json!({
            "metadata": {
                "namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
                "labels": {
                    (keys::CONTROL): keys::CONTROL_VALUE,
                    Family::Operating.key("x"): "1", Family::PreCheck.key("x"): "1", Family::OperationType.key("x"): "t",
                },
            },
            "status": { "phase": "Running" },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn many_waits_are_counted_again_only_after_a_pause() {
        let service = tower::service_fn(|_: http::Request<Body>| async {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let context = ControllerContext::at_epoch(Client::new(service, "default"));
        let requires = json!({ "matchLabels": { "fit": "yes" } });
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "5", "generation": 1 },
            "spec": { "selector": {}, "rules": [{ "name": "labels", "labelCheck": { "requires": requires } }] },
        });
        context
            .index
            .apply_rule(serde_json::from_value(rule).unwrap());
        let apply = |n| {
            context
                .index
                .apply_pod(serde_json::from_value(pod(n)).unwrap())
        };
        (0..1_500).for_each(apply);
        let (stop, queues) = (
            CancellationToken::new(),
            ControllerStats::default().begin_term(),
        );
        let wait_queue = WaitQueue::new(&context, &queues, &stop);
        let rules = RuleController::new(&context, &queues, &wait_queue, &stop);
        let (name, uid) = (("n".to_owned(), "web".to_owned()), Uid::from("rule"));
        rules.reconcile(name.clone()).await;
        let inputs = StatusInputs {
            namespace_state: NamespaceState::default(),
            grace_delete: false,
            matches: SelectorMatches::Managed,
            unreadable: Vec::new(),
            ledger_repair_message: None,
            ledger_storage: LedgerStorage::default(),
        };
        let count = async || {
            let mut queue = QueueFacts::default();
            let (counted, pause) = rules
                .count_wait_reasons(&name, &uid, &inputs, &mut queue)
                .await;
            (
                counted.unwrap().to_status_values()[0]["pods"].clone(),
                pause,
            )
        };
        rules.store_reason_counts(&name, None);
        assert_eq!(count().await, (json!(1_500), None));
        (1_500..1_600).for_each(apply);
        let (pods, pause) = count().await;
        assert_eq!(pods, 1_500);
        tokio::time::sleep(pause.unwrap()).await;
        assert_eq!(count().await, (json!(1_600), None));
    }
}
