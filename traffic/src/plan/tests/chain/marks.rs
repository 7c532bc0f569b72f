//! The marks that the leader writes, as `wanted_marks` has them.

use std::collections::BTreeMap;

use super::state::{Chain, StoredPod};
use crate::plan::*;

impl Chain {
    /// Pods that do not serve yet wait for traffic. Returns whether a Pod was written.
    pub fn write_expectations(
        &mut self,
        view: &View,
        cached: &BTreeMap<String, StoredPod>,
        moves: bool,
    ) -> bool {
        let keep = Mark::Keep(String::new());
        let mut written = false;
        for (uid, pod) in cached {
            written |= self.write_marks(view, uid, &keep, pod.version, moves);
        }
        written
    }

    /// Writes the marks of a Pod, unless it has changed since `version`. Returns whether it was written.
    pub fn write_marks(
        &mut self,
        view: &View,
        uid: &str,
        mark: &Mark,
        version: u64,
        moves: bool,
    ) -> bool {
        let stored = self.pods.get_mut(uid);
        let Some(pod) = stored.filter(|pod| pod.version == version) else {
            return false;
        };
        let stays = pod.input.selected && !view.deleting;
        let waits = stays && (view.refused.is_none() || moves);
        let protected = match mark {
            Mark::Protect => true,
            Mark::Release => false,
            Mark::Keep(_) if waits && !pod.expected && pod.available => true,
            Mark::Keep(_) => pod.input.protected,
        };
        let may_be_on = matches!(mark, Mark::Keep(_)) && !view.deleting;
        let expected = match (waits, protected) {
            (true, false) => pod.expected || !pod.available,
            (true, true) => true,
            (false, protected) => pod.expected && (protected || stays || may_be_on),
        };
        if (expected, protected) == (pod.expected, pod.input.protected) {
            return false;
        }
        let was_protected = pod.input.protected;
        (pod.expected, pod.input.protected) = (expected, protected);
        pod.was_marked |= expected;
        pod.version += 1;
        self.note(format!(
            "{uid} is expected: {expected}, protected: {protected}, by {mark:?}"
        ));
        self.advance_operation(uid);
        if was_protected && !protected {
            self.check_release(uid);
        }
        self.count_availability(uid);
        true
    }
}
