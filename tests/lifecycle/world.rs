//! One managed Pod and all components that act on it: operators, webhook, controller, kubelet, cooperator.

use std::collections::{BTreeMap, BTreeSet};

use operating::api::keys::{self, Family};
use operating::domain::lifecycle::{
    LabelPatch, LifecycleError, LifecycleStep, LifecycleWrite, Stage, controller_step,
    controller_step_with_passed, follow_readiness, is_held_offline, operator, restarts, validate,
};
use operating::domain::pod::{Pod, PodCondition, ReadinessGate};

/// The cooperator's finalizer, and the entry in the annotation that expects it.
pub const FINALIZER: &str = "prot.podopslifecycle.kusionstack.io/slb";
pub const EXPECTED: &str =
    r#"{"expectedFinalizers":{"Service/default/web":"prot.podopslifecycle.kusionstack.io/slb"}}"#;

#[derive(Clone, Debug, Default)]
pub struct World {
    pub pod: Pod,
    /// The time; each write advances it by one.
    pub now: u64,
    /// Writes bypass a webhook that is down.
    pub webhook_down: bool,
    /// IDs for which rules do not pass.
    pub held: BTreeSet<String>,
    /// IDs that admission holds although the controller saw their rules pass, because another request took the budget.
    pub denied: BTreeSet<String>,
    /// Whether a write since the last reset made the Pod unavailable.
    pub took_offline: bool,
    /// Number of writes of the Pod.
    pub writes: usize,
}

impl World {
    /// An idle Pod that serves.
    pub fn serving() -> World {
        let mut world = World::bare();
        *world.pod.spec.readiness_gates = vec![ReadinessGate {
            condition_type: keys::SERVICE_READY.to_owned(),
        }];
        world.set_condition(keys::SERVICE_READY, true);
        world
    }

    /// The same without a readiness gate.
    pub fn bare() -> World {
        let mut world = World {
            now: 1,
            ..World::default()
        };
        world.pod.metadata.labels = [
            (keys::CONTROL, keys::CONTROL_VALUE),
            (keys::SERVICE_AVAILABLE, "1"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        world.set_condition("Ready", true);
        world
    }

    /// A Pod with a cooperator that puts traffic on.
    pub fn with_traffic(mut self) -> World {
        self.pod
            .metadata
            .annotations
            .insert(keys::AVAILABLE_CONDITIONS.to_owned(), EXPECTED.to_owned());
        self.pod.metadata.finalizers.push(FINALIZER.to_owned());
        self
    }

    pub fn set_condition(&mut self, type_: &str, value: bool) {
        let conditions = &mut self.pod.status.conditions;
        conditions.retain(|c| c.type_ != type_);
        let status = if value { "True" } else { "False" };
        conditions.push(PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            ..PodCondition::default()
        });
    }

    /// One request: the write that `change` makes, with admission.
    pub fn write(&mut self, change: impl FnOnce(&mut Pod)) -> Result<(), Vec<LifecycleError>> {
        self.write_to(false, change)
    }

    /// The same as [`World::write`], for the status or the object.
    fn write_to(
        &mut self,
        status: bool,
        change: impl FnOnce(&mut Pod),
    ) -> Result<(), Vec<LifecycleError>> {
        self.now += 1;
        let mut new = self.pod.clone();
        change(&mut new);
        if !self.webhook_down {
            let observed = if new.spec == self.pod.spec {
                &new
            } else {
                &self.pod
            };
            let lost = !self.pod.is_available() && !is_held_offline(&self.pod);
            let record = restarts::restarts_after_write(&self.pod, &new, observed, lost, self.now)
                .annotation_value();
            let annotations = &mut new.metadata.annotations;
            annotations.remove(keys::AWAITS_RESTART);
            annotations.extend(record.map(|value| (keys::AWAITS_RESTART.to_owned(), value)));
            let errors = validate(Some(&self.pod), &new);
            if !errors.is_empty() {
                return Err(errors);
            }
            let mut run = LifecycleWrite::from_write(Some(&self.pod), &new, self.now);
            self.answer(&mut run);
            run.advance_all();
            let patch = run.patch();
            let mut again = run.clone();
            again.advance_all();
            assert_eq!(again.patch(), patch, "settling twice is settling once");
            self.took_offline |= run.takes_offline();
            let goes_on = status && run.has_passed_stage();
            patch.apply(&mut new.metadata.labels);
            if goes_on {
                follow_readiness(&mut new, self.now);
            }
            assert_eq!(
                validate(Some(&self.pod), &new),
                [],
                "the validating webhook accepts what the mutating one made"
            );
        }
        if new != self.pod {
            self.writes += 1;
            self.pod = new;
        }
        Ok(())
    }

    fn answer(&self, run: &mut LifecycleWrite<'_>) {
        for stage in [Stage::PreCheck, Stage::PostCheck] {
            for id in run.ids_awaiting_stage(stage) {
                if self.held.contains(&id) || self.denied.contains(&id) {
                    run.hold_stage(stage, &id)
                } else {
                    run.pass_stage(stage, &id)
                }
            }
        }
    }

    pub fn patch(&mut self, patch: &LabelPatch) -> Result<(), Vec<LifecycleError>> {
        self.write(|pod| patch.apply(&mut pod.metadata.labels))
    }

    pub fn begin(&mut self, id: &str, type_: &str) {
        let patch = operator::begin_labels(&self.pod, id, type_, false, self.now);
        self.patch(&patch).unwrap();
    }

    pub fn finish(&mut self, id: &str) {
        let patch = operator::finish_labels(&self.pod, id);
        self.patch(&patch).unwrap();
    }

    pub fn undo(&mut self, id: &str) {
        let type_ = self
            .pod
            .label(&Family::OperationType.key(id))
            .unwrap_or("none")
            .to_owned();
        self.patch(&operator::undo_labels(id, &type_)).unwrap();
    }

    /// Runs one reconcile. Returns the steps that it took.
    pub fn reconcile(&mut self) -> LifecycleStep {
        let mut step = controller_step(&self.pod, self.now);
        let passed: Vec<_> = step
            .reevaluate
            .iter()
            .filter(|(_, id)| !self.held.contains(id))
            .cloned()
            .collect();
        if !passed.is_empty() {
            step = controller_step_with_passed(&self.pod, &passed, self.now);
        }
        if !step.labels.is_empty() {
            let labels = step.labels.clone();
            let by_status = !passed.is_empty();
            let written = self.write_to(by_status, |pod| labels.apply(&mut pod.metadata.labels));
            written.unwrap();
        }
        if let Some(ready) = step.service_ready {
            self.write(|pod| {
                let mut world = World {
                    pod: pod.clone(),
                    ..World::default()
                };
                world.set_condition(keys::SERVICE_READY, ready);
                *pod = world.pod;
            })
            .unwrap();
        }
        step
    }

    /// The kubelet obeys the readiness gate; the containers are healthy.
    pub fn kubelet(&mut self) {
        let ready = !self.pod.has_service_ready_gate()
            || self.pod.condition(keys::SERVICE_READY) == Some(true);
        if self.pod.condition("Ready") != Some(ready) {
            let mut status = self.clone();
            status.set_condition("Ready", ready);
            self.write(|pod| *pod = status.pod).unwrap();
        }
    }

    /// The cooperator adds its finalizer to a Ready Pod, and removes it from any other Pod.
    pub fn cooperator(&mut self) {
        let wanted =
            self.pod.is_ready() && self.pod.annotation(keys::AVAILABLE_CONDITIONS).is_some();
        if self.pod.is_protected() != wanted {
            let finalizers = if wanted {
                vec![FINALIZER.to_owned()]
            } else {
                Vec::new()
            };
            self.write(|pod| pod.metadata.finalizers = finalizers)
                .unwrap();
        }
    }

    /// Runs all components except operators until none has anything to do.
    pub fn quiesce(&mut self) {
        for _ in 0..40 {
            let before = self.pod.clone();
            self.reconcile();
            self.kubelet();
            self.cooperator();
            if before == self.pod {
                return;
            }
        }
        panic!("never quiet: {:?}", self.labels());
    }

    pub fn has(&self, family: Family, id: &str) -> bool {
        self.pod.label(&family.key(id)).is_some()
    }

    pub fn available(&self) -> bool {
        self.pod.label(keys::SERVICE_AVAILABLE).is_some()
    }

    pub fn condition(&self) -> Option<bool> {
        self.pod.condition(keys::SERVICE_READY)
    }

    /// Labels of the lifecycle in short form: without the domain, and without values that are times.
    pub fn labels(&self) -> Vec<String> {
        short(&self.pod.metadata.labels)
    }

    /// The labels that belong to an ID.
    pub fn labels_of(&self, id: &str) -> Vec<String> {
        self.labels()
            .into_iter()
            .filter(|l| l.split('=').next().unwrap().ends_with(&format!("/{id}")))
            .collect()
    }

    /// Whether no operation is in flight and no label is left.
    pub fn is_idle(&self) -> bool {
        self.labels() == ["service-available"]
    }
}

fn short(labels: &BTreeMap<String, String>) -> Vec<String> {
    let lifecycle = labels
        .iter()
        .filter(|(k, _)| k.contains("podopslifecycle.kusionstack.io"));
    let mut short: Vec<String> = lifecycle
        .map(|(key, value)| {
            let key = key
                .replace(".podopslifecycle.kusionstack.io", "")
                .replace("podopslifecycle.kusionstack.io/", "");
            if value.parse::<u64>().is_ok() {
                key
            } else {
                format!("{key}={value}")
            }
        })
        .collect();
    short.sort();
    short
}
