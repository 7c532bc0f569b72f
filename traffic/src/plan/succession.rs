//! Pods that serve, and that the employer does not select any more, stay until the Pods that it selects now serve in
//! their place.

use std::collections::BTreeSet;

use super::memory::Memory;
use super::view::{PodInput, View};

/// Whether the Pods that have left the selection and still serve must stay: there are Pods to take their place, and
/// fewer of them serve than have left. If fewer are selected now than have left, it is enough that all of those serve.
pub(super) fn awaits_successors(view: &View, memory: &Memory) -> bool {
    if !view.registers {
        return false; // nobody takes their place here
    }
    let leaving = memory.members.values();
    let leaving =
        leaving.filter(|known| !view.wanted.contains_key(&known.member.key) && known.is_on());
    let leaving = leaving.filter_map(|known| view.pod_behind(&known.member));
    let leaving = leaving.filter(|input| has_left_selection(input));
    let leaving: BTreeSet<_> = leaving.map(|input| &input.pod.id.uid).collect();
    if leaving.is_empty() {
        return false;
    }
    // A Pod without a member of its own can't take a place.
    let successor = |uid: &&String| view.should_serve(uid) && !view.shared.contains_key(*uid);
    let successors = || view.pods.keys().filter(successor);
    let serving = successors().filter(|uid| memory.does_serve(view, uid));
    serving.count() < leaving.len().min(successors().count())
}

/// Whether a Pod could serve, and only is not selected any more.
pub(super) fn has_left_selection(input: &PodInput) -> bool {
    !input.selected && input.pod.on && !input.ended
}
