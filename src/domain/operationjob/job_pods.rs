//! The Pods that a plan reads, by what it asks for.

use std::collections::HashMap;
use std::sync::Arc;

use crate::api::keys;
use crate::domain::pod::Pod;

/// Pods of a namespace.
#[derive(Clone, Debug, Default)]
pub struct JobPods {
    by_name: HashMap<String, Arc<Pod>>,
    by_uid: HashMap<String, Arc<Pod>>,
    /// By the UID of the Pod that they were created to replace.
    by_replaced: HashMap<String, Vec<Arc<Pod>>>,
    /// By the UID of their CollaSet and their instance ID.
    by_instance: HashMap<(String, String), Vec<Arc<Pod>>>,
}

impl FromIterator<Arc<Pod>> for JobPods {
    fn from_iter<I: IntoIterator<Item = Arc<Pod>>>(pods: I) -> JobPods {
        let mut found = JobPods::default();
        for pod in pods {
            if let Some(uid) = pod.annotation(keys::REPLACED_UID) {
                let replacing = found.by_replaced.entry(uid.to_owned()).or_default();
                replacing.push(Arc::clone(&pod));
            }
            let owner = pod.controller().filter(|owner| owner.is_collaset());
            if let Some((owner, id)) = owner.zip(pod.label(keys::INSTANCE_ID)) {
                let key = (owner.uid.clone(), id.to_owned());
                let instance = found.by_instance.entry(key).or_default();
                instance.push(Arc::clone(&pod));
            }
            let metadata = &pod.metadata;
            found.by_uid.insert(metadata.uid.clone(), Arc::clone(&pod));
            // A Pod that the watch has not removed yet may have the name of a newer one.
            let is_newest = found
                .by_name
                .get(&metadata.name)
                .is_none_or(|other| other.metadata.resource_version < metadata.resource_version);
            if is_newest {
                found.by_name.insert(metadata.name.clone(), pod);
            }
        }
        found
    }
}

impl JobPods {
    /// The Pod of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Pod>> {
        self.by_name.get(name)
    }

    /// The Pod with this UID.
    pub fn with_uid(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.by_uid.get(uid)
    }

    /// The Pods that were created to replace the Pod with this UID.
    pub fn replacing(&self, uid: &str) -> &[Arc<Pod>] {
        self.by_replaced.get(uid).map_or(&[], Vec::as_slice)
    }

    /// The Pods of an instance of the CollaSet with this UID.
    pub fn of_instance(&self, set_uid: &str, id: &str) -> &[Arc<Pod>] {
        let key = (set_uid.to_owned(), id.to_owned());
        self.by_instance.get(&key).map_or(&[], Vec::as_slice)
    }
}
