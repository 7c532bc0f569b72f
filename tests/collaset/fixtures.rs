//! A CollaSet and its Pods in a namespace, and functions that wait for them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Error, ResourceExt};
use operating::api::collaset::{CollaSet, CollaSetCondition};
use operating::api::keys::{self, Family};
use operating::api::resourcecontext::ResourceContext;
use serde_json::{Value, json};
use testbed::{Scope, wait};

/// A CollaSet of the namespace.
pub struct Set<'a> {
    pub scope: &'a Scope,
    pub name: &'static str,
    pub api: Api<CollaSet>,
}

impl<'a> Set<'a> {
    /// The set of this name, which need not exist yet.
    pub fn named(scope: &'a Scope, name: &'static str) -> Set<'a> {
        let api: Api<CollaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
        Set { scope, name, api }
    }

    /// Creates a set whose Pods carry `app=<name>`, with `part` merged into its spec, and waits until it has settled.
    pub async fn new(scope: &'a Scope, name: &'static str, replicas: i32, part: Value) -> Set<'a> {
        let set = Set::unsettled(scope, name, replicas, part).await;
        set.settled().await;
        set
    }

    /// Creates the same set without waiting.
    pub async fn unsettled(
        scope: &'a Scope,
        name: &'static str,
        replicas: i32,
        part: Value,
    ) -> Set<'a> {
        let mut spec = json!({
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
            },
        });
        json_patch::merge(&mut spec, &part);
        let set = Set::named(scope, name);
        let object = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": name }, "spec": spec,
        }))
        .unwrap();
        for _ in 0..20 {
            match set.api.create(&PostParams::default(), &object).await {
                // A test may have killed the replica that reviewed the request.
                Err(Error::Api(status)) if status.code == 500 => {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                created => {
                    created.unwrap();
                    return set;
                }
            }
        }
        panic!("nobody admits CollaSet {name}");
    }

    pub async fn get(&self) -> CollaSet {
        self.api.get(self.name).await.unwrap()
    }

    /// Merges a part into the spec.
    pub async fn edit(&self, part: Value) -> CollaSet {
        let patch = Patch::Merge(json!({ "spec": part }));
        self.api
            .patch(self.name, &PatchParams::default(), &patch)
            .await
            .unwrap()
    }

    pub async fn image(&self, image: &str) {
        self.edit(json!({ "template": { "spec": { "containers": [{ "name": "app", "image": image }] } } }))
            .await;
    }

    /// Waits until the condition Ready is True for the present generation.
    pub async fn settled(&self) -> CollaSet {
        self.until("it to be as wanted", |set| {
            let status = set.status.as_ref();
            status.is_some_and(|s| {
                Some(s.observed_generation) == set.metadata.generation
                    && s.conditions
                        .iter()
                        .any(|c| c.type_ == "Ready" && c.status == "True")
            })
        })
        .await
    }

    pub async fn until(&self, condition: &str, test: impl Fn(&CollaSet) -> bool) -> CollaSet {
        let probe = async || Some(self.get().await).filter(&test);
        match wait::found(probe).await {
            Some(set) => set,
            None => panic!(
                "CollaSet {}: waited for {condition}; {}",
                self.name,
                self.describe().await
            ),
        }
    }

    /// Describes a set that does not reach the state that a test waits for.
    async fn describe(&self) -> String {
        let set = self.get().await;
        let pods: Api<Pod> = Api::namespaced(self.scope.client.clone(), &self.scope.namespace);
        let pods = pods.list(&ListParams::default()).await;
        let describe = |pod: &Pod| {
            format!(
                "{}: {:?} {:?} {:?} {} {}",
                pod.name_any(),
                pod.metadata.deletion_timestamp,
                pod.labels(),
                pod.annotations(),
                json!(pod.spec.as_ref().map(|spec| &spec.containers)),
                json!(pod.status)
            )
        };
        let pods: Vec<_> = pods.iter().flatten().map(describe).collect();
        format!(
            "it is at generation {:?}: {}\n{}",
            set.metadata.generation,
            json!(set.status),
            pods.join("\n")
        )
    }

    /// The Pods of the set that are not terminating, by instance ID. Panics if two Pods share an ID.
    pub async fn pods(&self) -> BTreeMap<i64, Pod> {
        let api: Api<Pod> = Api::namespaced(self.scope.client.clone(), &self.scope.namespace);
        let list = api
            .list(&ListParams::default().labels(&format!("app={}", self.name)))
            .await
            .unwrap();
        let mut pods = BTreeMap::new();
        for pod in list.items {
            let owned = pod
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|o| o.name == self.name);
            if pod.metadata.deletion_timestamp.is_some() || !owned {
                continue;
            }
            let id = label(&pod, keys::INSTANCE_ID).unwrap().parse().unwrap();
            assert!(pods.insert(id, pod).is_none(), "two Pods with ID {id}");
        }
        pods
    }

    pub async fn pod(&self, id: i64) -> Pod {
        self.pods().await.remove(&id).unwrap()
    }

    /// Waits until its Pods satisfy the condition.
    pub async fn until_pods(&self, condition: &str, test: impl Fn(&Pods) -> bool) -> Pods {
        wait::value(&format!("Pods of {}: {condition}", self.name), async || {
            Some(self.pods().await).filter(&test)
        })
        .await
    }

    /// Keeps every Pod of the set in PreCheck until [`Set::release`].
    pub async fn hold(&self) {
        let rules = json!([{ "name": "hold", "labelCheck": { "requires": { "matchLabels": { "go": "1" } } } }]);
        let spec = json!({ "selector": { "matchLabels": { "app": self.name } }, "rules": rules });
        self.scope.try_rule("hold", spec).await.unwrap();
        let counts_pods =
            |s: &operating::api::podtransitionrule::PodTransitionRuleStatus| s.expected_pods > 0;
        self.scope
            .until_status("hold", "its Pods", counts_pods)
            .await;
    }

    pub async fn release(&self) {
        let rules = self.scope.rules();
        rules
            .delete("hold", &DeleteParams::default())
            .await
            .unwrap();
    }

    /// The pool of instance IDs of the set.
    pub fn pools(&self) -> Api<ResourceContext> {
        Api::namespaced(self.scope.client.clone(), &self.scope.namespace)
    }

    pub async fn images(&self) -> Vec<String> {
        self.pods().await.values().map(image).collect()
    }

    pub async fn names(&self) -> Vec<String> {
        self.pods()
            .await
            .values()
            .map(|p| p.metadata.name.clone().unwrap())
            .collect()
    }
}

/// Pods by instance ID.
pub type Pods = BTreeMap<i64, Pod>;

/// UIDs by instance ID.
pub fn uids(pods: &Pods) -> BTreeMap<i64, String> {
    pods.iter()
        .map(|(id, pod)| (*id, pod.uid().unwrap()))
        .collect()
}

pub fn ids(pods: &Pods) -> Vec<i64> {
    pods.keys().copied().collect()
}

/// A condition of a set.
pub fn condition<'a>(set: &'a CollaSet, type_: &str) -> Option<&'a CollaSetCondition> {
    let conditions = set.status.iter().flat_map(|s| &s.conditions);
    conditions.into_iter().find(|c| c.type_ == type_)
}

/// Waits for a condition to be False with a message that contains `text`.
pub async fn until_condition_false(set: &Set<'_>, type_: &str, reason: &str, text: &str) {
    let matches = |set: &CollaSet| {
        condition(set, type_)
            .is_some_and(|c| c.status == "False" && c.reason == reason && c.message.contains(text))
    };
    let set = set
        .until(&format!("{type_} {reason} {text}"), matches)
        .await;
    assert_eq!(condition(&set, "Ready").unwrap().status, "False");
}

/// Whether an operation of the set itself has begun on a Pod and is not over.
pub fn is_operating(pod: &Pod) -> bool {
    label(pod, &Family::Operating.key("collaset")).is_some()
}

/// Whether a Pod is in a pair.
pub fn is_paired(pod: &Pod) -> bool {
    let keys = [
        keys::TO_REPLACE,
        keys::REPLACED_BY_REPLACE_UPDATE,
        keys::REPLACE_PAIR_NEW_ID,
        keys::REPLACE_PAIR_ORIGIN_NAME,
    ];
    keys.iter().any(|key| label(pod, key).is_some())
}

pub fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub fn image(pod: &Pod) -> String {
    let containers = &pod.spec.as_ref().unwrap().containers;
    containers[0].image.clone().unwrap()
}
