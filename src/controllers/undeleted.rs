//! Pods that the rules have let go and whose deletion the API server refuses.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::pod::Pod;

/// By UID, why each is not deleted. What is known goes with the process, and is learnt anew by the next try.
#[derive(Debug, Default)]
pub struct Undeleted(Mutex<HashMap<String, String>>);

impl Undeleted {
    /// A Pod can't be deleted for now.
    pub fn note(&self, uid: &str, why: String) {
        self.0.lock().insert(uid.to_owned(), why);
    }

    /// A Pod is deleted, or is to stay.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Those of these Pods, and why.
    pub fn of(&self, pods: &[Arc<Pod>]) -> BTreeMap<String, String> {
        let known = self.0.lock();
        if known.is_empty() {
            return BTreeMap::new();
        }
        let why = |pod: &Arc<Pod>| {
            let uid = &pod.metadata.uid;
            Some((uid.clone(), known.get(uid)?.clone()))
        };
        pods.iter().filter_map(why).collect()
    }
}
