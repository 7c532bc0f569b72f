//! Invariants of a set with a PVC template that nobody changes any more, whatever happened before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::Value;
use testbed::observer::Observer;
use testbed::pods::is_available;
use testbed::scope::claims as ledger_claims;
use testbed::wait;

use crate::fixtures::{Set, condition, label};
use crate::pvcs;

/// Prefix that a webhook adds to images. Pods keep it when the webhook is gone.
pub const MIRROR: &str = "mirror/";
/// The label that PodDecorations of random walks add.
pub const DECORATED: &str = "walk.test/decorated";
/// Key of the decorations in an entry of the pool.
const RECORDED_DECORATIONS: &str = "PodDecorationRevisions";

/// The state of a set, without times and without names chosen at random.
#[derive(Debug, PartialEq)]
pub struct Rest {
    /// The image and memory of each Pod, as in [`Rest::revisions`], and its revision, by instance ID.
    pub pods: BTreeMap<i64, (String, String)>,
    /// The pool of instance IDs, without decorations.
    pub pool: BTreeMap<i64, BTreeMap<String, String>>,
    /// The position of each revision in the history, with the image and the memory request of its template, by name.
    pub revisions: BTreeMap<String, (i64, String)>,
    /// Status and reason of each condition, by type.
    pub conditions: BTreeMap<String, (String, String)>,
}

/// Waits until all invariants hold. The namespace must contain no Pods of others, and the rule must have the name of
/// the set.
pub async fn until_at_rest(set: &Set<'_>) -> Rest {
    let begun = Instant::now();
    loop {
        match read_rest(set).await {
            Ok(rest) => return rest,
            Err(why) if begun.elapsed() > wait::PATIENCE => {
                let set = set.get().await;
                panic!("never at rest: {why}: {:#?} {:#?}", set.spec, set.status)
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Reads the state, or returns which part of it has not settled.
async fn read_rest(set: &Set<'_>) -> Result<Rest, String> {
    let object = set.get().await;
    let ready = condition(&object, "Ready").ok_or("no condition Ready")?;
    if ready.status != "True" || ready.observed_generation != object.metadata.generation {
        return Err(format!("{ready:?}"));
    }
    let pods = pods(set, &object).await?;
    pvcs_are_theirs(set, &pods).await?;
    let pool = pool(set, &pods).await?;
    let status: RuleStatus = set.scope.status(set.name).await;
    if ledger_claims(&status) != 0 || status.waiting_pods != 0 {
        return Err(format!("the budget is in use: {status:?}"));
    }
    let revisions = revisions(set, &object).await;
    let of = |pod: &Pod| {
        (
            content(&serde_json::to_value(&pod.spec).unwrap()),
            label(pod, keys::REVISION).unwrap_or_default().to_owned(),
        )
    };
    let pods: BTreeMap<_, _> = pods.iter().map(|(id, pod)| (*id, of(pod))).collect();
    for (content, revision) in pods.values() {
        let recorded = revisions.get(revision).map(|(_, content)| content);
        if recorded != Some(content) {
            return Err(format!("a Pod of {revision} has {content}: {recorded:?}"));
        }
    }
    let conditions = object.status.iter().flat_map(|s| &s.conditions);
    Ok(Rest {
        pods,
        pool,
        revisions,
        conditions: conditions
            .map(|c| (c.type_.clone(), (c.status.clone(), c.reason.clone())))
            .collect(),
    })
}

/// Checks the Pods of the set: the wanted number, all serving, each with its own ID, and without a trace of an
/// operation.
async fn pods(set: &Set<'_>, object: &CollaSet) -> Result<BTreeMap<i64, Pod>, String> {
    let mut pods = BTreeMap::new();
    for pod in set.scope.pods().list(&ListParams::default()).await.unwrap() {
        let name = pod.name_any();
        let usual = [
            "app",
            keys::CONTROL,
            keys::INSTANCE_ID,
            keys::REVISION,
            keys::SERVICE_AVAILABLE,
            keys::UPDATE_INCLUDED, // written by users; the next update removes it
            DECORATED,
        ];
        let is_usual = |key: &str| usual.contains(&key) || key.starts_with(keys::DECORATION_PREFIX);
        let unexpected_labels: Vec<_> = pod.labels().keys().filter(|k| !is_usual(k)).collect();
        let serves = is_available(&pod) && !pod.annotations().contains_key(keys::LAST_POD_STATUS);
        let owner = pod
            .owner_references()
            .iter()
            .any(|o| Some(&o.uid) == object.metadata.uid.as_ref());
        if !unexpected_labels.is_empty() || !serves || !owner {
            return Err(format!("Pod {name}: {:?} {:?}", pod.metadata, pod.status));
        }
        let id = label(&pod, keys::INSTANCE_ID).and_then(|id| id.parse().ok());
        let id = id.ok_or(format!("Pod {name} has no ID"))?;
        if let Some(other) = pods.insert(id, pod) {
            return Err(format!("{name} and {} have ID {id}", other.name_any()));
        }
    }
    match usize::try_from(object.spec.replicas.unwrap_or_default()) {
        Ok(replicas) if replicas == pods.len() => Ok(pods),
        wanted => Err(format!("{} Pods, {wanted:?} are wanted", pods.len())),
    }
}

/// Checks that each Pod has its PVC, and that the namespace has no other PVC.
async fn pvcs_are_theirs(set: &Set<'_>, pods: &BTreeMap<i64, Pod>) -> Result<(), String> {
    let mut mounted: Vec<_> = pods.values().flat_map(pvcs::mounted).collect();
    for id in pods.keys() {
        let own: Vec<_> = pvcs::list_of_instance(set.scope, *id)
            .await
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        if own.len() != 1 || own != pvcs::mounted(&pods[id]) {
            return Err(format!("PVCs of ID {id}: {own:?}"));
        }
    }
    mounted.sort();
    let all = pvcs::names(set.scope).await;
    match all == mounted {
        true => Ok(()),
        false => Err(format!("PVCs {all:?}, {mounted:?} are mounted")),
    }
}

/// The pool contains the IDs of the Pods and their revisions, and no trace of an operation.
async fn pool(
    set: &Set<'_>,
    pods: &BTreeMap<i64, Pod>,
) -> Result<BTreeMap<i64, BTreeMap<String, String>>, String> {
    let pool = set.pools().get_opt(set.name).await.unwrap();
    let contexts = pool.into_iter().flat_map(|p| p.spec.contexts);
    let mut pool: BTreeMap<_, _> = contexts.map(|c| (c.id, c.data)).collect();
    for (id, data) in &mut pool {
        let recorded = data.remove(RECORDED_DECORATIONS);
        let has_recorded = |pod| has_decorations(pod, recorded.as_deref().unwrap_or("[]"));
        if !pods.get(id).is_none_or(has_recorded) {
            return Err(format!("for ID {id} the pool records {recorded:?}"));
        }
    }
    let wanted: BTreeMap<_, _> = pods
        .iter()
        .map(|(id, pod)| {
            let revision = label(pod, keys::REVISION).unwrap_or_default().to_owned();
            let owner = ("Owner".to_owned(), set.name.to_owned());
            (
                *id,
                BTreeMap::from([owner, ("Revision".to_owned(), revision)]),
            )
        })
        .collect();
    match pool == wanted {
        true => Ok(pool),
        false => Err(format!("the pool is {pool:?} instead of {wanted:?}")),
    }
}

/// Whether a Pod has all decorations that an entry of the pool records.
fn has_decorations(pod: &Pod, recorded: &str) -> bool {
    let entries: Vec<BTreeMap<String, String>> = serde_json::from_str(recorded).unwrap();
    entries.iter().all(|entry| {
        let key = format!("{}{}", keys::DECORATION_PREFIX, entry["name"]);
        label(pod, &key) == Some(&entry["revision"])
    })
}

/// The image in a spec, and the memory request, if any. A PodDecoration may have added containers before that of the
/// template.
fn content(spec: &Value) -> String {
    let containers = spec["containers"].as_array().unwrap();
    let container = containers.iter().find(|c| c["name"] == "app").unwrap();
    let image = container["image"].as_str().unwrap_or_default();
    let image = image.trim_start_matches(MIRROR).to_owned();
    match container["resources"]["requests"]["memory"].as_str() {
        Some(memory) => format!("{image} {memory}"),
        None => image,
    }
}

async fn revisions(set: &Set<'_>, object: &CollaSet) -> BTreeMap<String, (i64, String)> {
    let api: Api<ControllerRevision> =
        Api::namespaced(set.scope.client.clone(), &set.scope.namespace);
    let all = api.list(&ListParams::default()).await.unwrap();
    let own = all.items.into_iter().filter(|r| {
        let mut owners = r.owner_references().iter();
        owners.any(|o| Some(&o.uid) == object.metadata.uid.as_ref())
    });
    own.map(|r| {
        let data = r.data.clone().unwrap_or_default().0;
        let content = content(&data["spec"]["template"]["spec"]);
        (r.name_any(), (r.revision, content))
    })
    .collect()
}

/// Fails if two Pods of an owner ever had the same ID while neither was terminating.
pub async fn no_id_was_shared(observer: &Observer) {
    let mut holders: BTreeMap<String, (Option<String>, String)> = BTreeMap::new();
    for (uid, pod) in observer.by_uid().await {
        let running = pod.filter(|p| p.metadata.deletion_timestamp.is_none());
        let id = running.as_ref().and_then(|p| label(p, keys::INSTANCE_ID));
        let (Some(pod), Some(id)) = (&running, id) else {
            holders.remove(&uid);
            continue;
        };
        let owner = pod.owner_references().first().map(|o| o.uid.clone());
        let place = (owner, id.to_owned());
        let shared = holders
            .iter()
            .find(|(other, at)| **other != uid && **at == place);
        assert!(
            shared.is_none(),
            "{} has the ID {id} of {shared:?}",
            pod.name_any()
        );
        holders.insert(uid, place);
    }
}
