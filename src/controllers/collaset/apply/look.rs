//! What is read live before a plan is carried out. The caches hold managed Pods only, and may trail a little; what a mistake
//! would cost is data. Nothing is read for a plan that neither makes, deletes nor hands out a claim, nor makes a Pod anew.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::core::params::ListParams;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::super::call::{Halt, call};
use super::super::refusals::{Key, Kind};
use super::Work;
use super::batch::{self, Write};
use crate::api::keys;
use crate::api::selector::Selector;
use crate::cluster::objects::{SetObject, write};
use crate::cluster::path::Objects;
use crate::domain::collaset::has_name_of;
use crate::domain::collaset::observed::Claim;
use crate::domain::collaset::plan::{ClaimChange, Ownership, Plan, PodChange};
use crate::domain::collaset::status::Step;
use crate::domain::pod::Pod;

/// Pods of a page.
const PAGE: u32 = 500;
/// For so long what was seen lets a claim be deleted.
const FRESH: Duration = Duration::from_secs(10);

/// What the API server said.
#[derive(Debug)]
pub struct Look {
    /// When it was over.
    at: Instant,
    seen: Seen,
    /// Name of a Pod that mounts a claim, by the name of the claim, and whether that Pod may still write.
    mounts: HashMap<String, (String, bool)>,
    /// Pods of the set that are not managed any more, by the instance ID that they carry.
    unmanaged: HashMap<String, Pod>,
    /// The same by the claims that they mount: the ID may have been edited too.
    unmanaged_on: HashMap<String, Pod>,
    /// Claims of the set that are not managed any more.
    unmanaged_claims: Vec<Claim>,
}

/// Which Pods of the namespace were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    None,
    /// Those with an instance ID that are not managed.
    Unmanaged,
    All,
}

impl Default for Look {
    fn default() -> Self {
        Look {
            at: Instant::now(),
            seen: Seen::None,
            mounts: HashMap::new(),
            unmanaged: HashMap::new(),
            unmanaged_on: HashMap::new(),
            unmanaged_claims: Vec::new(),
        }
    }
}

impl Look {
    /// Whether a claim may be deleted by it: a process that stood still looks again.
    pub fn is_fresh(&self) -> bool {
        self.seen == Seen::All && self.at.elapsed() < FRESH
    }

    /// Whether a Pod may be created by it: what was left alone when it began may not be any more.
    pub fn is_enough_for(&self, body: &Value) -> bool {
        self.seen >= needed(body)
    }

    /// The name of a Pod that mounts a claim.
    pub fn mounting(&self, claim: &str) -> Option<&str> {
        self.mounts.get(claim).map(|(pod, _)| &**pod)
    }

    /// The first claim of these that a Pod may still write to, with the name of that Pod.
    pub fn written<'a>(&self, claims: impl Iterator<Item = &'a str>) -> Option<(&'a str, &str)> {
        let mut written = claims.filter_map(|claim| {
            let (pod, writes) = self.mounts.get(claim)?;
            writes.then_some((claim, &**pod))
        });
        written.next()
    }

    /// The Pod of an instance ID, or one that mounts one of its claims, that somebody took the control label from.
    pub fn unmanaged<'a>(
        &self,
        id: i64,
        mut claims: impl Iterator<Item = &'a str>,
    ) -> Option<&Pod> {
        let known = self.unmanaged.get(&id.to_string());
        known.or_else(|| claims.find_map(|claim| self.unmanaged_on.get(claim)))
    }

    /// The claim of an instance ID and a template that somebody took the control label from.
    pub fn unmanaged_claim(&self, id: i64, template: &str) -> Option<&Claim> {
        let id = id.to_string();
        self.unmanaged_claims.iter().find(|claim| {
            let label = |key| claim.labels.get(key).map(String::as_str);
            label(keys::INSTANCE_ID) == Some(&*id)
                && label(keys::PVC_TEMPLATE_NAME) == Some(template)
                && !claim.terminating
        })
    }

    fn take(&mut self, work: &Work<'_>, pod: Pod) {
        for claim in &pod.spec.claims {
            let writes = !pod.is_finished();
            let known = self.mounts.get(claim).is_some_and(|(_, known)| *known);
            if !known {
                let pod = pod.metadata.name.clone();
                self.mounts.insert(claim.clone(), (pod, writes));
            }
        }
        let own = pod
            .controller()
            .is_some_and(|owner| owner.uid == work.uid());
        if !own || pod.is_managed() || pod.is_terminating() || pod.is_finished() {
            return;
        }
        for claim in &pod.spec.claims {
            self.unmanaged_on.insert(claim.clone(), pod.clone());
        }
        if let Some(id) = pod.label(keys::INSTANCE_ID).map(str::to_owned) {
            self.unmanaged.insert(id, pod);
        }
    }
}

/// Names of the claims that a Pod to be created mounts.
pub fn claims(body: &Value) -> impl Iterator<Item = &str> {
    let volumes = body["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// Which Pods are to be looked at before a Pod is created.
fn needed(body: &Value) -> Seen {
    // The instance ID had a Pod before.
    let is_again = body["metadata"]["labels"][keys::COMPLETING].is_string();
    match claims(body).next() {
        Some(_) => Seen::All,
        None if is_again => Seen::Unmanaged,
        None => Seen::None,
    }
}

/// Reads what the plan needs to be sure of. What can't be read is left alone for a while, as what can't be written.
pub async fn ahead(work: &Work<'_>, plan: &Plan) -> Result<Look, Halt> {
    let look = Mutex::new(Look::default());
    let write = Write {
        key: Key::Look,
        step: Step::ScaleOut,
        request: async {
            let seen = read(work, plan).await?;
            *look.lock() = seen;
            Ok(())
        },
    };
    batch::one(work, write).await?;
    Ok(look.into_inner())
}

/// Takes out of a plan what is not to be done without a look.
pub fn without(plan: &mut Plan) {
    plan.claims.clear();
    let is_change = |change: &PodChange| match change {
        PodChange::Create { .. } => false,
        PodChange::Patch(patch) => patch.ownership == Ownership::Keep,
        PodChange::Delete(..) => true,
    };
    plan.pods.retain(is_change);
}

async fn read(work: &Work<'_>, plan: &Plan) -> Result<Look, Halt> {
    if adopts(plan) {
        is_alive(work).await?;
    }
    let mut look = Look::default();
    // What is left alone is not looked at either: of a large namespace that takes time.
    let now = Instant::now();
    let is_left = |key: &Key| work.memory.refused(key, now, work.generation()).is_some();
    let creates = !is_left(&Key::All(Kind::PodCreations));
    let creations = plan.pods.iter().filter_map(|change| match change {
        PodChange::Create { id, body } => {
            let is_made = creates && !is_left(&Key::Pod(*id));
            is_made.then(|| needed(body))
        }
        PodChange::Patch(_) | PodChange::Delete(..) => None,
    });
    let deletions = plan.claims.iter().filter_map(|change| match change {
        ClaimChange::Delete(claim) => {
            let key = Key::ClaimWrite(claim.name.clone());
            let is_left = is_left(&key) || work.spares(claim, now).is_some();
            (!is_left).then_some(Seen::All)
        }
        ClaimChange::Create { .. } | ClaimChange::Patch { .. } | ClaimChange::LetGo(_) => None,
    });
    look.seen = creations.chain(deletions).max().unwrap_or(Seen::None);
    let (control, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    let labels = match look.seen {
        Seen::All => Some(String::new()),
        Seen::Unmanaged => Some(format!("{},{control}!={value}", keys::INSTANCE_ID)),
        Seen::None => None,
    };
    if let Some(labels) = labels {
        each(work, labels, |pod| look.take(work, pod)).await?;
    }
    let makes_claims = !is_left(&Key::All(Kind::ClaimCreations))
        && plan.claims.iter().any(|change| match change {
            ClaimChange::Create { id, template, .. } => {
                !is_left(&Key::Claim(*id, template.clone()))
            }
            ClaimChange::Patch { .. } | ClaimChange::Delete(_) | ClaimChange::LetGo(_) => false,
        });
    if makes_claims {
        let labels = format!("{},{control}!={value}", keys::INSTANCE_ID);
        each_claim(work, labels, |claim, _| {
            if claim.labels.get(control).map(String::as_str) != Some(value) {
                look.unmanaged_claims.push(claim);
            }
        })
        .await?;
    }
    let is_first = work.pool.is_none()
        && !is_left(&Key::Pool)
        && plan.pool.as_ref().is_some_and(|ids| !ids.is_empty());
    if is_first {
        no_unseen_orphans(work).await?;
    }
    look.at = Instant::now();
    Ok(look)
}

fn adopts(plan: &Plan) -> bool {
    let pods = plan.pods.iter().any(|change| match change {
        PodChange::Patch(patch) => patch.ownership == Ownership::Adopt,
        PodChange::Create { .. } | PodChange::Delete(..) => false,
    });
    let adopts = |change: &ClaimChange| matches!(change, ClaimChange::Patch { ownership, .. } if *ownership == Ownership::Adopt);
    pods || plan.claims.iter().any(adopts)
}

/// Nothing is adopted for a set that is being deleted: with `--cascade=orphan` the garbage collector takes the references off,
/// and would delete what carries one again once the set is gone.
async fn is_alive(work: &Work<'_>) -> Result<(), Halt> {
    let (client, objects) = (work.client(), work.objects());
    let request = write::get::<SetObject>(client, objects, (work.namespace(), work.name()));
    let set = call(&format!("CollaSet {}", work.name()), request).await;
    let set = set.map_err(|trouble| trouble.halt(Step::ScaleOut))?;
    let alive = set.is_some_and(|set| {
        set.metadata.uid.as_deref() == Some(work.uid()) && set.metadata.deletion_timestamp.is_none()
    });
    if alive { Ok(()) } else { Err(Halt::Moved) }
}

/// A set that has no pool yet may be one that was made again: its orphans may not be in the cache of Pods yet, and would find
/// others in their places.
async fn no_unseen_orphans(work: &Work<'_>) -> Result<(), Halt> {
    let selector = work.set.spec.selector.as_ref();
    let Some(selector) = selector.and_then(|s| Selector::compile(s).ok()) else {
        return Ok(());
    };
    let labels = format!("{selector},{},!{}", keys::INSTANCE_ID, keys::ORPHANED);
    let mut unseen = false;
    each(work, labels, |pod| {
        let is_orphan = pod.controller().is_none()
            && pod.is_managed()
            && !pod.is_terminating()
            && has_name_of(work.name(), &pod.metadata.name);
        if is_orphan
            && !work
                .orphans
                .iter()
                .any(|seen| seen.metadata.uid == pod.metadata.uid)
        {
            // The next plan waits until the cache has it.
            work.memory.wrote_pod(pod.metadata.resource_version);
            unseen = true;
        }
    })
    .await?;
    if unseen { Err(Halt::Moved) } else { Ok(()) }
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// Reads the Pods of the namespace with these labels.
pub async fn each(work: &Work<'_>, labels: String, keep: impl FnMut(Pod)) -> Result<(), Halt> {
    every(work, "pods", labels, keep).await
}

#[derive(Deserialize)]
struct ClaimObject {
    metadata: ObjectMeta,
}

/// Reads the claims in the namespace with these labels that the set has, managed or not, and whether it owns each: the garbage collector would
/// delete those with it.
pub async fn each_claim(
    work: &Work<'_>,
    labels: String,
    mut keep: impl FnMut(Claim, bool),
) -> Result<(), Halt> {
    let keep = |claim: ClaimObject| {
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let is_owned = owners.any(|owner| owner.uid == work.uid());
        let claim = claim_of(claim.metadata);
        if is_owned || claim.belongs_to(Some(work.uid())) {
            keep(claim, is_owned);
        }
    };
    every(work, "persistentvolumeclaims", labels, keep).await
}

fn claim_of(metadata: ObjectMeta) -> Claim {
    let mut owners = metadata.owner_references.into_iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    Claim {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default().into_iter().collect(),
        controller: controller.map(|owner| owner.uid),
        creation_timestamp: metadata.creation_timestamp.map(|time| time.0),
        terminating: metadata.deletion_timestamp.is_some(),
    }
}

/// Reads the objects of a core resource in the namespace with these labels page by page.
async fn every<T: DeserializeOwned>(
    work: &Work<'_>,
    resource: &str,
    labels: String,
    mut keep: impl FnMut(T),
) -> Result<(), Halt> {
    let mut params = ListParams::default().limit(PAGE);
    if !labels.is_empty() {
        params = params.labels(&labels);
    }
    loop {
        let request = async {
            let request = Objects::of("/api/v1", work.namespace(), resource)?.list(&params)?;
            work.client().request::<Page<T>>(request).await
        };
        let page = call(&format!("list of {resource} of the namespace"), request).await;
        let page = page.map_err(|trouble| trouble.halt(Step::ScaleOut))?;
        page.items.into_iter().for_each(&mut keep);
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        match next {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(()),
        }
    }
}
