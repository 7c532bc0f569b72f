//! The cache of EndpointSlices: which addresses of a Service get requests.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use tokio::sync::watch;

use crate::cluster::objects::{ObjectCache, ObjectKey};

/// The path that is watched.
pub const WATCH_PATH: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// An EndpointSlice as the API server sends it, with the fields that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SliceObject {
    metadata: Metadata,
    endpoints: Option<Vec<EndpointObject>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EndpointObject {
    addresses: Vec<String>,
    conditions: Option<Conditions>,
    target_ref: Option<TargetRef>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    /// Absent counts as true, as `discovery/v1` says.
    ready: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TargetRef {
    kind: String,
    /// Empty if whoever wrote the slice left it out. A name alone could be that of a former Pod.
    uid: String,
}

/// One address of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The Pod behind it: its UID. `None` if the slice has no UID of a Pod.
    pub pod: Option<Box<str>>,
    /// The address.
    pub address: Option<IpAddr>,
    /// Whether it gets requests.
    pub ready: bool,
}

/// The slices of all Services.
pub struct Slices {
    objects: ObjectCache<Vec<Endpoint>>,
    listed: watch::Sender<bool>,
}

impl Default for Slices {
    fn default() -> Slices {
        Slices {
            objects: ObjectCache::default(),
            listed: watch::Sender::new(false),
        }
    }
}

impl SliceObject {
    /// Namespace and name of its Service; `None` if it has none.
    pub fn service(&self) -> Option<(&str, &str)> {
        let name = self.metadata.labels.get(SERVICE_NAME)?;
        Some((&self.metadata.namespace, name))
    }

    /// The Service takes the place of the controller, so that the slices of a Service are found.
    fn object_key(&self) -> ObjectKey {
        let service = self.metadata.labels.get(SERVICE_NAME).cloned();
        ObjectKey {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            version: self.metadata.resource_version.parse().unwrap_or(0),
            controller: service.unwrap_or_default(),
        }
    }

    fn into_cached(self) -> Option<Vec<Endpoint>> {
        self.service()?;
        let endpoints = self.endpoints.unwrap_or_default().into_iter();
        let cached = endpoints.flat_map(|endpoint| {
            let of_pod = |target: &TargetRef| target.kind == "Pod" && !target.uid.is_empty();
            let pod = endpoint.target_ref.filter(of_pod);
            let pod = pod.map(|target| Box::<str>::from(target.uid));
            let ready = endpoint.conditions.and_then(|c| c.ready).unwrap_or(true);
            let addresses = endpoint.addresses.into_iter();
            addresses.map(move |address| Endpoint {
                pod: pod.clone(),
                address: address.parse().ok(),
                ready,
            })
        });
        Some(cached.collect())
    }
}

impl Slices {
    /// The endpoints of a Service, over all its slices. `None` until the slices have been listed.
    pub fn endpoints(&self, namespace: &str, service: &str) -> Option<Vec<Endpoint>> {
        let slices = self
            .listed
            .borrow()
            .then(|| self.objects.controlled_by(namespace, service))?;
        Some(
            slices
                .iter()
                .flat_map(|slice| slice.iter().cloned())
                .collect(),
        )
    }

    /// Replaces all slices by those of a list.
    pub fn replace(&self, slices: Vec<SliceObject>, version: u64) {
        let cached = slices.into_iter();
        let cached = cached
            .map(|slice| (slice.object_key(), slice.into_cached()))
            .collect();
        self.objects.replace(cached, version);
        self.listed.send_replace(true);
    }

    /// Stores what the watch delivered.
    pub fn apply(&self, slice: SliceObject) {
        self.objects.apply(slice.object_key(), slice.into_cached());
    }

    /// Removes a slice whose deletion the watch delivered.
    pub fn delete(&self, slice: &SliceObject) {
        self.objects.delete(&slice.object_key());
    }

    /// Records that the watch has delivered every event up to `version`.
    pub fn bookmark(&self, version: u64) {
        self.objects.bookmark(version);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_of_all_slices_of_a_service_are_found() {
        let slices = Slices::default();
        assert_eq!(slices.endpoints("shop", "web"), None, "not listed yet");
        let slice = |name: &str, service: &str, address: &str, ready: Option<bool>| {
            serde_json::from_value::<SliceObject>(json!({
                "metadata": {
                    "namespace": "shop", "name": name, "uid": name, "resourceVersion": "5",
                    "labels": { "kubernetes.io/service-name": service },
                },
                "endpoints": [{
                    "addresses": [address], "conditions": { "ready": ready },
                    "targetRef": { "kind": "Pod", "uid": "pod" },
                }],
            }))
            .unwrap()
        };
        let all = vec![
            slice("web-v4", "web", "10.0.0.1", Some(false)),
            slice("web-v6", "web", "fd00::1", None),
            slice("other", "other", "10.0.0.1", Some(true)),
        ];
        slices.replace(all, 5);
        let mut ready: Vec<_> = slices.endpoints("shop", "web").unwrap();
        ready.sort_by_key(|endpoint| endpoint.ready);
        assert_eq!(ready.len(), 2);
        assert!(!ready[0].ready && ready[1].ready, "absent counts as true");
        slices.delete(&slice("web-v6", "web", "fd00::1", None));
        assert_eq!(slices.endpoints("shop", "web").unwrap().len(), 1);
        let no_endpoints = json!({ "metadata": { "labels": {} }, "endpoints": null });
        assert!(
            serde_json::from_value::<SliceObject>(no_endpoints)
                .unwrap()
                .service()
                .is_none()
        );
    }

    /// The API server does not fill in the UID of a reference that somebody wrote by hand.
    #[test]
    fn endpoint_that_names_its_pod_without_uid_counts_by_address() {
        let slices = Slices::default();
        let slice = json!({
            "metadata": {
                "namespace": "shop", "name": "web-extra", "uid": "web-extra", "resourceVersion": "5",
                "labels": { "kubernetes.io/service-name": "web" },
            },
            "endpoints": [{
                "addresses": ["10.0.0.1"],
                "targetRef": { "kind": "Pod", "namespace": "shop", "name": "web-0" },
            }],
        });
        slices.replace(vec![serde_json::from_value(slice).unwrap()], 5);
        let endpoints = slices.endpoints("shop", "web").unwrap();
        let named: Vec<_> = endpoints.iter().map(|endpoint| &endpoint.pod).collect();
        assert_eq!(named, [&None]);
    }
}
