//! Limits how many bytes a cache keeps of one Pod.
//!
//! The API server limits an object to about 1.5 MB, and hardly limits single texts and lists in it. If the caches kept
//! all of this, a tenant could fill the memory of every replica with a hundred Pods.

use std::collections::BTreeMap;

use super::pod::{Container, ContainerStatus, Owner, Pod, PodMetadata};
use crate::api::keys;

/// Largest number of bytes that a cache keeps of one Pod. A Pod of two containers has about 3,000, and one of eighty
/// has less than this.
pub const MAX_POD_BYTES: usize = 96 << 10;
/// Bytes of labels that a cache keeps of a Pod whose metadata have more than [`MAX_POD_BYTES`], and of the template of
/// an owner. Also the limit for the selector of an owner.
pub const MAX_LABEL_BYTES: usize = 16 << 10;
/// Bytes of the reference to the controller that a cache keeps of such a Pod. References with valid names fit.
const MAX_OWNER_BYTES: usize = 1 << 10;

/// The warning for a user who stores a Pod of this size.
pub fn excess_message(bytes: usize) -> String {
    format!(
        "takes {bytes} bytes of the cache of each replica, more than {MAX_POD_BYTES}: it counts as not available under every \
         PodTransitionRule, and the server reads its dropped fields from the API server. Give it fewer or shorter labels, \
         lifecycle annotations, owners, finalizers, volumes or containers"
    )
}

impl Pod {
    /// Approximate number of bytes of the Pod.
    pub fn pod_bytes(&self) -> usize {
        let spec = &self.spec;
        let containers = spec.containers.iter().chain(&spec.init_containers);
        let gates = spec.readiness_gates.iter();
        let status = &self.status;
        let statuses = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses);
        let conditions = status.conditions.iter().map(|c| {
            let since = c.last_transition_time.as_deref().unwrap_or_default();
            size_of_val(c) + text_bytes([&*c.type_, &c.status, &c.reason, since])
        });
        size_of_val(self)
            + self.metadata.metadata_bytes()
            + text_bytes([&*spec.restart_policy, &status.phase])
            + text_bytes(spec.pvcs.iter().map(String::as_str))
            + text_bytes(gates.map(|gate| gate.condition_type.as_str()))
            + containers.map(container_bytes).sum::<usize>()
            + resource_bytes(&spec.resources)
            + conditions.sum::<usize>()
            + statuses.map(container_status_bytes).sum::<usize>()
    }
}

impl PodMetadata {
    /// Approximate number of bytes of the fields of variable length.
    fn metadata_bytes(&self) -> usize {
        let times = [&self.deletion_timestamp, &self.creation_timestamp];
        text_bytes([&*self.namespace, &self.name, &self.uid])
            + text_bytes(times.into_iter().flatten().map(String::as_str))
            + map_bytes(&self.labels)
            + map_bytes(&self.annotations)
            + text_bytes(self.finalizers.iter().map(String::as_str))
            + self.owner_references.iter().map(owner_bytes).sum::<usize>()
    }

    /// The metadata that a cache keeps. If the metadata take more than [`MAX_POD_BYTES`], only the identity of the Pod,
    /// its controller, and some labels are kept. Labels that Operating uses are kept first.
    ///
    /// A Pod without some of its labels is covered by all rules of its namespace
    /// ([`RuleSet::selects`](super::rules::RuleSet::selects)). It counts as not available in each budget.
    pub fn reduced(mut self) -> PodMetadata {
        if self.metadata_bytes() <= MAX_POD_BYTES {
            return self;
        }
        self.annotations.clear();
        self.finalizers = Vec::new();
        let controller = self.owner_references.iter().find(|o| o.controller);
        let controller = controller
            .filter(|o| owner_bytes(o) <= MAX_OWNER_BYTES)
            .cloned();
        self.owner_references = controller.into_iter().collect();
        (self.labels, self.labels_dropped) = fitting_labels(std::mem::take(&mut self.labels));
        self
    }
}

/// The labels that a cache keeps, and whether others were dropped. Labels that Operating uses are kept first.
pub fn fitting_labels(labels: BTreeMap<String, String>) -> (BTreeMap<String, String>, bool) {
    if map_bytes(&labels) <= MAX_LABEL_BYTES {
        return (labels, false);
    }
    let mut labels: Vec<_> = labels.into_iter().collect();
    labels.sort_by_key(|(key, _)| label_rank(key)); // a stable sort keeps the order of the keys
    let mut free_bytes = MAX_LABEL_BYTES;
    let count = labels.len();
    let fit = |(key, value): &(String, String)| {
        let remaining = free_bytes.checked_sub(text_bytes([&**key, value]));
        free_bytes = remaining.unwrap_or(free_bytes);
        remaining.is_some()
    };
    let fitting: BTreeMap<_, _> = labels.into_iter().filter(fit).collect();
    let dropped = fitting.len() < count;
    (fitting, dropped)
}

/// The order in which labels are kept: the label of managed Pods, then labels that Operating and revisions use, then
/// all others.
fn label_rank(key: &str) -> u8 {
    match key {
        keys::CONTROL => 0,
        keys::REVISION | keys::POD_TEMPLATE_HASH => 1,
        _ if key
            .split_once('/')
            .is_some_and(|(domain, _)| domain.ends_with("kusionstack.io")) =>
        {
            1
        }
        _ => 2,
    }
}

fn text_bytes<'a>(texts: impl IntoIterator<Item = &'a str>) -> usize {
    texts
        .into_iter()
        .map(|t| t.len() + size_of::<String>())
        .sum()
}

fn map_bytes(map: &BTreeMap<String, String>) -> usize {
    map.iter()
        .map(|(key, value)| text_bytes([&**key, value]))
        .sum()
}

fn owner_bytes(owner: &Owner) -> usize {
    size_of_val(owner) + text_bytes([&*owner.api_version, &owner.kind, &owner.name, &owner.uid])
}

fn container_bytes(container: &Container) -> usize {
    let policies = container.resize_policy.iter();
    let policies = policies.map(|p| text_bytes([&*p.resource_name, &p.restart_policy]));
    size_of_val(container)
        + text_bytes([&*container.name, &container.image])
        + resource_bytes(&container.resources)
        + policies.sum::<usize>()
}

fn container_status_bytes(status: &ContainerStatus) -> usize {
    let waiting = status.state.waiting.as_ref();
    size_of_val(status)
        + text_bytes([
            &*status.name,
            &status.container_id,
            &status.image,
            &status.image_id,
        ])
        + waiting.map_or(0, |w| text_bytes([&*w.reason, &w.message]))
}

/// Approximate number of bytes of the quantities in a `resources` field.
fn resource_bytes(resources: &serde_json::Value) -> usize {
    let kinds = resources.as_object().into_iter().flatten();
    let each = kinds.flat_map(|(_, amounts)| amounts.as_object().into_iter().flatten());
    each.map(|(name, amount)| {
        name.len() + amount.as_str().map_or(0, str::len) + size_of_val(amount)
    })
    .sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn metadata(patch: Value) -> PodMetadata {
        let mut metadata = json!({
            "namespace": "n", "name": "web-1", "uid": "u", "resourceVersion": "7", "finalizers": ["example.com/f"],
            "labels": { (keys::CONTROL): keys::CONTROL_VALUE, "app": "web" },
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "o1" },
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o2", "controller": true },
            ],
        });
        json_patch::merge(&mut metadata, &patch);
        serde_json::from_value(metadata).unwrap()
    }

    fn labels(prefix: &str, count: usize) -> Value {
        let all = (0..count).map(|n| (format!("{prefix}{n:05}"), json!("x".repeat(63))));
        Value::Object(all.collect())
    }

    #[test]
    fn usual_metadata_are_kept_whole() {
        for usual in [json!({}), json!({ "labels": labels("example.com/", 100) })] {
            let usual = metadata(usual);
            assert_eq!(usual.clone().reduced(), usual);
        }
    }

    #[test]
    fn large_metadata_are_reduced_to_identity_controller_and_some_labels() {
        let long = json!({ "annotations": { (keys::BYPASS): "x".repeat(MAX_POD_BYTES) } });
        let reduced = metadata(long).reduced();
        let usual = metadata(json!({}));
        assert_eq!(reduced.labels, usual.labels);
        assert!(!reduced.labels_dropped);
        assert_eq!(reduced.owner_references[..], usual.owner_references[1..]);
        for key in ["example.com/", "a.kusionstack.io/", "kusionstack.io/a"] {
            let reduced = metadata(json!({ "labels": labels(key, 10_000) })).reduced();
            assert!(
                reduced.labels_dropped && reduced.metadata_bytes() < MAX_POD_BYTES,
                "{key}"
            );
            assert!(reduced.labels.contains_key(keys::CONTROL), "{key}");
            assert_eq!((reduced.uid.as_str(), reduced.resource_version), ("u", 7));
        }
        let own_labels = json!({ "labels": labels("a/", 10_000) });
        let mut own_labels = metadata(own_labels);
        own_labels
            .labels
            .insert(keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
        assert!(
            own_labels
                .reduced()
                .labels
                .contains_key(keys::SERVICE_AVAILABLE)
        );
        let endless = json!({ "ownerReferences": [{ "uid": "x".repeat(MAX_POD_BYTES), "controller": true }] });
        assert_eq!(metadata(endless).reduced().owner_references.len(), 0);
    }

    #[test]
    fn pod_of_forty_containers_is_kept() {
        let amounts = json!({ "cpu": "1500m", "memory": "2048Mi" });
        let image = format!(
            "registry.example.com/team/part@sha256:{}",
            "0123456789abcdef".repeat(4)
        );
        let name = |n| format!("container-of-the-part-{n}");
        let container = |n| json!({ "name": name(n), "image": image, "resources": { "requests": amounts, "limits": amounts } });
        let status = |n| {
            json!({
                "name": name(n), "image": image, "imageID": image, "ready": true, "restartCount": 3,
                "containerID": format!("containerd://{}", "0123456789abcdef".repeat(4)),
                "resources": { "requests": amounts, "limits": amounts },
            })
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "labels": labels("example.com/", 50) },
            "spec": { "containers": (0..40).map(container).collect::<Vec<_>>() },
            "status": { "containerStatuses": (0..40).map(status).collect::<Vec<_>>() },
        }))
        .unwrap();
        assert!(pod.pod_bytes() < MAX_POD_BYTES, "{}", pod.pod_bytes());
    }

    #[test]
    fn pod_bytes_counts_every_text_and_list() {
        let long = "x".repeat(MAX_POD_BYTES);
        let many = |item: Value| vec![item; 8_000];
        let resources = json!({ "limits": { "cpu": long } });
        for pod in [
            json!({ "metadata": { "labels": { "a": long } } }),
            json!({ "metadata": { "annotations": { (keys::BYPASS): long } } }),
            json!({ "metadata": { "finalizers": many(json!("example.com/f")) } }),
            json!({ "metadata": { "ownerReferences": many(json!({ "uid": "o" })) } }),
            json!({ "spec": { "containers": [{ "image": long }] } }),
            json!({ "spec": { "initContainers": many(json!({ "name": "a" })) } }),
            json!({ "spec": { "containers": [{ "resources": resources }] } }),
            json!({ "spec": { "resources": resources } }),
            json!({ "spec": { "readinessGates": many(json!({ "conditionType": "a" })) } }),
            json!({ "spec": { "volumes": many(json!({ "persistentVolumeClaim": { "claimName": "a" } })) } }),
            json!({ "spec": { "restartPolicy": long } }),
            json!({ "status": { "conditions": many(json!({ "type": "Ready" })) } }),
            json!({ "status": { "containerStatuses": [{ "imageID": long }] } }),
            json!({ "status": { "initContainerStatuses": many(json!({ "name": "a" })) } }),
        ] {
            let start: String = pod.to_string().chars().take(80).collect();
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert!(
                pod.pod_bytes() > MAX_POD_BYTES,
                "{start}: {}",
                pod.pod_bytes()
            );
        }
    }
}
