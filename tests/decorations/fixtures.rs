//! A PodDecoration in a namespace, and functions that look at its marks on Pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys::{self, Family};
use operating::api::poddecoration::{PodDecoration, PodDecorationStatus};
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::{Scope, wait};

use crate::sets::{Pods, Set, label};

/// Name of the container that [`sidecar`] adds.
pub const SIDE: &str = "side";

/// A PodDecoration of the namespace.
pub struct Decoration<'a> {
    pub scope: &'a Scope,
    pub name: &'static str,
    pub api: Api<PodDecoration>,
}

impl<'a> Decoration<'a> {
    /// The PodDecoration of this name, which need not exist yet.
    pub fn named(scope: &'a Scope, name: &'static str) -> Decoration<'a> {
        let api = scope.api();
        Decoration { scope, name, api }
    }

    /// Creates a PodDecoration of the Pods with `app=web`, with `part` merged into its spec, and waits until its
    /// revision is stored.
    pub async fn new(scope: &'a Scope, name: &'static str, part: Value) -> Decoration<'a> {
        let decoration = Decoration::named(scope, name);
        // Another test may have killed the replica that reviews the request.
        wait::value("the PodDecoration to be admitted", async || {
            let object = serde_json::from_value(object(name, part.clone())).unwrap();
            let created = decoration.api.create(&PostParams::default(), &object).await;
            match created {
                Err(kube::Error::Api(status)) if status.code == 500 => None,
                created => Some(created.unwrap()),
            }
        })
        .await;
        decoration.updated_revision().await;
        decoration
    }

    pub async fn get(&self) -> PodDecoration {
        self.api.get(self.name).await.unwrap()
    }

    pub async fn status(&self) -> PodDecorationStatus {
        self.get().await.status.unwrap_or_default()
    }

    /// Merges a part into the spec. Returns the name of the revision of the new spec.
    pub async fn edit(&self, part: Value) -> String {
        let patch = Patch::Merge(json!({ "spec": part }));
        let params = PatchParams::default();
        // A test may have killed the replica that reviews the request.
        wait::value("the edit to be admitted", async || {
            self.api.patch(self.name, &params, &patch).await.ok()
        })
        .await;
        self.updated_revision().await
    }

    /// Changes the image of [`sidecar`].
    pub async fn image(&self, image: &str) -> String {
        self.edit(sidecar(image)).await
    }

    pub async fn partition(&self, partition: usize) -> String {
        self.edit(by_partition(partition)).await
    }

    /// The name of the revision of the present spec, once it is stored.
    pub async fn updated_revision(&self) -> String {
        let is_stored = |object: &PodDecoration| {
            let status = object.status.as_ref();
            status.is_some_and(|s| {
                Some(s.observed_generation) == object.metadata.generation
                    && !s.updated_revision.is_empty()
            })
        };
        let object = self.until("its revision to be stored", is_stored).await;
        object.status.unwrap().updated_revision
    }

    /// Waits until the condition Ready is True for the present generation.
    pub async fn settled(&self) -> PodDecoration {
        self.until("it to be as wanted", |object| {
            let status = object.status.as_ref();
            status.is_some_and(|s| Some(s.observed_generation) == object.metadata.generation)
                && condition(object, "Ready").is_some_and(|c| c.status == "True")
        })
        .await
    }

    pub async fn until(
        &self,
        description: &str,
        test: impl Fn(&PodDecoration) -> bool,
    ) -> PodDecoration {
        let probe = async || Some(self.api.get(self.name).await.ok()?).filter(&test);
        match wait::found(probe).await {
            Some(object) => object,
            None => panic!(
                "PodDecoration {}: waited for {description}; {}",
                self.name,
                self.describe().await
            ),
        }
    }

    /// Describes a PodDecoration that does not reach the state that a test waits for.
    async fn describe(&self) -> String {
        let pods = self.scope.list("").await;
        let pods = pods
            .iter()
            .map(|pod| format!("{}: {:?}", pod.name_any(), pod.labels()));
        let pods: Vec<_> = pods.collect();
        format!("it is {}\n{}", json!(self.get().await), pods.join("\n"))
    }

    /// Waits until a condition has this status, and a message that contains `text`.
    pub async fn until_condition(&self, type_: &str, status: &str, text: &str) -> PodDecoration {
        let matches = |object: &PodDecoration| {
            condition(object, type_).is_some_and(|c| c.status == status && c.message.contains(text))
        };
        self.until(&format!("{type_} {status} {text}"), matches)
            .await
    }

    pub async fn delete(&self) {
        let params = DeleteParams::default();
        self.api.delete(self.name, &params).await.unwrap();
    }

    pub async fn until_gone(&self) {
        wait::until("the PodDecoration to be deleted", async || {
            self.api.get_opt(self.name).await.is_ok_and(|o| o.is_none())
        })
        .await;
    }
}

/// A PodDecoration that adds [`sidecar`] `side:1` to the Pods with `app=web`, with `part` merged into its spec.
pub fn object(name: &str, part: Value) -> Value {
    let mut spec = sidecar("side:1");
    spec["selector"] = json!({ "matchLabels": { "app": "web" } });
    json_patch::merge(&mut spec, &part);
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
        "metadata": { "name": name }, "spec": spec,
    })
}

/// A part of a spec that adds one container.
pub fn sidecar(image: &str) -> Value {
    json!({ "template": { "containers": [{ "name": SIDE, "image": image }] } })
}

pub fn by_partition(partition: usize) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "partition": partition } } })
}

/// A selector of members by their instance IDs.
pub fn instances(ids: &[i64]) -> Value {
    let ids: Vec<_> = ids.iter().map(i64::to_string).collect();
    json!({ "matchLabels": null, "matchExpressions": [
        { "key": keys::INSTANCE_ID, "operator": "In", "values": ids },
    ] })
}

pub fn condition<'a>(object: &'a PodDecoration, type_: &str) -> Option<&'a Condition> {
    let conditions = object.status.iter().flat_map(|s| &s.conditions);
    conditions.into_iter().find(|c| c.type_ == type_)
}

/// Key of the label that records a decoration on a Pod.
pub fn mark(decoration: &str) -> String {
    format!("{}{decoration}", keys::DECORATION_PREFIX)
}

/// The revision of a decoration that the label of a Pod records.
pub fn revision<'a>(pod: &'a Pod, decoration: &str) -> Option<&'a str> {
    label(pod, &mark(decoration))
}

/// The owner reference of a Pod to a PodDecoration.
pub fn reference<'a>(pod: &'a Pod, decoration: &str) -> Option<&'a OwnerReference> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .find(|o| o.kind == "PodDecoration" && o.name == decoration)
}

pub fn containers(pod: &Pod) -> &[Container] {
    &pod.spec.as_ref().unwrap().containers
}

/// The image of a container; `None` without the container.
pub fn image_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let container = containers(pod).iter().find(|c| c.name == container)?;
    container.image.as_deref()
}

/// The images of [`SIDE`], in the order of the instance IDs.
pub fn side_images(pods: &Pods) -> Vec<Option<&str>> {
    pods.values().map(|pod| image_of(pod, SIDE)).collect()
}

/// Number of Pods of several sets by the revision of a decoration; Pods without the decoration have the key "".
pub async fn counts(sets: &[&Set<'_>], decoration: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for set in sets {
        for pod in set.pods().await.values() {
            let revision = revision(pod, decoration).unwrap_or_default();
            *counts.entry(revision.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// How often the set has begun an operation on each Pod, by name. An operation that was undone and begun again counts
/// twice.
pub async fn begins(observer: &Observer) -> BTreeMap<String, usize> {
    let operating = Family::Operating.key("collaset");
    let (mut operates, mut begins) = (BTreeSet::new(), BTreeMap::new());
    for pod in observer.versions().await {
        let name = pod.name_any();
        if label(&pod, &operating).is_none() {
            operates.remove(&name);
        } else if operates.insert(name.clone()) {
            *begins.entry(name).or_default() += 1;
        }
    }
    begins
}
