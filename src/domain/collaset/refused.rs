//! What the API server has refused lately, as facts of a plan: what will be refused again is not built upon.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::pod::Pod;

/// Refusals that the next plan goes by. All of it may be forgotten: what is tried again is refused again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Resizes of Pods, by UID: the revision that each was to lead to, and the API server's words.
    pub resizes: BTreeMap<String, (String, String)>,
    /// Instance IDs for which no Pod or claim could be created, with the API server's words.
    pub creations: BTreeMap<i64, String>,
    /// Pods that could not be changed, or whose change admission held, by UID.
    pub pods: BTreeSet<String>,
    /// Claims that could not be changed, by name.
    pub claims: BTreeSet<String>,
    /// Why the revision of the present template can't be written; `None` when that is not known to be so.
    pub revision: Option<String>,
    /// Revisions of which a Pod has been created.
    pub proven: BTreeSet<String>,
}

impl Refused {
    /// Why a Pod can't be resized on its way to a revision.
    pub fn resize(&self, pod: &Pod, revision: &str) -> Option<&str> {
        let (to, why) = self.resizes.get(&pod.metadata.uid)?;
        (to == revision).then_some(why)
    }
}
