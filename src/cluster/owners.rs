//! The Pods of a namespace by the UID of their controller.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::pod::{Owner, Pod};
use crate::ledger::store::Uid;

/// The index of one namespace.
#[derive(Debug, Default)]
pub(super) struct Owners(HashMap<Uid, HashMap<Uid, Arc<Pod>>>);

impl Owners {
    /// The Pods of a controller.
    pub fn pods(&self, controller: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.0.get(controller).into_iter().flat_map(HashMap::values)
    }

    /// A Pod came, changed or went. Returns the names of the CollaSets that this concerns, those before and after.
    pub fn replace(
        &mut self,
        uid: &Uid,
        old: Option<&Arc<Pod>>,
        new: Option<&Arc<Pod>>,
    ) -> Vec<String> {
        let mut sets = Vec::new();
        if let Some(owner) = old.and_then(|pod| pod.controller()) {
            sets.extend(set_name(owner));
            if let Some(pods) = self.0.get_mut(owner.uid.as_str()) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.0.remove(owner.uid.as_str());
                }
            }
        }
        if let Some((pod, owner)) = new.and_then(|pod| Some((pod, pod.controller()?))) {
            sets.extend(set_name(owner));
            let pods = self.0.entry(Uid::from(owner.uid.as_str())).or_default();
            pods.insert(uid.clone(), Arc::clone(pod));
        }
        sets.dedup();
        sets
    }
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
    fn a_pod_is_with_its_present_controller_alone() {
        let (mut owners, uid) = (Owners::default(), Uid::from("p"));
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
