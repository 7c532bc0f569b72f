//! Live reads before a plan is carried out. The caches contain managed Pods only and may be slightly stale, and a
//! mistake would destroy data. Live reads are needed for a plan that creates, deletes or mounts a PVC, recreates a Pod,
//! adopts an object, or creates the pool.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::core::params::ListParams;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{StageError, request_with_deadline};
use super::PlanExecution;
use super::batch::{self, WriteRequest};
use crate::api::keys;
use crate::api::selector::Selector;
use crate::cluster::objects::{CollaSetObject, object_requests};
use crate::cluster::request_path::ResourcePath;
use crate::domain::collaset::has_name_of_set;
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::plan::{OwnershipChange, PodChange, PvcChange, SetPlan};
use crate::domain::collaset::status::FailedStep;
use crate::domain::pod::Pod;

/// Number of objects in a page of a list.
const PAGE_SIZE: u32 = 500;
/// How long a live read permits the deletion of a PVC.
const MAX_LIVE_AGE: Duration = Duration::from_secs(10);

/// The result of the live reads.
#[derive(Debug)]
pub struct LiveState {
    /// When the reads ended.
    read_at: Instant,
    pod_scope: PodScope,
    /// A Pod that mounts each PVC, by the name of the PVC.
    mounts: HashMap<String, Mount>,
    /// Pods of the set that are no longer managed, by their instance ID.
    unmanaged: HashMap<String, Pod>,
    /// Pods of the set that are no longer managed, by the PVCs that they mount. Somebody may have edited the instance
    /// ID too.
    unmanaged_by_pvc: HashMap<String, Pod>,
    /// PVCs of the set that are no longer managed.
    unmanaged_pvcs: Vec<Pvc>,
}

/// A Pod that mounts a PVC.
#[derive(Debug)]
struct Mount {
    pod_name: String,
    /// Whether the Pod may still write to the PVC.
    may_write: bool,
}

/// Which Pods of the namespace were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PodScope {
    None,
    /// Pods that have an instance ID and are not managed.
    Unmanaged,
    All,
}

impl Default for LiveState {
    fn default() -> Self {
        LiveState {
            read_at: Instant::now(),
            pod_scope: PodScope::None,
            mounts: HashMap::new(),
            unmanaged: HashMap::new(),
            unmanaged_by_pvc: HashMap::new(),
            unmanaged_pvcs: Vec::new(),
        }
    }
}

impl LiveState {
    /// Whether these reads permit the deletion of a PVC. If the process was suspended, the reads are too old.
    pub fn is_fresh(&self) -> bool {
        self.pod_scope == PodScope::All && self.read_at.elapsed() < MAX_LIVE_AGE
    }

    /// Whether the reads cover what the creation of this Pod needs. A backoff may have ended since the reads began, so
    /// they may have left this Pod out.
    pub fn is_enough_for(&self, body: &Value) -> bool {
        self.pod_scope >= required_pod_scope(body)
    }

    /// The name of a Pod that mounts a PVC.
    pub fn pod_mounting_pvc(&self, pvc_name: &str) -> Option<&str> {
        self.mounts.get(pvc_name).map(|mount| &*mount.pod_name)
    }

    /// The first of these PVCs to which a Pod may still write, with the name of the Pod.
    pub fn find_writable_pvc<'a>(
        &self,
        pvc_names: impl Iterator<Item = &'a str>,
    ) -> Option<(&'a str, &str)> {
        let mut writable = pvc_names.filter_map(|pvc_name| {
            let mount = self.mounts.get(pvc_name)?;
            mount.may_write.then_some((pvc_name, &*mount.pod_name))
        });
        writable.next()
    }

    /// A Pod of the set whose control label somebody removed: the Pod with this instance ID, or a Pod that mounts one
    /// of these PVCs.
    pub fn unmanaged_pod<'a>(
        &self,
        id: i64,
        mut pvc_names: impl Iterator<Item = &'a str>,
    ) -> Option<&Pod> {
        let same_id = self.unmanaged.get(&id.to_string());
        same_id.or_else(|| pvc_names.find_map(|pvc_name| self.unmanaged_by_pvc.get(pvc_name)))
    }

    /// The PVC of an instance ID and a volume claim template whose control label somebody removed.
    pub fn unmanaged_pvc(&self, id: i64, template: &str) -> Option<&Pvc> {
        let id = id.to_string();
        self.unmanaged_pvcs.iter().find(|pvc| {
            let label = |key| pvc.labels.get(key).map(String::as_str);
            label(keys::INSTANCE_ID) == Some(&*id)
                && label(keys::PVC_TEMPLATE_NAME) == Some(template)
                && !pvc.terminating
        })
    }

    fn record_pod(&mut self, execution: &PlanExecution<'_>, pod: Pod) {
        for pvc_name in &pod.spec.pvcs {
            let mount = Mount {
                pod_name: pod.metadata.name.clone(),
                may_write: !pod.is_finished(),
            };
            let has_writer = |known: &Mount| known.may_write;
            if !self.mounts.get(pvc_name).is_some_and(has_writer) {
                self.mounts.insert(pvc_name.clone(), mount);
            }
        }
        let own = pod
            .controller()
            .is_some_and(|owner| owner.uid == execution.uid());
        if !own || pod.is_managed() || pod.is_terminating() || pod.is_finished() {
            return;
        }
        for pvc_name in &pod.spec.pvcs {
            self.unmanaged_by_pvc.insert(pvc_name.clone(), pod.clone());
        }
        if let Some(id) = pod.label(keys::INSTANCE_ID).map(str::to_owned) {
            self.unmanaged.insert(id, pod);
        }
    }
}

/// Names of the PVCs that a Pod to be created mounts.
pub fn mounted_pvc_names(body: &Value) -> impl Iterator<Item = &str> {
    let volumes = body["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// Which Pods must be read before this Pod is created.
fn required_pod_scope(body: &Value) -> PodScope {
    // Whether the instance ID had a Pod before.
    let is_again = body["metadata"]["labels"][keys::COMPLETING].is_string();
    match mounted_pvc_names(body).next() {
        Some(_) => PodScope::All,
        None if is_again => PodScope::Unmanaged,
        None => PodScope::None,
    }
}

/// Reads the objects that the plan must know exactly. A read that fails has a backoff, as a write has.
pub async fn read_for_plan(
    execution: &PlanExecution<'_>,
    plan: &SetPlan,
) -> Result<LiveState, StageError> {
    let live_state = Mutex::new(LiveState::default());
    let write = WriteRequest {
        key: RefusalKey::LiveRead,
        step: FailedStep::ScaleOut,
        request: async {
            let complete = read_live_state(execution, plan).await?;
            *live_state.lock() = complete;
            Ok(())
        },
    };
    batch::send_write(execution, write).await?;
    Ok(live_state.into_inner())
}

/// Removes the changes from a plan that need a live read.
pub fn drop_unverified_changes(plan: &mut SetPlan) {
    plan.pvcs.clear();
    let is_change = |change: &PodChange| match change {
        PodChange::Create { .. } => false,
        PodChange::Patch(patch) => patch.ownership == OwnershipChange::Keep,
        PodChange::Delete(..) => true,
    };
    plan.pods.retain(is_change);
}

async fn read_live_state(
    execution: &PlanExecution<'_>,
    plan: &SetPlan,
) -> Result<LiveState, StageError> {
    if adopts_objects(plan) {
        ensure_not_deleting(execution).await?;
    }
    let mut live_state = LiveState::default();
    // Nothing is read for a write that is in backoff: a read of a large namespace takes time.
    let now = Instant::now();
    let is_in_backoff = |key: &RefusalKey| {
        execution
            .state
            .active_refusal(key, now, execution.generation())
            .is_some()
    };
    let creates_pods = !is_in_backoff(&RefusalKey::All(BatchKind::PodCreations));
    let creations = plan.pods.iter().filter_map(|change| match change {
        PodChange::Create { id, body } => {
            let is_due = creates_pods && !is_in_backoff(&RefusalKey::Pod(*id));
            is_due.then(|| required_pod_scope(body))
        }
        PodChange::Patch(_) | PodChange::Delete(..) => None,
    });
    let deletions = plan.pvcs.iter().filter_map(|change| match change {
        PvcChange::Delete(pvc) => {
            let key = RefusalKey::PvcWrite(pvc.name.clone());
            let is_delayed =
                is_in_backoff(&key) || execution.mounted_pvc_backoff(pvc, now).is_some();
            (!is_delayed).then_some(PodScope::All)
        }
        PvcChange::Create { .. } | PvcChange::Patch { .. } | PvcChange::Retain(_) => None,
    });
    live_state.pod_scope = creations.chain(deletions).max().unwrap_or(PodScope::None);
    let (control, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    let labels = match live_state.pod_scope {
        PodScope::All => Some(String::new()),
        PodScope::Unmanaged => Some(format!("{},{control}!={value}", keys::INSTANCE_ID)),
        PodScope::None => None,
    };
    if let Some(labels) = labels {
        for_each_pod(execution, labels, |pod| {
            live_state.record_pod(execution, pod)
        })
        .await?;
    }
    let creates_pvcs = !is_in_backoff(&RefusalKey::All(BatchKind::PvcCreations))
        && plan.pvcs.iter().any(|change| match change {
            PvcChange::Create { id, template, .. } => {
                !is_in_backoff(&RefusalKey::Pvc(*id, template.clone()))
            }
            PvcChange::Patch { .. } | PvcChange::Delete(_) | PvcChange::Retain(_) => false,
        });
    if creates_pvcs {
        let labels = format!("{},{control}!={value}", keys::INSTANCE_ID);
        for_each_pvc(execution, labels, |pvc, _| {
            if pvc.labels.get(control).map(String::as_str) != Some(value) {
                live_state.unmanaged_pvcs.push(pvc);
            }
        })
        .await?;
    }
    let creates_pool = execution.pool.is_none()
        && !is_in_backoff(&RefusalKey::Pool)
        && plan.pool.as_ref().is_some_and(|ids| !ids.is_empty());
    if creates_pool {
        ensure_orphans_cached(execution).await?;
    }
    live_state.read_at = Instant::now();
    Ok(live_state)
}

fn adopts_objects(plan: &SetPlan) -> bool {
    let pods = plan.pods.iter().any(|change| match change {
        PodChange::Patch(patch) => patch.ownership == OwnershipChange::Adopt,
        PodChange::Create { .. } | PodChange::Delete(..) => false,
    });
    let adopts = |change: &PvcChange| matches!(change, PvcChange::Patch { ownership, .. } if *ownership == OwnershipChange::Adopt);
    pods || plan.pvcs.iter().any(adopts)
}

/// Fails if the set is being deleted, because such a set must not adopt anything. With `--cascade=orphan`, the garbage
/// collector removes the owner references, and it would delete an object that has a new reference after the set is
/// gone.
async fn ensure_not_deleting(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let (client, objects) = (execution.client(), execution.objects());
    let request = object_requests::get_object::<CollaSetObject>(
        client,
        objects,
        (execution.namespace(), execution.name()),
    );
    let set = request_with_deadline(&format!("CollaSet {}", execution.name()), request).await;
    let set = set.map_err(|error| error.into_stage_error(FailedStep::ScaleOut))?;
    let is_live = set.is_some_and(|set| {
        set.metadata.uid.as_deref() == Some(execution.uid())
            && set.metadata.deletion_timestamp.is_none()
    });
    if is_live {
        Ok(())
    } else {
        Err(StageError::Moved)
    }
}

/// Fails if orphaned Pods exist that the Pod cache does not contain yet. A set without a pool may be a set that was
/// deleted and created again, and its orphans would find other Pods in their places.
async fn ensure_orphans_cached(execution: &PlanExecution<'_>) -> Result<(), StageError> {
    let selector = execution.set.spec.selector.as_ref();
    let Some(selector) = selector.and_then(|s| Selector::compile(s).ok()) else {
        return Ok(());
    };
    let labels = format!("{selector},{},!{}", keys::INSTANCE_ID, keys::ORPHANED);
    let mut has_uncached = false;
    for_each_pod(execution, labels, |pod| {
        let is_orphan = pod.controller().is_none()
            && pod.is_managed()
            && !pod.is_terminating()
            && has_name_of_set(execution.name(), &pod.metadata.name);
        if is_orphan
            && !execution
                .orphans
                .iter()
                .any(|cached| cached.metadata.uid == pod.metadata.uid)
        {
            // The next plan waits until the cache contains the Pod.
            execution
                .state
                .record_pod_write(pod.metadata.resource_version);
            has_uncached = true;
        }
    })
    .await?;
    if has_uncached {
        Err(StageError::Moved)
    } else {
        Ok(())
    }
}

#[derive(Deserialize)]
struct ListPage<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// Reads the Pods of the namespace that match this label selector.
pub async fn for_each_pod(
    execution: &PlanExecution<'_>,
    labels: String,
    keep: impl FnMut(Pod),
) -> Result<(), StageError> {
    for_each_listed(execution, "pods", labels, keep).await
}

#[derive(Deserialize)]
struct PvcManifest {
    metadata: ObjectMeta,
}

/// Reads the PVCs of the set that match this label selector, managed or not. `keep` receives each PVC, and whether the
/// set is an owner of it: the garbage collector deletes such a PVC with the set.
pub async fn for_each_pvc(
    execution: &PlanExecution<'_>,
    labels: String,
    mut keep: impl FnMut(Pvc, bool),
) -> Result<(), StageError> {
    let keep = |manifest: PvcManifest| {
        let mut owners = manifest.metadata.owner_references.iter().flatten();
        let is_owned = owners.any(|owner| owner.uid == execution.uid());
        let pvc = pvc_from_metadata(manifest.metadata);
        if is_owned || pvc.belongs_to_set(Some(execution.uid())) {
            keep(pvc, is_owned);
        }
    };
    for_each_listed(execution, "persistentvolumeclaims", labels, keep).await
}

fn pvc_from_metadata(metadata: ObjectMeta) -> Pvc {
    let mut owners = metadata.owner_references.into_iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    Pvc {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default().into_iter().collect(),
        controller: controller.map(|owner| owner.uid),
        creation_timestamp: metadata.creation_timestamp.map(|time| time.0),
        terminating: metadata.deletion_timestamp.is_some(),
    }
}

/// Reads the objects of a core resource in the namespace that match this label selector, page by page.
async fn for_each_listed<T: DeserializeOwned>(
    execution: &PlanExecution<'_>,
    resource: &str,
    labels: String,
    mut keep: impl FnMut(T),
) -> Result<(), StageError> {
    let mut params = ListParams::default().limit(PAGE_SIZE);
    if !labels.is_empty() {
        params = params.labels(&labels);
    }
    loop {
        let request = async {
            let request = ResourcePath::from_parts("/api/v1", execution.namespace(), resource)?
                .list(&params)?;
            execution.client().request::<ListPage<T>>(request).await
        };
        let page =
            request_with_deadline(&format!("list of {resource} of the namespace"), request).await;
        let page = page.map_err(|error| error.into_stage_error(FailedStep::ScaleOut))?;
        page.items.into_iter().for_each(&mut keep);
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        match next {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(()),
        }
    }
}
