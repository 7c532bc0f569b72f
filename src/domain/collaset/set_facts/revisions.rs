//! The revision of a Pod, and the change from that revision to the updated revision.

use std::rc::Rc;
use std::sync::Arc;

use super::SetFacts;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::collaset::composition::{self, Composition};
use crate::domain::collaset::observed::{ObservedSet, Revision};
use crate::domain::collaset::revision::inplace::{self, InPlaceChange};
use crate::domain::collaset::revision::progress::{UpdateProgress, update_progress};
use crate::domain::collaset::revision::resize;
use crate::domain::collaset::revision::stable::RevisionUse;
use crate::domain::collaset::set_operations::SetOperation;
use crate::domain::pod::Pod;

impl SetFacts<'_> {
    /// The revision to which the Pod was created or changed, if it still exists.
    pub fn revision_of(&self, pod: &Pod) -> Option<&Arc<Revision>> {
        self.history.find_revision(pod.label(keys::REVISION)?)
    }

    /// The compositions whose resources a Pod has although its labels name another one. An update has resized the Pod
    /// and did not change its labels.
    pub fn resized_to(&self, pod: &Pod) -> &[Rc<Composition>] {
        let resized = self.resized.get(&*pod.metadata.name);
        resized.map_or(&[], Vec::as_slice)
    }

    pub(super) fn find_resized(&self, pod: &Pod) -> Vec<Rc<Composition>> {
        let mut marked = resize_marks(pod).peekable();
        if marked.peek().is_none() {
            return Vec::new();
        }
        let Some(of) = self.composition_of(pod) else {
            return Vec::new();
        };
        // A resize changes the generation of the Pod. If the generation is still the recorded generation, somebody else
        // set these resources before. A recorded generation of 0 is unknown.
        let has_changed =
            |generation: i64| generation != pod.metadata.generation || generation == 0;
        let marked = marked.filter(|(_, generation)| has_changed(*generation));
        let marked = marked.filter_map(|(name, _)| self.find_composition(name));
        let is_resized = |to: &Rc<Composition>| {
            resize::has_resized_resources(pod, &of.composed.data, &to.composed.data)
        };
        marked.filter(is_resized).collect()
    }

    /// Whether the Pod has resources of a revision other than its own.
    pub fn is_resized(&self, pod: &Pod) -> bool {
        !self.resized_to(pod).is_empty()
    }

    /// Returns the change in place that turns a Pod of one composition into a Pod of another.
    pub fn in_place_change(&self, from: &Composition, to: &Composition) -> Rc<InPlaceChange> {
        let compute = || {
            Rc::new(inplace::in_place_change(
                &from.composed.data,
                &to.composed.data,
            ))
        };
        self.in_place_changes
            .get_or_compute(from.name(), to.name(), compute)
    }

    /// Whether a Pod is of the updated revision, and its resources are, too.
    pub fn is_updated(&self, pod: &Pod) -> bool {
        self.has_updated_label(pod) && !self.is_resized(pod) && !is_never_resized(pod)
    }

    /// Whether the label of a Pod names the updated revision.
    pub fn has_updated_label(&self, pod: &Pod) -> bool {
        pod.label(keys::REVISION) == Some(&self.history.updated.name)
    }

    /// The revisions that Pods and pool entries refer to, with the number of Pods of each that are not terminating.
    pub fn revisions_in_use(observed: &ObservedSet, selector: &Selector) -> RevisionUse {
        let orphans = observed.orphans.iter();
        let orphans = orphans.filter(|pod| selector.matches(&pod.metadata.labels));
        let mut in_use = RevisionUse::new();
        for pod in observed.pods.iter().chain(orphans) {
            let replaced_by = pod.label(keys::REPLACED_BY_REPLACE_UPDATE);
            let resized = resize_marks(pod).map(|(name, _)| composition::split_name(name).0);
            let others = replaced_by.into_iter().chain(resized);
            for name in others {
                in_use.entry(name.to_owned()).or_default();
            }
            if let Some(own) = pod.label(keys::REVISION) {
                let count = in_use.entry(own.to_owned()).or_default();
                *count += usize::from(!pod.is_terminating());
            }
        }
        let contexts = observed.pool.iter().flat_map(|p| &p.contexts);
        for name in contexts.filter_map(|c| c.data.get(data::REVISION)) {
            in_use.entry(name.clone()).or_default();
        }
        in_use
    }
}

/// Names of the compositions for which a Pod was to be resized, and the generation that the Pod had at that time; 0 if the
/// generation is unknown.
pub fn resize_marks(pod: &Pod) -> impl Iterator<Item = (&str, i64)> {
    let marked = pod.annotation(keys::RESIZING).into_iter();
    let marked = marked.flat_map(|marks| marks.split(','));
    marked.map(|mark| match mark.split_once('@') {
        Some((name, generation)) => (name, generation.parse().unwrap_or(0)),
        None => (mark, 0),
    })
}

/// Whether a Pod keeps serving although its node refuses the resize of its update. The Pod was to be recreated, but no
/// update is in progress.
fn is_never_resized(pod: &Pod) -> bool {
    pod.annotation(keys::LAST_POD_STATUS).is_some()
        && !SetOperation::Update.is_in_progress(pod)
        && matches!(update_progress(pod), UpdateProgress::Refused(_))
}
