//! Namespaces in the index: their labels, and whether they are going.

use std::collections::BTreeMap;

use super::{Change, Index};

impl Index {
    /// The namespaces; others are gone.
    pub fn replace_namespaces(&self, all: Vec<(String, BTreeMap<String, String>, bool)>) {
        let mut state = self.state.write();
        for namespace in state.namespaces.values_mut() {
            namespace.labels = None;
            namespace.terminating = false;
        }
        for (name, labels, terminating) in all {
            let home = state.namespaces.entry(name.clone()).or_default();
            home.labels = Some(labels);
            home.terminating = terminating;
            self.tell(Change::Namespace(name));
        }
        drop(state);
        self.mark(|s| s.namespaces = true);
    }

    /// A namespace was added or changed.
    pub fn apply_namespace(
        &self,
        name: String,
        labels: BTreeMap<String, String>,
        terminating: bool,
    ) {
        let mut state = self.state.write();
        let home = state.namespaces.entry(name.clone()).or_default();
        home.labels = Some(labels);
        home.terminating = terminating;
        self.tell(Change::Namespace(name));
    }

    /// A namespace was deleted.
    pub fn delete_namespace(&self, name: &str) {
        self.state.write().namespaces.remove(name);
    }
}
