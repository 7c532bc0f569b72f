//! The revision of a Pod, and the change from that revision to the updated revision.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::SetFacts;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::collaset::observed::{ObservedSet, Revision};
use crate::domain::collaset::plan::DryRunChange;
use crate::domain::collaset::revision::history::RevisionHistory;
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

    /// The revisions whose resources a Pod has although its label names another revision. An update has resized the Pod
    /// and did not change its revision.
    pub fn resized_to(&self, pod: &Pod) -> &[Arc<Revision>] {
        let resized = self.resized.get(&*pod.metadata.name);
        resized.map_or(&[], Vec::as_slice)
    }

    pub(super) fn find_resized(&self, pod: &Pod) -> impl Iterator<Item = &Arc<Revision>> {
        let of = self.revision_of(pod);
        // A resize changes the generation of the Pod. If the generation is still the recorded generation, somebody else
        // set these resources before. A recorded generation of 0 is unknown.
        let has_changed =
            |generation: i64| generation != pod.metadata.generation || generation == 0;
        let marked = resize_marks(pod).filter(move |(_, generation)| has_changed(*generation));
        let marked = marked.filter_map(|(name, _)| self.history.find_revision(name));
        marked.filter(move |to| {
            of.is_some_and(|of| resize::has_resized_resources(pod, &of.data, &to.data))
        })
    }

    /// Whether the Pod has resources of a revision other than its own.
    pub fn is_resized(&self, pod: &Pod) -> bool {
        !self.resized_to(pod).is_empty()
    }

    /// Returns the change in place that turns a Pod of this revision into a Pod of the updated revision.
    pub fn in_place_change_from(&self, revision: &Revision) -> Cow<'_, InPlaceChange> {
        let change = || inplace::in_place_change(&revision.data, &self.history.updated.data);
        match self.in_place_changes.get(&revision.name) {
            Some(cell) => Cow::Borrowed(cell.get_or_init(change)),
            None => Cow::Owned(change()),
        }
    }

    /// Returns the change that a dry run tries before a Pod of this revision goes off traffic for its update in place.
    pub fn dry_run_change_from(&self, revision: &Revision) -> Option<Arc<DryRunChange>> {
        match self.dry_run_changes.get(&revision.name) {
            Some(cell) => {
                let change = || self.dry_run_change(&self.in_place_change_from(revision));
                cell.get_or_init(change).clone()
            }
            None => self.dry_run_change(&self.in_place_change_from(revision)),
        }
    }

    /// Returns the change that a dry run tries before this change in place is made; `None` if the change is not
    /// possible in place.
    pub fn dry_run_change(&self, change: &InPlaceChange) -> Option<Arc<DryRunChange>> {
        let InPlaceChange::Yes {
            labels,
            annotations,
            spec,
            resize,
            ..
        } = change
        else {
            return None;
        };
        let updated = &self.history.updated.name;
        let mut labels = labels.clone();
        let revision = (keys::REVISION.to_owned(), Some(updated.clone()));
        labels.0.extend([revision]);
        Some(Arc::new(DryRunChange {
            revision: updated.clone(),
            labels,
            annotations: annotations.clone(),
            spec: spec.clone(),
            resize: resize.clone(),
        }))
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
            let others = replaced_by
                .into_iter()
                .chain(resize_marks(pod).map(|(name, _)| name));
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

/// Names of the revisions for which a Pod was to be resized, and the generation that the Pod had at that time; 0 if the
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

/// Creates an empty cell for each readable revision.
pub(super) fn cells<T>(history: &RevisionHistory) -> BTreeMap<String, OnceCell<T>> {
    let revisions = history.readable_revisions();
    let cells = revisions.map(|revision| (revision.name.clone(), OnceCell::new()));
    cells.collect()
}
