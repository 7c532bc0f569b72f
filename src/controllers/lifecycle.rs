//! PodOpsLifecycle: writes the readiness condition, `service-available` and the grants, and makes every step that the
//! webhook missed (contract 3.2).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use tracing::warn;

use super::{Context, PodKey, turns, write};
use crate::cluster::queue::Outcome;
use crate::cluster::{path, pods};
use crate::domain::lifecycle::{Stage, Step, controller_step, controller_step_passing};
use crate::domain::pod::Pod;
use crate::domain::rules::stage::candidate;

/// A grant that admission did not give is asked for again after this long at the latest; mostly the rule's own change
/// comes first.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Expected finalizers of Services are looked at again after this long.
const SERVICES_AGAIN: Duration = Duration::from_secs(30);

/// The controller.
pub struct Lifecycle {
    context: Arc<Context>,
}

impl Lifecycle {
    /// A controller.
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Lifecycle { context })
    }

    /// One look at a Pod.
    pub async fn reconcile(&self, (namespace, uid): PodKey) -> Outcome {
        let Some(pod) = self.context.index.read().pod(&namespace, &uid).cloned() else {
            return Outcome::Done;
        };
        if !pod.is_readable() {
            return Outcome::Done; // no ground to act on; a newer version brings it back here
        }
        match self.step(&pod).await {
            Ok(outcome) | Err(outcome) => outcome,
        }
    }

    async fn step(&self, pod: &Pod) -> Result<Outcome, Outcome> {
        let context = &self.context;
        let now = (context.now)();
        let nanos = u64::try_from(now.as_nanosecond()).unwrap_or(0);
        let mut step = controller_step(pod, nanos);
        let passed = self.passed(pod, &step);
        if !passed.is_empty() {
            step = controller_step_passing(pod, &passed, nanos);
        }
        if let Some(problem) = &step.problem {
            warn!(namespace = %pod.metadata.namespace, pod = %pod.metadata.name, problem, "a Pod can't come back");
        }
        let mut outcome = Outcome::Done;
        if !step.labels.is_empty() {
            let patch = json!({ "labels": step.labels.to_merge_patch() });
            let written = write(
                "step a lifecycle",
                pods::patch_metadata(&context.client, pod, patch),
            )
            .await?;
            if written.metadata.resource_version != pod.metadata.resource_version {
                return Ok(Outcome::Done); // the change brings the Pod back here
            }
            outcome = Outcome::After(ASK_AGAIN);
        }
        if let Some(ready) = step.service_ready {
            write(
                "write the readiness condition",
                pods::patch_service_ready(&context.client, pod, ready, now),
            )
            .await?;
        }
        if !step.dirty.is_empty() {
            self.clean(pod, &step.dirty).await?;
            outcome = Outcome::After(SERVICES_AGAIN); // Services are not watched
        }
        Ok(outcome)
    }

    /// IDs of the Pod that seem ready to pass. Admission decides: this only saves asking in vain.
    fn passed(&self, pod: &Pod, step: &Step) -> Vec<(Stage, String)> {
        let waiting = step.reevaluate.iter();
        if waiting.len() == 0 {
            return Vec::new();
        }
        let state = self.context.index.read();
        let may_pass = |stage: Stage, id: &str| {
            let since = pod.label(&stage.family().key(id)).unwrap_or_default();
            turns::passes(&state, stage, pod, &candidate(pod, id, since))
                && (stage == Stage::PostCheck || turns::is_next(&self.context, &state, pod))
        };
        waiting
            .filter(|(stage, id)| may_pass(*stage, id))
            .cloned()
            .collect()
    }

    /// Drops expected finalizers of Services that are gone or no longer select the Pod.
    async fn clean(&self, pod: &Pod, keys: &[String]) -> Result<(), Outcome> {
        let mut gone = Vec::new();
        for key in keys {
            let [_, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else {
                continue;
            };
            // From an annotation: no Service can have a name that does not fit into a path.
            let service = match path::checked_name(name)
                .and_then(|_| path::namespaced::<Service>(&self.context.client, namespace))
            {
                Ok(services) => write("read a Service", services.get_opt(name)).await?,
                Err(_) => None,
            };
            if service.is_none_or(|s| !selects(&s, pod)) {
                gone.push(key.clone());
            }
        }
        if let Some(patch) = Step::drop_dirty(pod, &gone) {
            let metadata = patch["metadata"].clone();
            write(
                "drop expected finalizers",
                pods::patch_metadata(&self.context.client, pod, metadata),
            )
            .await?;
        }
        Ok(())
    }
}

fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| !s.is_empty() && s.iter().all(|(k, v)| pod.label(k) == Some(v)))
}
