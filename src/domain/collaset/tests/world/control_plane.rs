//! Plays admission of Pods, the controllers of the lifecycle, the kubelet, the node controller and the garbage
//! collector. Each makes one step when it is the turn of a Pod. Where the server's code is pure, the tests run that
//! code.

use serde_json::json;

use super::World;
use crate::api::keys::{self, Family};
use crate::domain::collaset::status::condition_time;
use crate::domain::collaset::{
    abandoned_decoration_owners, abandoned_metadata_patch, orphans_its_pods,
};
use crate::domain::grace_delete;
use crate::domain::lifecycle::{
    LifecycleWrite, Stage, controller_step, controller_step_with_passed, operator, restarts,
    validate,
};
use crate::domain::pod::{
    Pod, PodCondition, RESIZE_IN_PROGRESS, RESIZE_PENDING, ReadinessGate, Resources, WaitingState,
};

/// The reaction of a node to a resize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resizing {
    /// The node applies it.
    #[default]
    Prompt,
    /// The node has no space for it now.
    Deferred,
    /// The node can never apply it.
    Infeasible,
}

/// Properties of the kubelet of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubelet {
    /// It does nothing for now.
    pub is_slow: bool,
    /// Its node is lost.
    pub is_lost: bool,
    /// Its Pod takes long to end.
    pub ends_slowly: bool,
    pub resizing: Resizing,
}

impl World {
    /// Lets the components of each Pod whose bit is set in the mask act once. Returns false if nothing has changed.
    pub fn run_pods(&mut self, mask: u8) -> bool {
        self.tick();
        let state = |world: &World| {
            (
                world.pods.clone(),
                world.set.metadata.clone(),
                world.is_deleted,
            )
        };
        let before = state(self);
        self.collect_garbage();
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for (index, name) in names.iter().enumerate() {
            if mask & (1 << (index % 8)) != 0 {
                self.run_components_for(name);
            }
        }
        before != state(self)
    }

    fn run_components_for(&mut self, name: &str) {
        type Part = fn(&World, &Pod) -> Option<Pod>;
        let parts: [Part; 3] = [
            World::step_lifecycle,
            World::step_deletion,
            World::step_kubelet,
        ];
        for part in parts {
            if let Some(new) = part(self, &self.pods[name]) {
                self.pods.insert(name.to_owned(), new);
            }
        }
        if self.has_ended(&self.pods[name]) {
            self.pods.remove(name);
        }
    }

    /// Writes to a Pod as somebody else. Returns false if admission refuses the write.
    pub fn write_pod(&mut self, name: &str, change: impl FnOnce(&mut Pod)) -> bool {
        let Some(old) = self.pods.get(name).cloned() else {
            return false;
        };
        let mut new = old.clone();
        change(&mut new);
        let admitted = self.admit(&old, &mut new, false).is_ok();
        if admitted {
            self.pods.insert(name.to_owned(), new);
        }
        admitted
    }

    /// Sets a label of a Pod as somebody else. Admission must allow it.
    pub fn relabel(&mut self, name: &str, key: &str, value: &str) {
        let label = (key.to_owned(), value.to_owned());
        assert!(self.write_pod(name, |pod| pod.metadata.labels.extend([label])));
    }

    /// Changes a new Pod as admission does.
    pub fn admit_new(&self, pod: &mut Pod) {
        pod.metadata.generation = 1;
        pod.status.phase = "Pending".into();
        let mut run = LifecycleWrite::from_write(None, pod, self.clock);
        run.advance_all();
        let patch = run.patch();
        patch.apply(&mut pod.metadata.labels);
        let condition_type = keys::SERVICE_READY.to_owned();
        pod.spec
            .readiness_gates
            .push(ReadinessGate { condition_type });
    }

    /// Judges and changes a write of a Pod, or of its status, as admission does.
    pub fn admit(&self, old: &Pod, new: &mut Pod, of_status: bool) -> Result<(), String> {
        if !old.is_managed() || !new.is_managed() || old.is_terminating() {
            return Ok(());
        }
        let basis = if of_status { &*new } else { old };
        let record =
            restarts::restarts_after_write(old, new, basis, false, self.clock).annotation_value();
        let annotations = &mut new.metadata.annotations;
        match record {
            Some(record) => annotations.insert(keys::AWAITS_RESTART.to_owned(), record),
            None => annotations.remove(keys::AWAITS_RESTART),
        };
        if let Some(error) = validate(Some(old), new).first() {
            return Err(format!("{}: {}", error.path, error.message));
        }
        let requested = new.clone();
        let mut run = LifecycleWrite::from_write(Some(old), &requested, self.clock);
        for id in run.ids_awaiting_stage(Stage::PostCheck) {
            if !self.faults.holds_back {
                run.pass_stage(Stage::PostCheck, &id);
            }
        }
        let asking = match of_status {
            true => Vec::new(),
            false => run.ids_awaiting_stage(Stage::PreCheck),
        };
        if self.rules_allow(old) {
            for id in asking {
                run.pass_stage(Stage::PreCheck, &id);
            }
        }
        run.advance_all();
        run.patch().apply(&mut new.metadata.labels);
        Ok(())
    }

    /// Whether the rules let a Pod go off traffic.
    fn rules_allow(&self, pod: &Pod) -> bool {
        if self.faults.held.contains(&pod.metadata.uid) {
            return false;
        }
        let Some(most) = self.faults.max_unavailable.filter(|_| pod.is_available()) else {
            return !self.faults.holds;
        };
        let covered = |p: &&Pod| p.is_managed() && p.label("app") == Some("web");
        let available = self.pods.values().filter(covered);
        let available = available.filter(|p| p.is_available()).count();
        let wanted = usize::try_from(self.set.spec.replicas.unwrap_or(0)).unwrap();
        !self.faults.holds && available > wanted.saturating_sub(most)
    }

    fn admitted(&self, old: &Pod, mut new: Pod, of_status: bool) -> Option<Pod> {
        self.admit(old, &mut new, of_status).ok()?;
        (*old != new).then_some(new)
    }

    /// Plays `controllers/lifecycle`.
    fn step_lifecycle(&self, pod: &Pod) -> Option<Pod> {
        let mut new = pod.clone();
        if let Some(metadata) = abandoned_metadata_patch(pod) {
            for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
                match value.as_str() {
                    Some(value) => new.metadata.labels.insert(key.clone(), value.to_owned()),
                    None => new.metadata.labels.remove(key),
                };
            }
            for key in metadata["annotations"].as_object().into_iter().flatten() {
                new.metadata.annotations.remove(key.0);
            }
            return self.admitted(pod, new, false);
        }
        let abandoned = abandoned_decoration_owners(pod);
        if !abandoned.is_empty() {
            let mut owners = pod.metadata.owner_references.to_vec();
            owners.retain(|owner| !abandoned.iter().any(|entry| entry["uid"] == owner.uid));
            new.metadata.owner_references = owners.into();
            return self.admitted(pod, new, false);
        }
        let mut step = controller_step(pod, self.clock);
        let (holds, back) = (!self.rules_allow(pod), self.faults.holds_back);
        let passes = |stage: Stage| match stage {
            Stage::PreCheck => !holds,
            Stage::PostCheck => !back,
        };
        let waiting = step.reevaluate.iter().cloned();
        let passed: Vec<_> = waiting.filter(|(stage, _)| passes(*stage)).collect();
        if !passed.is_empty() {
            step = controller_step_with_passed(pod, &passed, self.clock);
        }
        let drops_record = restarts::assumed_done_in(pod, self.clock) == Some(0);
        if !step.labels.is_empty() || drops_record {
            step.labels.apply(&mut new.metadata.labels);
            return self.admitted(pod, new, false);
        }
        let value = if step.service_ready? { "True" } else { "False" };
        self.set_condition(&mut new, keys::SERVICE_READY, value);
        self.admitted(pod, new, true)
    }

    /// Plays `controllers/pod_deletion`.
    fn step_deletion(&self, pod: &Pod) -> Option<Pod> {
        if pod.is_terminating() || !pod.is_managed() {
            return None;
        }
        let mut new = pod.clone();
        let (id, type_) = (grace_delete::DELETION_ID, grace_delete::DELETION_TYPE);
        let has_begun = operator::is_in_progress(pod, id, type_);
        let labels = match (pod.label(keys::TO_DELETE).is_some(), has_begun) {
            (true, false) => operator::begin_labels(pod, id, type_, true, self.clock),
            (true, true) if self.is_deletion_refused(pod) => return None,
            (true, true) if operator::is_operation_due(pod, id, type_, 0, self.clock) => {
                new.metadata.deletion_timestamp = Some(self.describe_due());
                return Some(new);
            }
            (false, true) if pod.label(&Family::UndoOperationType.key(id)).is_none() => {
                operator::undo_labels(id, type_)
            }
            _ => return None,
        };
        labels.apply(&mut new.metadata.labels);
        self.admitted(pod, new, false)
    }

    /// Whether a Pod is off traffic for its deletion and the deletion is refused.
    pub fn is_deletion_refused(&self, pod: &Pod) -> bool {
        let (id, type_) = (grace_delete::DELETION_ID, grace_delete::DELETION_TYPE);
        pod.label(keys::TO_DELETE).is_some()
            && operator::is_in_progress(pod, id, type_)
            && operator::is_operation_due(pod, id, type_, 0, self.clock)
            && self.refuses_deletion(&pod.metadata.uid)
    }

    fn kubelet_of(&self, pod: &Pod) -> Kubelet {
        let found = self.kubelets.get(&pod.metadata.uid);
        found.cloned().unwrap_or_default()
    }

    fn has_ended(&self, pod: &Pod) -> bool {
        let kubelet = self.kubelet_of(pod);
        let is_held = kubelet.is_lost || kubelet.is_slow || kubelet.ends_slowly;
        pod.is_terminating() && (!is_held || pod.is_finished() && !kubelet.ends_slowly)
    }

    fn step_kubelet(&self, pod: &Pod) -> Option<Pod> {
        let kubelet = self.kubelet_of(pod);
        if pod.is_finished() || pod.is_terminating() || kubelet.is_slow {
            return None;
        }
        let mut new = pod.clone();
        if kubelet.is_lost {
            self.set_condition(&mut new, "Ready", "Unknown");
            return (*pod != new).then_some(new);
        }
        let observed = &mut new.status.observed_generation;
        if *observed < pod.metadata.generation {
            // The kubelet reports the generation that it has observed before it acts.
            *observed = pod.metadata.generation;
            self.see_resize(&mut new, kubelet.resizing);
        } else {
            self.run_containers(&mut new, kubelet.resizing);
        }
        new.status.phase = "Running".into();
        let containers = &new.status.container_statuses;
        let runs = !containers.is_empty() && containers.iter().all(|c| c.ready);
        let gate =
            pod.condition(keys::SERVICE_READY) == Some(true) || !pod.has_service_ready_gate();
        let ready = if runs && gate { "True" } else { "False" };
        self.set_condition(&mut new, "Ready", ready);
        (*pod != new).then_some(new) // admission changes nothing in a write of the kubelet
    }

    fn see_resize(&self, pod: &mut Pod, resizing: Resizing) {
        let generation = pod.metadata.generation;
        let differs = pod.spec.containers.iter().any(|c| {
            let reported = pod
                .status
                .container_statuses
                .iter()
                .find(|s| s.name == c.name);
            reported.is_some_and(|reported| {
                reported.resources != Resources::from_resources(&c.resources)
            })
        });
        let requested = pod.spec.containers.iter();
        let requested: Vec<_> = requested
            .map(|c| Resources::from_resources(&c.resources))
            .collect();
        let requested: Box<str> = format!("{requested:?}").into();
        let conditions = &mut pod.status.conditions;
        // A kubelet does not evaluate an infeasible resize again, and its condition keeps the generation of that
        // resize.
        let is_known =
            |c: &PodCondition| c.reason == "Infeasible" && c.message.as_ref() == Some(&requested);
        if differs && conditions.iter().any(is_known) {
            return;
        }
        conditions.retain(|c| !is_of_resize(c));
        let mut pending = |type_: &str, reason: &str| {
            conditions.push(PodCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                reason: reason.to_owned(),
                message: Some(requested.clone()),
                observed_generation: generation,
                ..PodCondition::default()
            });
        };
        match resizing {
            _ if !differs => {}
            Resizing::Prompt => pending(RESIZE_IN_PROGRESS, ""),
            Resizing::Deferred => pending(RESIZE_PENDING, "Deferred"),
            Resizing::Infeasible => pending(RESIZE_PENDING, "Infeasible"),
        }
    }

    fn run_containers(&self, pod: &mut Pod, resizing: Resizing) {
        let mut old = std::mem::take(&mut pod.status.container_statuses);
        let statuses = pod.spec.containers.iter().map(|container| {
            let (wanted, name) = (&container.image, &container.name);
            let position = old.iter().position(|s| s.name == *name);
            let mut status = position.map(|at| old.remove(at)).unwrap_or_default();
            status.name.clone_from(name);
            let resources = Resources::from_resources(&container.resources);
            let plain = wanted.split('@').next().unwrap_or_default();
            if self.faults.unpullable.contains(plain) {
                status.ready = false;
                status.state.waiting = Some(Box::new(WaitingState {
                    reason: "ImagePullBackOff".into(),
                    message: String::new(),
                }));
            } else if status.image != *wanted {
                status.image.clone_from(wanted);
                status.image_id = format!("id-of-{plain}");
                status.container_id = format!("run-{}", self.clock);
                status.ready = false;
                status.state.waiting = None;
                status.resources = resources;
            } else {
                status.ready = true;
                status.state.waiting = None;
            }
            if resizing == Resizing::Prompt || status.resources == Resources::default() {
                status.resources = resources;
            }
            status
        });
        let statuses = statuses.collect();
        pod.status.container_statuses = statuses;
        if resizing == Resizing::Prompt {
            pod.status.conditions.retain(|c| !is_of_resize(c));
        }
    }

    fn set_condition(&self, pod: &mut Pod, type_: &str, status: &str) {
        let conditions = &mut pod.status.conditions;
        if !conditions.iter().any(|c| c.type_ == type_) {
            conditions.push(PodCondition {
                type_: type_.to_owned(),
                ..PodCondition::default()
            });
        }
        let mut conditions = conditions.iter_mut();
        let condition = conditions.find(|c| c.type_ == type_).unwrap();
        if condition.status != status {
            condition.status = status.to_owned();
            condition.last_transition_time = Some(condition_time(self.clock).to_string());
        }
    }

    /// Plays the garbage collector for a set that is deleted without its Pods: it removes the references to the set,
    /// except from objects that it has not seen yet. Admission records that it has done so.
    pub fn collect_garbage(&mut self) {
        if !self.dead.is_empty() {
            self.collect_dependents();
        }
        if self.set.metadata.deletion_timestamp.is_none() {
            return;
        }
        let uid = self.uid().to_owned();
        let finalizers = self.set.metadata.finalizers.get_or_insert_default();
        let orphans = finalizers.iter().any(|f| f == "orphan");
        finalizers.retain(|f| f != "orphan");
        if orphans {
            let annotations = self.set.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::LEAVES_ITS_PODS.to_owned(), uid.clone());
            let overlooked = usize::try_from(self.clock / 1_000_000_000 % 3).unwrap();
            let is_seen = |nth: usize| nth % 3 != overlooked;
            for (nth, pod) in self.pods.values_mut().enumerate() {
                let owners = &mut pod.metadata.owner_references;
                owners.retain(|o| o.uid != uid || !is_seen(nth));
            }
            let controllers = self.pvcs.values_mut().map(|c| &mut c.controller);
            let revisions = self.revisions.values_mut().map(|r| &mut r.controller);
            for (nth, controller) in controllers.chain(revisions).enumerate() {
                controller.take_if(|of| *of == uid && is_seen(nth));
            }
        }
        let finalizers = self.set.metadata.finalizers.iter().flatten();
        self.is_deleted |= finalizers.count() == 0;
    }

    /// Deletes the objects that refer to deleted sets.
    fn collect_dependents(&mut self) {
        let (due, dead) = (self.describe_due(), &self.dead);
        let lost = |uid: Option<&String>| uid.is_some_and(|uid| dead.contains_key(uid));
        for pod in self.pods.values_mut() {
            let owner = pod.controller().and_then(|owner| dead.get(&owner.uid));
            let Some(leaves) = owner else {
                continue;
            };
            let name = &pod.metadata.name;
            let may_go = pod.is_terminating() || !leaves && !pod.is_managed();
            assert!(may_go, "{name} is collected");
            pod.metadata.deletion_timestamp.get_or_insert(due.clone());
        }
        let mut mounts = self.pods.values().flat_map(|pod| &pod.spec.pvcs);
        let collected = |pvc_name: &&String| lost(self.pvcs[*pvc_name].controller.as_ref());
        let mounted = mounts.find(collected);
        assert!(mounted.is_none(), "{mounted:?} is mounted and collected");
        self.pvcs.retain(|_, pvc| !lost(pvc.controller.as_ref()));
        self.revisions
            .retain(|_, revision| !lost(revision.controller.as_ref()));
    }

    /// Creates the set again after it is gone.
    pub fn recreate_set(&mut self) {
        if !self.is_deleted {
            return;
        }
        let leaves = orphans_its_pods(&self.set.metadata);
        self.dead.insert(self.uid().to_owned(), leaves);
        let uid = format!("set-{}", self.tick());
        self.set.metadata.uid = Some(uid);
        self.set.metadata.deletion_timestamp = None;
        self.set.metadata.finalizers = None;
        self.set.status = None;
        self.is_deleted = false;
        self.forget_refusals();
    }

    /// Restarts the controller, which then has forgotten everything that it remembered.
    pub fn forget_refusals(&mut self) {
        self.refused = Default::default();
        self.noted = Default::default();
        self.noted_changes.clear();
        self.ended_until.clear();
    }

    /// Deletes the set without its Pods, and waits until it is gone.
    pub fn orphan_set(&mut self) {
        self.delete_set(true);
        for _ in 0..1000 {
            if self.is_deleted {
                return;
            }
            self.run_rounds(1);
        }
        panic!("the set does not go");
    }

    /// Begins the deletion of the set.
    pub fn delete_set(&mut self, orphans: bool) {
        let deleted_at = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let metadata = &mut self.set.metadata;
        if metadata.deletion_timestamp.is_some() {
            return;
        }
        metadata.deletion_timestamp = Some(deleted_at);
        if orphans {
            let finalizers = metadata.finalizers.get_or_insert_default();
            finalizers.push("orphan".into());
        }
    }
}

fn is_of_resize(condition: &PodCondition) -> bool {
    [RESIZE_PENDING, RESIZE_IN_PROGRESS].contains(&condition.type_.as_str())
}
