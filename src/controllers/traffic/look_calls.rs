//! The calls of one look: reads and changes, each within its limits.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};
use traffic::plan::{Memory, Next, View, next_call};
use traffic::{Adapter, AdapterError, Applied, Changes};

use super::call_limits::CallPermit;
use super::look::Look;
use super::look_result::{MIN_PAUSE, Role};
use crate::cluster::objects::cache_positions;
use crate::cluster::traffic::slices;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;

/// What became of the calls.
pub(super) struct Calls {
    /// The time until the next look.
    pub wake: Option<Duration>,
    /// Whether the first change at a new adapter is due, and was left out: the record must name the adapter before.
    pub begins: bool,
}

impl Look<'_> {
    /// Makes the calls that are due.
    pub(super) async fn call(
        &self,
        view: &mut View,
        pods: &mut BTreeMap<String, Arc<Pod>>,
        memory: &mut Memory,
    ) -> Result<Calls, ReconcileOutcome> {
        let (mut calls, mut observed) = (0, false);
        let wait = |wake| Calls {
            wake,
            begins: false,
        };
        loop {
            let now = self.now();
            let next = next_call(view, memory, calls, observed, now);
            if let Next::Wait(until) = next {
                let pause = |until: Timestamp| {
                    let pause = until.duration_since(now);
                    Duration::try_from(pause).unwrap_or_default().max(MIN_PAUSE)
                };
                return Ok(wait(until.map(pause)));
            }
            if matches!(
                (&next, self.role),
                (Next::Apply(_), Role::Present { is_new: true, .. })
            ) {
                return Ok(Calls {
                    wake: None, // the write of the record decides
                    begins: true,
                });
            }
            let _permit = match self.take_call(view) {
                Ok(permit) => permit,
                Err(pause) => return Ok(wait(Some(pause.max(MIN_PAUSE)))),
            };
            memory.begin_call(calls == 0, now);
            match next {
                Next::Observe => {
                    self.observe(view, memory, now).await;
                    observed = true;
                    self.add_unknown_pods(view, pods, memory).await?;
                }
                Next::Apply(changes) => {
                    if !self.context.leadership.is_leading() {
                        return Err(ReconcileOutcome::Retry);
                    }
                    self.apply(view, memory, &changes).await;
                }
                Next::Wait(_) => {}
            }
            calls += 1;
        }
    }

    fn take_call(&self, view: &View) -> Result<Option<CallPermit>, Duration> {
        if view.settings.observes_for_free {
            return Ok(None);
        }
        let (adapter, per_second) = (&self.named.name, view.settings.calls_per_second);
        let taken = self
            .limits
            .take(adapter, &self.employer.name, per_second, Instant::now());
        taken.map(Some)
    }

    async fn observe(&self, view: &View, memory: &mut Memory, began: Timestamp) {
        let pods: Vec<_> = view.pods.values().map(|input| input.pod.clone()).collect();
        let observed = async {
            if view.settings.observes_for_free && memory.awaits_absence(view) {
                self.wait_for_slices().await?;
            }
            self.named.adapter.observe(&self.seen, &pods).await
        };
        let result = self.bounded(view, observed).await.and_then(|result| result);
        if !view.settings.observes_for_free {
            self.count("observe", result.as_ref().err());
        }
        memory.observed(view, result, began, self.now());
    }

    /// Waits until the cache has the EndpointSlices as they are now. The cache can be older than a Pod that has just
    /// turned, and then tells what was true before the Pod was on traffic.
    async fn wait_for_slices(&self) -> Result<(), AdapterError> {
        let registry = &self.context.watch_registry;
        let paths = [slices::WATCH_PATH];
        let positions = cache_positions::read_positions(&self.context.client, registry, &paths);
        let positions = positions.await.map_err(|error| {
            AdapterError::Transient(format!("the EndpointSlices can't be read: {error}"))
        })?;
        positions.wait_reached().await;
        Ok(())
    }

    async fn apply(&self, view: &View, memory: &mut Memory, changes: &Changes) {
        debug!(
            register = changes.register.len(),
            drain = changes.drain.len(),
            deregister = changes.deregister.len(),
            "changing members"
        );
        let call = self.named.adapter.apply(&self.seen, changes);
        let applied: Applied = match self.bounded(view, call).await {
            Ok(applied) => applied,
            Err(error) => changes.all_failed(&error),
        };
        let error = applied.values().find_map(|result| result.as_ref().err());
        self.count("apply", error);
        memory.applied(view, changes, applied, self.now());
    }

    /// Awaits a call of the adapter for as long as its settings allow. A panic of an adapter is a failed call.
    async fn bounded<T>(
        &self,
        view: &View,
        call: impl Future<Output = T>,
    ) -> Result<T, AdapterError> {
        let limit = view.settings.timeout;
        let call = AssertUnwindSafe(call).catch_unwind();
        match timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => {
                let text = format!(
                    "adapter {} has panicked; see the log of the server",
                    self.named.name
                );
                warn!(
                    employer = self.employer.name.key(),
                    adapter = self.named.name,
                    "an adapter has panicked"
                );
                Err(AdapterError::Transient(text))
            }
            Err(_) => {
                let text = format!("no answer within {} s", limit.as_secs_f64());
                Err(AdapterError::Transient(text))
            }
        }
    }

    fn count(&self, call: &'static str, error: Option<&AdapterError>) {
        if let Some(error) = error {
            debug!(call, %error, "a call of an adapter failed");
        }
        let outcome = match error {
            None => "ok",
            // Only what fewer calls would help against: the metric shows whether a quota is too small.
            Some(AdapterError::Throttled { .. }) => "throttled",
            Some(_) => "failed",
        };
        let counters = &self.context.traffic.counters;
        counters.count_call(&self.named.name, call, outcome);
    }
}
