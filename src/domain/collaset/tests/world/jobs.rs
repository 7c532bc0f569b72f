//! Plays the controller of OperationJobs: it plans each job and makes the writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use super::World;
use crate::api::keys;
use crate::api::operationjob::{OperationJob, Progress};
use crate::domain::collaset::status::condition_time;
use crate::domain::operationjob::actions::{PodPatch, TargetAction};
use crate::domain::operationjob::names::extra_info;
use crate::domain::operationjob::observed::{LiveName, ObservedJob};
use crate::domain::operationjob::plan::{JobPlan, plan_job};
use crate::domain::operationjob::restart::settings::RestartSettings;
use crate::domain::pod::Pod;

/// Seconds that a target may take.
const DEADLINE: u32 = 60;
/// Most plans of all jobs in one turn.
const MAX_PLANS: usize = 30;

impl World {
    /// Creates a job on these Pods.
    pub fn create_job(&mut self, action: &str, pods: &[String]) {
        let now = self.tick();
        let name = format!("job-{now}");
        let targets: Vec<_> = pods.iter().map(|pod| json!({ "name": pod })).collect();
        let job = json!({
            "metadata": { "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "generation": 1 },
            "spec": { "action": action, "targets": targets, "activeDeadlineSeconds": DEADLINE },
        });
        let job = serde_json::from_value(job).unwrap();
        self.jobs.insert(name, job);
    }

    /// Deletes a job. It exists until its finalizer is removed.
    pub fn delete_job(&mut self, place: usize) {
        let now = condition_time(self.clock);
        if let Some(job) = self.jobs.values_mut().nth(place) {
            let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
            job.metadata.deletion_timestamp.get_or_insert(time);
        }
        self.forget_ended_jobs();
    }

    /// Writes the answer of a program to the first job that waits for it.
    pub fn answer_job(&mut self, progress: &str) {
        let waiting = self.jobs.values().find_map(|job| {
            let details = job.status.iter().flat_map(|status| &status.target_details);
            let mut allowed = details.filter(|detail| {
                detail.progress == Some(Progress::Processing)
                    && detail.extra_info.contains_key(extra_info::ALLOWED)
            });
            Some((job.metadata.uid.clone()?, allowed.next()?.name.clone()))
        });
        if let Some((uid, pod)) = waiting {
            let answer = json!({ "job": uid, "progress": progress }).to_string();
            self.write_pod(&pod, |pod| {
                let annotations = &mut pod.metadata.annotations;
                annotations.insert(keys::ACTION_RESULT.to_owned(), answer);
            });
        }
    }

    fn forget_ended_jobs(&mut self) {
        self.jobs.retain(|_, job| {
            let is_held = job.metadata.finalizers.iter().flatten().next().is_some();
            job.metadata.deletion_timestamp.is_none() || is_held
        });
    }

    /// Plans every job until there is nothing to do. Returns whether something was written.
    pub fn run_jobs(&mut self) -> bool {
        let mut written = false;
        for _ in 0..MAX_PLANS {
            let names: Vec<String> = self.jobs.keys().cloned().collect();
            let busy = names.into_iter().filter(|name| self.run_job(name)).count();
            self.forget_ended_jobs();
            if busy == 0 {
                return written;
            }
            written = true;
        }
        written
    }

    fn run_job(&mut self, name: &str) -> bool {
        let observed = self.observe_job(name);
        let plan = plan_job(&observed);
        let job = self.jobs.get_mut(name).unwrap();
        if plan.add_finalizer {
            job.metadata.finalizers = Some(vec![keys::PROTECTED_FINALIZER.to_owned()]);
            return true;
        }
        if plan.remove_finalizer {
            job.metadata.finalizers = None;
            return true;
        }
        let JobPlan {
            status, actions, ..
        } = plan;
        let mut written = false;
        if let Some(status) = status
            && job.status.as_ref() != Some(&status)
        {
            job.status = Some(status);
            written = true;
        }
        for action in actions {
            if let TargetAction::Patch(patch) = action {
                written |= self.patch_for_job(&patch);
            }
        }
        written
    }

    fn observe_job(&self, name: &str) -> ObservedJob {
        let job = &self.jobs[name];
        let managed = self.pods.values().filter(|pod| pod.is_managed());
        let names = job.spec.targets.iter().map(|target| &target.name);
        let live = names.filter_map(|name| match self.pods.get(name) {
            None => Some((name.clone(), LiveName::Absent)),
            Some(pod) => (!pod.is_managed()).then(|| (name.clone(), LiveName::Unmanaged)),
        });
        let others = self.jobs.iter().filter(|(other, _)| *other != name);
        ObservedJob {
            pods: managed.cloned().map(Arc::new).collect(),
            sets: match self.is_deleted {
                true => Vec::new(),
                false => vec![Arc::new(self.set.clone())],
            },
            instance_ids: match &self.pool {
                Some(pool) => {
                    let ids = pool.contexts.iter().map(|context| context.id.to_string());
                    [("web".to_owned(), ids.collect())].into()
                }
                None => BTreeMap::new(),
            },
            live_names: live.collect(),
            unmanaged: self.unmanaged_pods(job),
            unseen: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            other_jobs: others.map(|(_, job)| Arc::new(job.clone())).collect(),
            restart: RestartSettings::default(),
            recreate_requests: BTreeMap::new(),
            failed_requests: BTreeMap::new(),
            now: condition_time(self.clock),
            job: Arc::new(job.clone()),
        }
    }

    /// What live reads of the Pods of a job would find, except for managed Pods.
    fn unmanaged_pods(&self, job: &OperationJob) -> BTreeMap<String, Option<Arc<Pod>>> {
        let details = job.status.iter().flat_map(|status| &status.target_details);
        let uids = details.filter_map(|detail| detail.extra_info.get(extra_info::POD_UID));
        let found = uids.filter_map(|uid| {
            let mut pods = self.pods.values();
            match pods.find(|pod| pod.metadata.uid == *uid) {
                Some(pod) if pod.is_managed() => None,
                found => Some((uid.clone(), found.cloned().map(Arc::new))),
            }
        });
        found.collect()
    }

    /// Writes a patch if the Pod is the one that was planned. Returns whether the Pod has changed.
    fn patch_for_job(&mut self, patch: &PodPatch) -> bool {
        let name = &patch.pod.metadata.name;
        let Some(before) = self.pods.get(name).cloned() else {
            return false;
        };
        if before.metadata.uid != patch.pod.metadata.uid {
            return false;
        }
        self.write_pod(name, |pod| {
            patch.labels.apply(&mut pod.metadata.labels);
            for (key, value) in &patch.annotations {
                match value {
                    Some(value) => {
                        let annotations = &mut pod.metadata.annotations;
                        annotations.insert(key.clone(), value.clone());
                    }
                    None => drop(pod.metadata.annotations.remove(key)),
                }
            }
        });
        self.pods.get(name) != Some(&before)
    }
}

/// Whether a job has nothing left to do.
pub fn is_job_over(job: &OperationJob) -> bool {
    let progress = job
        .status
        .as_ref()
        .and_then(|status| status.progress.as_ref());
    job.metadata.finalizers.is_none()
        && matches!(progress, Some(Progress::Succeeded | Progress::Failed))
}
