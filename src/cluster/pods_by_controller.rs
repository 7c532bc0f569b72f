//! Indexes the Pods of a namespace by the UID of their controller, and lets the Pods of one controller share equal
//! parts.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::interner::Interner;
use crate::domain::pod::{Container, Owner, Pod, ReadinessGate};
use crate::ledger::store::Uid;

/// The Pods of one namespace, by the UID of their controller.
#[derive(Debug, Default)]
pub(super) struct PodsByController(HashMap<Uid, ControllerPods>);

/// The Pods of one controller.
#[derive(Debug, Default)]
struct ControllerPods {
    pods: HashMap<Uid, Arc<Pod>>,
    common: SharedParts,
}

/// The parts that Pods of one template have in common. They are more than half of a slim Pod.
#[derive(Debug, Default)]
struct SharedParts {
    owners: Interner<Vec<Owner>>,
    containers: Interner<Vec<Container>>,
    gates: Interner<Vec<ReadinessGate>>,
    resources: Interner<serde_json::Value>,
}

impl SharedParts {
    fn intern_pod_parts(&mut self, pod: &mut Pod) {
        self.owners.intern(&mut pod.metadata.owner_references);
        self.containers.intern(&mut pod.spec.containers);
        self.containers.intern(&mut pod.spec.init_containers);
        self.gates.intern(&mut pod.spec.readiness_gates);
        self.resources.intern(&mut pod.spec.resources);
    }
}

/// Lets Pods share equal parts while they are listed. A list is sorted by name, so most Pods of a controller follow
/// each other.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    controller: String,
    common: SharedParts,
}

impl Neighbours {
    /// Lets a Pod share equal parts with the Pods before it.
    pub fn intern_pod_parts(&mut self, pod: &mut Pod) {
        let controller = pod.controller().map_or("", |owner| owner.uid.as_str());
        if self.controller != controller {
            self.controller = controller.to_owned();
            self.common = SharedParts::default();
        }
        self.common.intern_pod_parts(pod);
    }
}

impl PodsByController {
    /// The Pods of a controller. The empty UID gives the Pods without a controller.
    pub fn pods(&self, controller: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let controlled = self.0.get(controller);
        controlled.into_iter().flat_map(|c| c.pods.values())
    }

    /// Lets a Pod share equal parts with the other Pods of its controller.
    pub fn intern_pod_parts(&mut self, pod: &mut Pod) {
        let Some(owner) = pod.controller() else {
            return;
        };
        let uid = Uid::from(owner.uid.as_str());
        self.0.entry(uid).or_default().common.intern_pod_parts(pod);
    }

    /// Records that a Pod was added, changed or removed. Returns the names of the CollaSets that control the Pod before
    /// and after.
    pub fn replace(
        &mut self,
        uid: &Uid,
        old: Option<&Arc<Pod>>,
        new: Option<&Arc<Pod>>,
    ) -> Vec<String> {
        let mut sets = Vec::new();
        let new_controller = new.map(|pod| controller(pod));
        if let Some(old) = old {
            sets.extend(old.controller().and_then(set_name));
            let owner = controller(old);
            if let Some(controlled) = self.0.get_mut(owner) {
                controlled.pods.remove(uid);
                if controlled.pods.is_empty() && new_controller != Some(owner) {
                    self.0.remove(owner);
                }
            }
        }
        if let Some(pod) = new {
            sets.extend(pod.controller().and_then(set_name));
            let controlled = self.0.entry(Uid::from(controller(pod))).or_default();
            controlled.pods.insert(uid.clone(), Arc::clone(pod));
        }
        sets.dedup();
        sets
    }
}

/// The UID of the controller. Empty if the Pod has none.
fn controller(pod: &Pod) -> &str {
    pod.controller().map_or("", |owner| owner.uid.as_str())
}

fn set_name(owner: &Owner) -> Option<String> {
    owner.is_collaset().then(|| owner.name.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn pod(owner: Option<(&str, &str)>) -> Arc<Pod> {
        let owners = owner.map(|(kind, name)| {
            json!([{
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "name": name,
                "uid": format!("uid-{name}"), "controller": true,
            }])
        });
        let pod = json!({ "metadata": { "uid": "p", "ownerReferences": owners } });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn pods_of_one_controller_share_what_is_equal() {
        let (mut owners, made) = (PodsByController::default(), pod(Some(("CollaSet", "a"))));
        let shared = |owners: &mut PodsByController| {
            let mut pod = Pod::clone(&made);
            *pod.spec.containers = vec![Container::default()];
            owners.intern_pod_parts(&mut pod);
            pod
        };
        let (a, b) = (shared(&mut owners), shared(&mut owners));
        assert!(std::ptr::eq(&*a.spec.containers, &*b.spec.containers));
        assert_eq!(a, b);
    }

    #[test]
    fn pod_is_listed_only_with_its_current_controller() {
        let (mut owners, uid) = (PodsByController::default(), Uid::from("p"));
        let (a, b, none) = (
            pod(Some(("CollaSet", "a"))),
            pod(Some(("CollaSet", "b"))),
            pod(None),
        );
        assert_eq!(owners.replace(&uid, None, Some(&a)), ["a"]);
        assert_eq!(owners.replace(&uid, Some(&a), Some(&a)), ["a"]);
        assert_eq!(owners.replace(&uid, Some(&a), Some(&b)), ["a", "b"]);
        assert_eq!(
            (owners.pods("uid-a").count(), owners.pods("uid-b").count()),
            (0, 1)
        );
        assert_eq!(owners.replace(&uid, Some(&b), Some(&none)), ["b"]);
        let other = pod(Some(("ReplicaSet", "c")));
        assert!(owners.replace(&uid, Some(&none), Some(&other)).is_empty());
        assert_eq!(owners.pods("uid-c").count(), 1);
        owners.replace(&uid, Some(&other), None);
        assert!(owners.0.is_empty());
    }
}
