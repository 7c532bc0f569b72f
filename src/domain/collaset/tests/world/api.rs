//! Plays the API server: it makes the writes of a plan, in the order of the plan, except those that are refused. After
//! a refusal this code does the same as the controller (`controllers/collaset/apply`).

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::World;
use crate::api::keys;
use crate::domain::collaset::composition::composition_name_of;
use crate::domain::collaset::construct::controller_reference;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision};
use crate::domain::collaset::plan::{
    OwnershipChange, PodChange, PodPatch, PvcChange, RevisionChange, SetPlan,
};
use crate::domain::collaset::pool_write_failure::without_pool_writes;
use crate::domain::collaset::pvcs;
use crate::domain::collaset::status::{
    FailedStep, condition_time, report_failed_step, rollout_events,
};
use crate::domain::collaset::{SetOperation, orphans_its_pods};
use crate::domain::pod::{Owner, Pod};

/// Number of refused creations after which no further creation is tried.
const CAREFUL: usize = 3;
/// Nanoseconds after which a refused creation, and a refused revision, are forgotten.
const FORGOTTEN: (u64, u64) = (70_000_000_000, 10_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKind {
    Revision,
    Pool,
    PvcCreation,
    PvcWrite,
    PvcDeletion,
    PodCreation,
    PodPatch,
    /// A change of a Pod to another revision.
    PodChange,
    PodDeletion,
    /// A resize that is refused because of the node or the request itself. The set then updates the Pod in another way.
    Resize,
    /// A resize that a quota or a policy refuses.
    AnyResize,
    /// A change that fails each time, for example with status 500 or a timeout. Its dry run fails too, so it reveals
    /// nothing.
    FailingChange,
    /// A resize that is refused as invalid when it is written, although its dry run has passed.
    LateResize,
}

/// Faults that are in effect until a test removes them.
#[derive(Clone, Debug, Default)]
pub struct InjectedFaults {
    /// Kinds of writes of the set that are refused.
    pub refused: BTreeSet<WriteKind>,
    /// UIDs of Pods, and names of PVCs, for which every write of the set is refused.
    pub stubborn: BTreeSet<String>,
    /// UIDs of Pods whose deletion is refused.
    pub undeletable: BTreeSet<String>,
    /// UIDs of Pods whose changes to other revisions are refused.
    pub unchangeable: BTreeSet<String>,
    /// Quotas.
    pub most_pods: Option<usize>,
    pub most_pvcs: Option<usize>,
    /// Whether a webhook pins the images of Pods that are created, and of Pods that are changed.
    pub pins_created: bool,
    pub pins_changed: bool,
    /// Images that can't be pulled.
    pub unpullable: BTreeSet<String>,
    /// Whether a rule lets no Pod go off traffic, and whether one lets no Pod come back.
    pub holds: bool,
    pub holds_back: bool,
    /// UIDs of Pods that a rule does not let go off traffic.
    pub held: BTreeSet<String>,
    /// The number of Pods that a rule allows to be off traffic.
    pub max_unavailable: Option<usize>,
}

/// The results of the writes of a plan.
#[derive(Debug, Default)]
pub struct WriteResults {
    /// Number of writes that succeeded.
    pub written: usize,
    /// Writes that were refused, in the order in which they are reported.
    pub refused: Vec<(FailedStep, String)>,
    /// Writes that changed nothing.
    pub useless: Vec<String>,
    /// Number of writes that are still possible.
    remaining: usize,
}

impl WriteResults {
    /// Counts one write. Returns false if no further write is possible.
    fn count_write(&mut self) -> bool {
        let may = self.remaining > 0;
        self.remaining = self.remaining.saturating_sub(1);
        may
    }

    fn refuse(&mut self, step: FailedStep, request: &str, cause: &str) -> String {
        let message = format!("{request}: refused: {cause}");
        self.refused.push((step, message.clone()));
        message
    }
}

/// Returns a suffix like the one that the API server generates for a `generateName`. It differs for each second.
fn name_suffix(now: u64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let (mut rest, letters) = (now / 1_000_000_000, LETTERS.len() as u64);
    let suffix = (0..5).map(|_| {
        let letter = LETTERS[usize::try_from(rest % letters).unwrap()];
        rest /= letters;
        char::from(letter)
    });
    suffix.collect()
}

fn edit_owners(pod: &mut Pod, edit: impl FnOnce(&mut Vec<Owner>)) {
    let mut owners = pod.metadata.owner_references.to_vec();
    edit(&mut owners);
    pod.metadata.owner_references = owners.into();
}

/// Returns the image with the digest to which a webhook pins it.
pub fn pin_image(image: &str) -> String {
    match image.contains('@') {
        true => image.to_owned(),
        false => format!("{image}@pinned"),
    }
}

impl World {
    /// Carries out a plan, up to `most` writes. If the plan has more, this simulates a controller that dies in the
    /// middle.
    pub fn apply_plan(&mut self, plan: SetPlan, most: usize) -> WriteResults {
        self.tick();
        let mut done = WriteResults {
            remaining: most,
            ..WriteResults::default()
        };
        let without = self.refused.revision.is_some();
        self.apply_writes(plan, &mut done);
        if !without && self.refused.revision.is_some() {
            self.noted.1 = self.clock;
        }
        self.forget_ended_refusals();
        done
    }

    /// Forgets refusals after some time, as the controller does.
    fn forget_ended_refusals(&mut self) {
        if !self.on_plane {
            return;
        }
        let (now, creations) = (self.clock, &mut self.noted.0);
        creations.retain(|_, at| *at + FORGOTTEN.0 > now);
        let creation_times = &self.noted.0;
        self.refused
            .creations
            .retain(|id, _| creation_times.contains_key(id));
        let (changes, refused) = (&mut self.noted_changes, &mut self.refused);
        changes.retain(|_, at| *at + FORGOTTEN.0 > now);
        refused.pods.retain(|uid| changes.contains_key(uid));
        refused.pvcs.retain(|name| changes.contains_key(name));
        if self.noted.1 + FORGOTTEN.1 <= now {
            self.refused.revision = None;
        }
    }

    /// Makes a set that is deleted without its Pods also release the Pods that no cache shows.
    fn drop_unseen_writes(&self, plan: &mut SetPlan) {
        if !plan.remove_finalizer || !orphans_its_pods(&self.set.metadata) {
            return;
        }
        for pod in self.pods.values().filter(|pod| self.owns(pod)) {
            plan.remove_finalizer = false;
            plan.pods.push(PodChange::Patch(PodPatch {
                pod: Arc::new(pod.clone()),
                ownership: OwnershipChange::Release,
                ..PodPatch::default()
            }));
        }
    }

    fn apply_writes(&mut self, mut plan: SetPlan, done: &mut WriteResults) -> Option<()> {
        let may = |done: &mut WriteResults| done.count_write().then_some(());
        self.drop_unseen_writes(&mut plan);
        if plan.add_finalizer {
            may(done)?;
            let finalizers = self.set.metadata.finalizers.get_or_insert_default();
            finalizers.push(keys::PRE_RECLAIM_FINALIZER.to_owned());
            done.written += 1;
        }
        let was_refused = self.refused.revision.is_some();
        for change in std::mem::take(&mut plan.revisions) {
            may(done)?;
            if let RevisionChange::Create(revision) = &change
                && self.revisions.contains_key(&revision.name)
            {
                // The name belongs to a revision of somebody else, so the next plan uses another name.
                let status = self.set.status.get_or_insert_default();
                *status.collision_count.get_or_insert(0) += 1;
                done.written += 1;
                return None;
            }
            self.write_revision(change, done);
        }
        if !was_refused && self.refused.revision.is_some() {
            return None; // the rest of the plan depends on the revision
        }
        if let Some(contexts) = plan.pool.clone() {
            may(done)?;
            let bytes = |contexts: &[_]| serde_json::to_string(contexts).unwrap().len();
            // A pool that has exceeded the bound by other writers can still be written, because etcd accepts a little
            // more than the bound.
            let stored = self.pool.as_ref().map_or(0, |p| bytes(&p.contexts));
            let bytes = bytes(&contexts);
            if self.is_refused(WriteKind::Pool) || bytes > self.pool_bytes.max(stored + stored / 20)
            {
                let cause = format!("policy, or {bytes} bytes");
                done.refuse(FailedStep::Pool, "ResourceContext web", &cause);
                self.refused.pool = true;
                plan = without_pool_writes(plan, self.pool.as_ref());
            } else {
                self.refused.pool = false;
                self.pool = (!contexts.is_empty()).then(|| InstancePool {
                    name: "web".into(),
                    contexts,
                    ..InstancePool::default()
                });
                done.written += 1;
            }
        }
        let creates = |change: &PvcChange| matches!(change, PvcChange::Create { .. });
        let (created, changed): (Vec<_>, Vec<_>) = plan.pvcs.into_iter().partition(creates);
        for change in changed {
            may(done)?;
            self.write_pvc(change, done);
        }
        let id_of = |change: &PvcChange| match change {
            PvcChange::Create { id, .. } => *id,
            _ => unreachable!(),
        };
        self.create_in_turn(created, FailedStep::Pvcs, id_of, done, World::write_pvc)?;
        let creates = |change: &PodChange| matches!(change, PodChange::Create { .. });
        let (created, changed): (Vec<_>, Vec<_>) = plan.pods.into_iter().partition(creates);
        for change in changed {
            may(done)?;
            self.write_pod_change(change, done);
        }
        let id_of = |change: &PodChange| match change {
            PodChange::Create { id, .. } => *id,
            _ => unreachable!(),
        };
        self.create_in_turn(
            created,
            FailedStep::ScaleOut,
            id_of,
            done,
            World::write_pod_change,
        )?;
        if plan.clear_command {
            may(done)?;
            let annotations = self.set.metadata.annotations.get_or_insert_default();
            annotations.remove(keys::ROLLOUT);
            done.written += 1;
        }
        may(done)?;
        let current = self.set.status.clone().unwrap_or_default();
        let mut status = plan.status.unwrap_or_else(|| current.clone());
        if let Some((step, message)) = done.refused.first() {
            report_failed_step(
                &mut status,
                &current.conditions,
                (*step, message),
                &plan.shortfall,
                condition_time(self.clock),
            );
        }
        if self.set.status.as_ref() != Some(&status) {
            let former = self.set.status.as_ref();
            let events = rollout_events(former, &status, self.set.spec.paused).into_iter();
            let events = plan.events_after_status.into_iter().chain(events);
            self.events.extend(events.map(|e| (e.reason, e.message)));
            self.set.status = Some(status);
            done.written += 1;
        }
        if plan.remove_finalizer && done.refused.is_empty() {
            may(done)?;
            let finalizers = self.set.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != keys::PRE_RECLAIM_FINALIZER);
            // On the simulated control plane the garbage collector removes the finalizer `orphan`.
            self.is_deleted = finalizers.is_empty();
            done.written += 1;
        }
        Some(())
    }

    /// Creates objects until too many creations are refused. First come those that were never refused, then those whose
    /// refusal is oldest. The first refused creation of the plan is reported, whether this call tried it or not.
    fn create_in_turn<T>(
        &mut self,
        mut created: Vec<T>,
        step: FailedStep,
        id_of: impl Fn(&T) -> i64,
        done: &mut WriteResults,
        create: impl Fn(&mut World, T, &mut WriteResults),
    ) -> Option<()> {
        let ids: Vec<i64> = created.iter().map(&id_of).collect();
        created.sort_by_key(|change| self.noted.0.get(&id_of(change)).copied());
        let mut failures = 0;
        let before = done.refused.len();
        for change in created {
            if failures >= CAREFUL {
                break;
            }
            done.count_write().then_some(())?;
            let before = done.refused.len();
            create(self, change, done);
            failures += usize::from(done.refused.len() > before);
        }
        let refused = done.refused.len() > before;
        let mut messages = ids.iter().filter_map(|id| self.refused.creations.get(id));
        if let Some(message) = messages.next().filter(|_| refused) {
            done.refused.insert(before, (step, message.clone()));
        }
        Some(())
    }

    fn is_refused(&self, write: WriteKind) -> bool {
        self.faults.refused.contains(&write)
    }

    pub fn refuses_deletion(&self, uid: &str) -> bool {
        self.is_refused(WriteKind::PodDeletion) || self.faults.undeletable.contains(uid)
    }

    fn refuse_creation(&mut self, id: i64, message: String) {
        // If several PVCs are refused, always report the same message.
        let stored = self
            .refused
            .creations
            .entry(id)
            .or_insert_with(|| message.clone());
        if message < *stored {
            *stored = message;
        }
        self.noted.0.insert(id, self.clock);
    }

    fn refuse_pod(&mut self, uid: &str) {
        self.refused.pods.insert(uid.to_owned());
        self.noted_changes.insert(uid.to_owned(), self.clock);
    }

    fn refuse_pvc(&mut self, name: &str) {
        self.refused.pvcs.insert(name.to_owned());
        self.noted_changes.insert(name.to_owned(), self.clock);
    }

    fn write_revision(&mut self, change: RevisionChange, done: &mut WriteResults) {
        let name = match &change {
            RevisionChange::Create(revision) => &revision.name,
            RevisionChange::Renumber(revision, ..)
            | RevisionChange::MarkStable(revision, _)
            | RevisionChange::Adopt(revision)
            | RevisionChange::Release(revision)
            | RevisionChange::Delete(revision) => &revision.name,
        };
        if self.is_refused(WriteKind::Revision) {
            let message = done.refuse(
                FailedStep::Revisions,
                &format!("ControllerRevision {name}"),
                "policy",
            );
            let decides = matches!(
                change,
                RevisionChange::Create(_) | RevisionChange::Renumber(..)
            );
            if decides {
                self.refused.revision = Some(message);
            }
            return;
        }
        done.written += 1;
        match change {
            RevisionChange::Create(revision) => {
                let former = self.revisions.insert(
                    revision.name.clone(),
                    Revision {
                        uid: format!("uid-{}", revision.name),
                        controller: Some(self.uid().into()),
                        creation_timestamp: Some(condition_time(self.clock)),
                        ..(*revision).clone()
                    },
                );
                assert_eq!(former, None, "created twice");
            }
            RevisionChange::Release(revision) => {
                let revision = self.revisions.get_mut(&revision.name).unwrap();
                revision.controller = None;
            }
            RevisionChange::Renumber(revision, number, stable) => {
                let revision = self.revisions.get_mut(&revision.name).unwrap();
                (revision.revision, revision.stable) = (number, Some(stable));
            }
            RevisionChange::MarkStable(revision, stable) => {
                self.revisions.get_mut(&revision.name).unwrap().stable = Some(stable);
            }
            RevisionChange::Adopt(revision) => {
                let uid = self.uid().to_owned();
                self.revisions.get_mut(&revision.name).unwrap().controller = Some(uid);
            }
            RevisionChange::Delete(revision) => {
                self.revisions.remove(&revision.name).expect("is there");
            }
        }
    }

    fn write_pvc(&mut self, change: PvcChange, done: &mut WriteResults) {
        let change = match change {
            PvcChange::Retain(pvc) => PvcChange::release_pvc(&pvc, pvcs::left_behind_labels()),
            change => change,
        };
        let describe = |name: &str| format!("PersistentVolumeClaim {name}");
        let uid = self.uid().to_owned();
        match change {
            PvcChange::Create { template, body, id } => {
                let full = self.faults.most_pvcs;
                let full = full.is_some_and(|most| self.pvcs.len() >= most);
                if full || self.is_refused(WriteKind::PvcCreation) {
                    let name = format!("web-{template}-{id}");
                    let message = done.refuse(FailedStep::Pvcs, &describe(&name), "quota of PVCs");
                    self.refuse_creation(id, message);
                    return;
                }
                let given = body["metadata"]["name"].as_str().map(str::to_owned);
                let name = given.unwrap_or_else(|| format!("web-{template}-{}", self.tick()));
                assert!(!self.pvcs.contains_key(&name), "{name} is there");
                let labels = serde_json::from_value(body["metadata"]["labels"].clone()).unwrap();
                self.pvcs.insert(
                    name.clone(),
                    Pvc {
                        uid: name.clone(),
                        name,
                        labels,
                        controller: Some(uid),
                        creation_timestamp: Some(condition_time(self.clock)),
                        ..Pvc::default()
                    },
                );
                self.refused.creations.remove(&id);
                done.written += 1;
            }
            PvcChange::Patch {
                pvc,
                labels,
                ownership,
            } => {
                let stubborn = self.faults.stubborn.contains(&pvc.name);
                if stubborn || self.is_refused(WriteKind::PvcWrite) {
                    done.refuse(FailedStep::Pvcs, &describe(&pvc.name), "policy");
                    self.refuse_pvc(&pvc.name);
                    return;
                }
                self.refused.pvcs.remove(&pvc.name);
                let pvc = self.pvcs.get_mut(&pvc.name).unwrap();
                let before = pvc.clone();
                labels.apply(&mut pvc.labels);
                match ownership {
                    OwnershipChange::Keep => {}
                    OwnershipChange::Adopt => pvc.controller = Some(uid),
                    OwnershipChange::Release => pvc.controller = None,
                }
                if *pvc == before {
                    done.useless.push(describe(&pvc.name));
                }
                done.written += 1;
            }
            PvcChange::Retain(_) => unreachable!("see above"),
            PvcChange::Delete(pvc) => {
                let mounting = self.mounts(Pod::is_managed).remove(&pvc.name);
                assert!(mounting.is_none(), "{} is mounted and deleted", pvc.name);
                let is_kept = pvc.labels.contains_key(keys::KEPT_FOR);
                let is_own = pvc.controller.as_ref() == Some(&uid);
                assert!(
                    is_own && !is_kept,
                    "{} is not the set's to delete",
                    pvc.name
                );
                if self.mounts(|_| true).contains_key(&pvc.name) {
                    // The controller finds this Pod by a live read.
                    if self.set.metadata.deletion_timestamp.is_some() {
                        self.pvcs.get_mut(&pvc.name).unwrap().controller = None;
                        done.written += 1;
                    }
                    return;
                }
                if self.is_refused(WriteKind::PvcDeletion) {
                    done.refuse(FailedStep::ScaleIn, &describe(&pvc.name), "policy");
                    self.refuse_pvc(&pvc.name);
                    return;
                }
                self.pvcs.remove(&pvc.name).expect("is there");
                done.written += 1;
            }
        }
    }

    fn write_pod_change(&mut self, change: PodChange, done: &mut WriteResults) {
        match change {
            PodChange::Create { body, id } => self.create(id, body, done),
            PodChange::Delete(pod, event) => {
                let name = &pod.metadata.name;
                let stubborn = self.faults.stubborn.contains(&pod.metadata.uid);
                if stubborn || self.refuses_deletion(&pod.metadata.uid) {
                    done.refuse(FailedStep::Update, &format!("Pod {name}"), "policy");
                    self.refused.deletions.insert(pod.metadata.uid.clone());
                    self.refused.late_deletions |= SetOperation::Update.is_in_progress(&pod);
                    self.refuse_pod(&pod.metadata.uid);
                    return;
                }
                self.refused.deletions.remove(&pod.metadata.uid);
                self.refused.late_deletions = false;
                self.delete(name);
                self.events.extend(event.map(|e| (e.reason, e.message)));
                done.written += 1;
            }
            PodChange::Patch(patch) => self.patch(patch, done),
        }
    }

    fn create(&mut self, id: i64, mut body: Value, done: &mut WriteResults) {
        let is_again = body["metadata"]["labels"][keys::COMPLETING].is_string();
        let parsed: Pod = serde_json::from_value(body.clone()).unwrap();
        let refuse = |world: &mut World, done: &mut WriteResults, cause: &str| {
            let message = done.refuse(
                FailedStep::ScaleOut,
                &format!("Pod of instance ID {id}"),
                cause,
            );
            world.refuse_creation(id, message);
        };
        if is_again || !parsed.spec.pvcs.is_empty() {
            let text = id.to_string();
            let mounts = |pod: &Pod| {
                let mut pvc_names = parsed.spec.pvcs.iter();
                pvc_names.any(|pvc_name| pod.spec.pvcs.contains(pvc_name))
            };
            let unmanaged = self.pods.values_mut().find(|pod| {
                !pod.is_managed()
                    && pod.controller().map(|o| &o.uid) == self.set.metadata.uid.as_ref()
                    && (pod.label(keys::INSTANCE_ID) == Some(&text) || mounts(pod))
                    && !pod.is_terminating()
                    && !pod.is_finished()
            });
            if let Some(pod) = unmanaged {
                let labels = &mut pod.metadata.labels;
                labels.insert(keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
                done.written += 1;
                return;
            }
        }
        for pvc_name in &parsed.spec.pvcs {
            let writes = |pod: &Pod| !pod.is_finished();
            let mounted = self.mounts(|pod| pod.is_managed() && writes(pod));
            assert!(
                !mounted.contains_key(pvc_name),
                "{pvc_name} is mounted by two Pods"
            );
            let mounts = self.mounts(writes);
            if let Some(pod) = mounts.get(pvc_name).and_then(|pods| pods.first()) {
                let cause = format!("waiting for Pod {} to end", pod.metadata.name);
                return refuse(self, done, &cause);
            }
        }
        let now = self.tick();
        if let Some(prefix) = body["metadata"]["generateName"].as_str() {
            let suffix = if self.on_plane {
                name_suffix(now)
            } else {
                now.to_string()
            };
            body["metadata"]["name"] = format!("{prefix}{suffix}").into();
        }
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        if let Some(existing) = self.pods.get(&name) {
            if !existing.is_terminating() {
                refuse(self, done, "a Pod of that name does not belong to the set");
            }
            return;
        }
        body["metadata"]["uid"] = format!("uid-{now}").into();
        body["metadata"]["creationTimestamp"] = now.to_string().into();
        let mut pod: Pod = serde_json::from_value(body).unwrap();
        let image = &pod.spec.containers[0].image;
        let full = self.faults.most_pods;
        let full = full.is_some_and(|most| self.pods.len() >= most);
        if self.forbidden.contains(image) || full || self.is_refused(WriteKind::PodCreation) {
            return refuse(self, done, "policy or quota");
        }
        if self.faults.pins_created {
            let image = &mut pod.spec.containers[0].image;
            *image = pin_image(image);
        }
        self.refused.creations.remove(&id);
        let composition = composition_name_of(&pod).unwrap();
        self.refused.proven.insert(composition);
        assert_eq!(pod.label(keys::INSTANCE_ID), Some(id.to_string().as_str()));
        if self.on_plane {
            self.admit_new(&mut pod);
        }
        self.pods.insert(name, pod);
        done.written += 1;
    }

    /// Answers a resize towards a revision, or its dry run.
    fn try_resize(
        &mut self,
        uid: &str,
        (revision, resize): (&str, Option<&Value>),
        done: &mut WriteResults,
    ) -> Result<(), ()> {
        if resize.is_none() {
            return Ok(());
        }
        if self.is_refused(WriteKind::AnyResize) {
            done.refuse(FailedStep::Update, uid, "policy of resizes");
            let changes = &mut self.refused.changes;
            changes.insert(uid.to_owned(), revision.to_owned());
            return Err(());
        }
        if self.is_refused(WriteKind::Resize) {
            let refusal = (revision.to_owned(), "no resize on this node".to_owned());
            self.refused.resizes.insert(uid.to_owned(), refusal);
            done.written += 1; // the next plan updates the Pod in another way
            return Err(());
        }
        Ok(())
    }

    /// If a change was refused that was accepted for others, their changes need a dry run again.
    fn note_change_refused(&mut self, uid: &str, revision: &str) {
        if self.refused.changes.contains_key(uid) {
            self.refused.accepted.remove(revision);
        }
    }

    /// Answers a change of a Pod to a revision, or its dry run.
    fn may_change(&mut self, pod: &Pod, revision: &str, done: &mut WriteResults) -> bool {
        let uid = &pod.metadata.uid;
        let may = !self.is_refused(WriteKind::PodChange) && !self.faults.unchangeable.contains(uid);
        if may {
            self.refused.changes.remove(uid);
            self.refused.accepted.insert(revision.to_owned());
        } else {
            let request = format!("Pod {}", pod.metadata.name);
            done.refuse(FailedStep::Update, &request, "policy of changes");
            let changes = &mut self.refused.changes;
            changes.insert(uid.clone(), revision.to_owned());
        }
        may
    }

    fn patch(&mut self, patch: PodPatch, done: &mut WriteResults) {
        let name = &patch.pod.metadata.name;
        let request = format!("Pod {name}");
        let stubborn = self.faults.stubborn.contains(&patch.pod.metadata.uid);
        let uid = &patch.pod.metadata.uid;
        if stubborn || self.is_refused(WriteKind::PodPatch) {
            done.refuse(FailedStep::Update, &request, "policy");
            return self.refuse_pod(uid);
        }
        if patch.deletes && !self.refused.deletions.is_empty() {
            if self.refuses_deletion(uid) {
                done.refuse(FailedStep::Update, &request, "policy");
                self.refused.deletions.insert(uid.clone());
                return;
            }
            self.refused.deletions.remove(uid);
        }
        let revision = patch
            .dry_run_change
            .as_ref()
            .map(|ahead| ahead.revision.clone());
        if let Some(revision) = revision.or_else(|| patch.in_place_target.clone())
            && self.is_refused(WriteKind::FailingChange)
        {
            done.refuse(FailedStep::Update, &request, "failed calling webhook");
            if patch.in_place_target.is_some() {
                let changes = &mut self.refused.changes;
                changes.insert(uid.to_owned(), revision.clone());
                self.note_change_refused(uid, &revision);
            }
            return;
        }
        if let Some(ahead) = &patch.dry_run_change {
            let change = (&*ahead.revision, ahead.resize.as_ref());
            match self.try_resize(uid, change, done) {
                Ok(()) if self.may_change(&patch.pod, &ahead.revision, done) => {}
                _ => return,
            }
        }
        if patch.dry_run_only {
            return; // the next plan begins the update
        }
        if let Some(revision) = patch.in_place_target.clone() {
            let resize = patch.resize.as_ref();
            if resize.is_some() && self.is_refused(WriteKind::LateResize) {
                let refusal = (revision.clone(), "invalid".to_owned());
                self.refused.resizes.insert(uid.to_owned(), refusal);
                done.written += 1;
                return;
            }
            if self.try_resize(uid, (&revision, resize), done).is_err() {
                return self.note_change_refused(uid, &revision);
            }
            if let Some(resize) = &patch.resize {
                let pod = self.pods.get_mut(name).unwrap();
                let before = pod.spec.clone();
                for change in resize["containers"].as_array().unwrap() {
                    let mut of = pod.spec.containers.iter_mut();
                    let of = of.find(|c| c.name == change["name"]).unwrap();
                    json_patch::merge(&mut of.resources, &change["resources"]);
                }
                pod.metadata.generation += i64::from(pod.spec != before);
            }
            // The resize and the change are two requests, and the second may be refused.
            if !self.may_change(&patch.pod, &revision, done) {
                return self.note_change_refused(uid, &revision);
            }
        }
        let old = self.pods[name].clone();
        let mut new = old.clone();
        patch.labels.apply(&mut new.metadata.labels);
        for (key, value) in &patch.annotations {
            match value {
                Some(value) => new.metadata.annotations.insert(key.clone(), value.clone()),
                None => new.metadata.annotations.remove(key),
            };
        }
        match patch.ownership {
            OwnershipChange::Keep => {}
            OwnershipChange::Release => edit_owners(&mut new, |owners| {
                owners.retain(|owner| !owner.controller);
            }),
            OwnershipChange::Adopt => edit_owners(&mut new, |owners| {
                owners.retain(|owner| !owner.controller);
                owners.push(serde_json::from_value(controller_reference(&self.set)).unwrap());
            }),
        }
        for entry in &patch.decoration_owners {
            edit_owners(&mut new, |owners| {
                owners.retain(|owner| owner.uid != entry["uid"]);
                if entry.get("$patch").is_none() {
                    owners.push(serde_json::from_value(entry.clone()).unwrap());
                }
            });
        }
        if let Some(spec) = &patch.spec {
            for container in spec["containers"].as_array().unwrap() {
                let mut of = new.spec.containers.iter_mut();
                let of = of.find(|c| c.name == container["name"]).unwrap();
                of.image = container["image"].as_str().unwrap().to_owned();
                if self.faults.pins_changed {
                    of.image = pin_image(&of.image);
                }
            }
            new.metadata.generation += 1;
        }
        if old == new && patch.resize.is_none() && patch.annotations.is_empty() {
            done.useless.push(request.clone());
        }
        if self.on_plane
            && let Err(message) = self.admit(&old, &mut new, false)
        {
            done.refuse(FailedStep::Update, &request, &message);
            return self.refuse_pod(uid);
        }
        self.refused.pods.remove(uid);
        self.pods.insert(name.clone(), new);
        let event = patch.success_event.into_iter();
        self.events.extend(event.map(|e| (e.reason, e.message)));
        done.written += 1;
    }
}
