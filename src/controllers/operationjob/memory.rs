//! What the controller remembers of an OperationJob between two runs: the answers of live reads, refusals, and when runs
//! and writes may be made. Everything may be lost: it is read again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::time::Instant;

use super::super::collaset::refusals::{RefusalBackoff, RefusalKey};
use super::unanswered_writes::UnansweredWrites;
use super::unstored_fields::UnstoredFields;
use crate::controllers::run_pace::RunPace;
use crate::controllers::written_versions::WrittenVersions;
use crate::domain::operationjob::observed::{FailedRequest, LiveName};
use crate::domain::operationjob::restart::recreate_request::RequestState;
use crate::domain::pod::Pod;

/// Minimum time between two writes of the status of a small job. The status of a large job is written less often, because
/// each write contains all targets.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// Number of targets that double the time between two writes of the status.
const TARGETS_PER_INTERVAL: usize = 250;
/// How long it counts that a Pod does not exist or is not managed. The status must be written within this time.
const NAME_TTL: Duration = Duration::from_secs(30);
/// How long the state of a ContainerRecreateRequest counts.
const REQUEST_TTL: Duration = Duration::from_millis(1_900);

/// How long it counts that the API server does not store a field of the status. After this time the field is written
/// again.
const UNSTORED_TTL: Duration = Duration::from_mins(5);

/// What the controller remembers of one job.
#[derive(Default)]
pub struct JobMemory {
    uid: String,
    /// The versions of the Pods that the controller wrote last.
    pub written: WrittenVersions,
    /// Writes of Pods whose outcome is not known.
    pub unanswered: UnansweredWrites,
    locked: Mutex<LockedMemory>,
}

#[derive(Default)]
struct LockedMemory {
    pace: RunPace,
    last_status_write: Option<Instant>,
    refusals: RefusalBackoff,
    /// Requests that had no effect, by their key in the domain.
    failed_requests: BTreeMap<String, FailedRequest>,
    live_names: HashMap<String, (LiveName, Instant)>,
    unmanaged: HashMap<String, (Option<Arc<Pod>>, Instant)>,
    recreate_requests: HashMap<String, (Option<RequestState>, Instant)>,
    is_unreadable_reported: bool,
    unstored: Option<(UnstoredFields, Instant)>,
}

impl JobMemory {
    /// Creates the empty memory of the job with this UID.
    pub fn new(uid: &str) -> Self {
        JobMemory {
            uid: uid.to_owned(),
            ..JobMemory::default()
        }
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// When the next run may begin.
    pub fn pace(&self) -> MappedMutexGuard<'_, RunPace> {
        MutexGuard::map(self.locked.lock(), |locked| &mut locked.pace)
    }

    /// Begins a write of the status of a job with so many targets. If it is too early, returns the remaining time.
    pub fn begin_status_write(&self, now: Instant, targets: usize) -> Option<Duration> {
        let mut locked = self.locked.lock();
        let factor = u32::try_from(1 + targets / TARGETS_PER_INTERVAL).unwrap_or(u32::MAX);
        let next = locked
            .last_status_write
            .map(|write| write + STATUS_INTERVAL * factor);
        let remaining = next.map(|next| next.saturating_duration_since(now));
        if let Some(remaining) = remaining.filter(|remaining| !remaining.is_zero()) {
            return Some(remaining);
        }
        locked.last_status_write = Some(now);
        None
    }

    /// Records a refusal. The pause until the next try doubles with each refusal in a row. `text_key` is the key of the
    /// request in the domain, if there is one.
    pub fn record_refusal(
        &self,
        key: RefusalKey,
        text_key: Option<String>,
        failed: FailedRequest,
        generation: i64,
    ) {
        let mut locked = self.locked.lock();
        let refusals = &mut locked.refusals;
        refusals.record_refusal(key, &failed.message, Instant::now(), generation);
        if let Some(text_key) = text_key {
            locked.failed_requests.insert(text_key, failed);
        }
    }

    /// The remaining time until a refused write may be tried; `None` if it may be tried now.
    pub fn pause_of(&self, key: &RefusalKey, generation: i64) -> Option<Duration> {
        let locked = self.locked.lock();
        let refusal = locked
            .refusals
            .active_refusal(key, Instant::now(), generation);
        refusal.map(|(remaining, _)| remaining)
    }

    /// Forgets the refusal of a request that succeeded.
    pub fn clear_refusal(&self, key: &RefusalKey, text_key: Option<&String>) {
        let mut locked = self.locked.lock();
        if let Some(text_key) = text_key {
            locked.failed_requests.remove(text_key);
        }
        locked.refusals.clear_refusal(key);
    }

    /// Requests that had no effect, by their key in the domain.
    pub fn failed_requests(&self) -> BTreeMap<String, FailedRequest> {
        self.locked.lock().failed_requests.clone()
    }

    /// Records what a live read of a name has found.
    pub fn record_name(&self, name: &str, found: LiveName) {
        let mut locked = self.locked.lock();
        locked
            .live_names
            .insert(name.to_owned(), (found, Instant::now()));
    }

    /// What recent live reads of names have found.
    pub fn live_names(&self) -> BTreeMap<String, LiveName> {
        let mut locked = self.locked.lock();
        locked
            .live_names
            .retain(|_, (_, at)| at.elapsed() < NAME_TTL);
        let names = locked.live_names.iter();
        names
            .map(|(name, (found, _))| (name.clone(), *found))
            .collect()
    }

    /// Records what a live read of a Pod that is not managed has found; `None` if the Pod is gone. `key` is its UID, or its
    /// name.
    pub fn record_unmanaged(&self, key: &str, pod: Option<Arc<Pod>>) {
        let mut locked = self.locked.lock();
        let unmanaged = &mut locked.unmanaged;
        unmanaged.insert(key.to_owned(), (pod, Instant::now()));
    }

    /// Forgets what a live read of a Pod has found, because the Pod was changed.
    pub fn forget_unmanaged(&self, uid: &str) {
        let mut locked = self.locked.lock();
        let is_other =
            |pod: &Option<Arc<Pod>>| pod.as_ref().is_none_or(|pod| pod.metadata.uid != uid);
        locked.unmanaged.retain(|_, (pod, _)| is_other(pod));
    }

    /// What live reads of Pods that are not managed have found. That a Pod exists counts for a moment only.
    pub fn unmanaged(&self) -> BTreeMap<String, Option<Arc<Pod>>> {
        let mut locked = self.locked.lock();
        let unmanaged = &mut locked.unmanaged;
        unmanaged.retain(|_, (pod, at)| pod.is_none() || at.elapsed() < REQUEST_TTL);
        let known = unmanaged.iter();
        known
            .map(|(key, (pod, _))| (key.clone(), pod.clone()))
            .collect()
    }

    /// Records the state of the ContainerRecreateRequest of a Pod.
    pub fn record_request(&self, pod_uid: &str, state: Option<RequestState>) {
        let mut locked = self.locked.lock();
        let requests = &mut locked.recreate_requests;
        requests.insert(pod_uid.to_owned(), (state, Instant::now()));
    }

    /// Forgets the state of a ContainerRecreateRequest, because it may have been created.
    pub fn forget_request(&self, pod_uid: &str) {
        self.locked.lock().recreate_requests.remove(pod_uid);
    }

    /// The states of ContainerRecreateRequests that were read or refused in the last seconds.
    pub fn recreate_requests(&self) -> BTreeMap<String, Option<RequestState>> {
        let mut locked = self.locked.lock();
        let requests = &mut locked.recreate_requests;
        requests.retain(|_, (state, at)| {
            matches!(state, Some(RequestState::Refused(_))) || at.elapsed() < REQUEST_TTL
        });
        let known = requests.iter();
        known
            .map(|(uid, (state, _))| (uid.clone(), state.clone()))
            .collect()
    }

    /// Records the fields of the status that were not stored as they were written. Returns whether they are news.
    pub fn record_unstored(&self, fields: UnstoredFields) -> bool {
        let mut locked = self.locked.lock();
        let (text, is_empty) = (fields.describe(), fields.is_empty());
        let former = locked.unstored.replace((fields, Instant::now()));
        let is_known = former.is_some_and(|(former, _)| former.describe() == text);
        !is_empty && !is_known
    }

    /// The fields of the status that were not stored as they were written.
    pub fn unstored(&self) -> UnstoredFields {
        let locked = self.locked.lock();
        let recent = locked.unstored.as_ref();
        let recent = recent.filter(|(_, at)| at.elapsed() < UNSTORED_TTL);
        recent.map_or_else(UnstoredFields::default, |(fields, _)| fields.clone())
    }

    /// Whether it is the first time that the job is reported as unreadable.
    pub fn begin_unreadable_report(&self) -> bool {
        !std::mem::replace(&mut self.locked.lock().is_unreadable_reported, true)
    }
}
