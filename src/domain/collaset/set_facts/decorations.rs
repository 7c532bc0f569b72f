//! The decorations of members: those that a member has, and those that it should have.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::SetFacts;
use crate::api::keys;
use crate::api::reserved_labels::is_selected;
use crate::api::resourcecontext::data::{self, origin_of};
use crate::domain::collaset::composition::{self, Composition, composition_name};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::revision::data::template_labels;
use crate::domain::decoration::apply::ApplyFailure;
use crate::domain::decoration::effective::{Member, effective_revisions};
use crate::domain::decoration::labels::{
    decorated_labels, decorations_of, from_json, own_labels, selection_labels,
};
use crate::domain::decoration::{Decoration, DecorationRevision, DecorationRevisions, Reach};
use crate::domain::pod::Pod;

/// If the members of the set times the PodDecorations of the namespace are more, the pool records only decorations whose
/// rollout is partial. The record of one decoration takes about 100 bytes for each member, and the pool is one object of
/// limited size.
const MAX_RECORDS: usize = 1_000;

/// A composition, or why a decoration can't be applied to the template.
pub type ComposedOrFailure = Result<Rc<Composition>, ApplyFailure>;

impl SetFacts<'_> {
    /// What the Pod is made of. `None` if a part is not stored any more.
    pub fn composition_of(&self, pod: &Pod) -> Option<Rc<Composition>> {
        let revision = pod.label(keys::REVISION)?;
        match decorations_of(pod) {
            none if none.is_empty() => self.find_composition(revision),
            decorations => self.find_composition(&composition_name(revision, &decorations)),
        }
    }

    /// Finds a composition by its name. `None` if a part is not stored any more, or can't be applied.
    pub fn find_composition(&self, name: &str) -> Option<Rc<Composition>> {
        if let Some(known) = self.compositions.borrow().get(name) {
            return known.clone().ok();
        }
        let (template, decorations) = composition::split_name(name);
        let template = self.history.find_revision(template)?;
        let stored = self.stored_decorations();
        let revisions: Option<Vec<_>> = decorations
            .map(|name| stored.get(name).map(|revision| &**revision))
            .collect();
        self.compose_revisions(name.to_owned(), template, &revisions?)
            .ok()
    }

    /// Applies decorations to a revision of the template.
    pub fn compose(
        &self,
        template: &Arc<Revision>,
        decorations: &DecorationRevisions,
    ) -> ComposedOrFailure {
        if let Some(known) = self.compositions.borrow().get(&template.name)
            && decorations.is_empty()
        {
            return known.clone();
        }
        let stored = self.stored_decorations();
        // A PodDecoration that can't be used leaves its revision on the Pod, even if that is not stored any more.
        let mut decorations = decorations.clone();
        decorations.retain(|_, name| stored.contains_key(name));
        let revisions = decorations.values().filter_map(|name| stored.get(name));
        let revisions: Vec<&DecorationRevision> = revisions.map(|r| &**r).collect();
        let name = composition_name(&template.name, &decorations);
        self.compose_revisions(name, template, &revisions)
    }

    fn compose_revisions(
        &self,
        name: String,
        template: &Arc<Revision>,
        revisions: &[&DecorationRevision],
    ) -> ComposedOrFailure {
        let mut known = self.compositions.borrow_mut();
        let composed = known.entry(name).or_insert_with(|| {
            let composition = Composition::decorated(template, revisions)?;
            self.check_selected(&composition, revisions)?;
            Ok(Rc::new(composition))
        });
        composed.clone()
    }

    /// Returns an error if decorations change labels of the template so that the selector of the set does not match any
    /// more. The set would release each Pod that gets these decorations, and create others without end.
    fn check_selected(
        &self,
        composition: &Composition,
        revisions: &[&DecorationRevision],
    ) -> Result<(), ApplyFailure> {
        let is_selected = |labels: BTreeMap<String, String>| is_selected(labels, &self.selector);
        let template = template_labels(&composition.template.data);
        let composed = template_labels(&composition.composed.data);
        if is_selected(composed) || !is_selected(template.clone()) {
            return Ok(());
        }
        let is_cause = |revision: &&&DecorationRevision| {
            !is_selected(decorated_labels(&template, &[**revision]))
        };
        let cause = revisions.iter().find(is_cause).or(revisions.last());
        let Some(cause) = cause else {
            return Ok(());
        };
        let keys = cause
            .template
            .metadata
            .iter()
            .flat_map(|patch| patch.labels.keys());
        let keys: Vec<&str> = keys.map(String::as_str).collect();
        Err(ApplyFailure {
            decoration: cause.decoration.clone(),
            message: format!(
                "spec.template.metadata: its labels ({}) change Pods so that spec.selector of CollaSet {}, which is {}, \
                 does not match them any more: remove the labels that this selector needs",
                keys.join(", "),
                self.name,
                self.selector
            ),
        })
    }

    /// The decorations that a member should have if its Pod is of this revision of the template. `entry` is its entry in
    /// the pool. `in_scope` says whether the rollout of the template includes the member.
    pub fn wanted_decorations(
        &self,
        (id, entry): (i64, Option<&BTreeMap<String, String>>),
        (pod, in_scope): (Option<&Pod>, bool),
        template: &Revision,
    ) -> WantedDecorations {
        if self.observed.decorations.is_empty() {
            return WantedDecorations::default();
        }
        let origin = entry.and_then(origin_of);
        let origin = origin.and_then(|id| Some((id, self.members.get(&id)?)));
        let stable = match (origin, pod) {
            (Some((_, origin)), _) => decorations_of(origin),
            (None, Some(pod)) => decorations_of(pod),
            (None, None) => recorded_decorations(entry),
        };
        let is_new = entry.is_some_and(|data| data.contains_key(data::JUST_CREATE));
        let generation = self.observed.set.metadata.generation;
        let key = (self.name.to_owned(), origin.map_or(id, |(id, _)| id));
        let effective = |labels: &BTreeMap<String, String>| {
            let member = Member {
                key: &key,
                labels,
                stable: &stable,
                unscoped: generation.filter(|_| pod.is_some() && !in_scope),
                is_running: pod.is_some(),
                is_new: is_new && pod.is_none() && origin.is_none(),
            };
            effective_revisions(&self.observed.decorations, member)
        };
        let of_next_pod = effective(&self.member_labels(id, None, template));
        let Some(pod) = pod else {
            return WantedDecorations::same(of_next_pod);
        };
        let of_pod = effective(&self.member_labels(id, Some(pod), template));
        let held = decorations_of(pod);
        let names = of_pod.keys().chain(of_next_pod.keys()).chain(held.keys());
        let sure = names.filter_map(|name| {
            let is_sure = of_pod.get(name) == of_next_pod.get(name);
            let revision = if is_sure {
                of_pod.get(name)
            } else {
                held.get(name)
            };
            Some((name.clone(), revision?.clone()))
        });
        WantedDecorations {
            sure: sure.collect(),
            by_all_labels: of_pod,
        }
    }

    /// The first PodDecoration that selects the next Pod of a member and for which the Pod must wait.
    pub fn holding_decoration(&self, id: i64, template: &Revision) -> Option<&Decoration> {
        // If the new revision is refused, Pods get the former one until the API server accepts it.
        let has_former = |d: &Decoration| d.is_refused && d.updated.is_some();
        let held = self.observed.decorations.iter();
        let held = held.filter(|d| d.hold.is_some() && !d.deleting && !has_former(d));
        let mut held = held.peekable();
        held.peek()?;
        let labels = self.member_labels(id, None, template);
        held.find(|decoration| decoration.selects(&labels))
            .map(|decoration| &**decoration)
    }

    /// The labels by which decorations select a member.
    fn member_labels(
        &self,
        id: i64,
        pod: Option<&Pod>,
        template: &Revision,
    ) -> BTreeMap<String, String> {
        let made_of = pod.map(|pod| self.present_labels(pod));
        selection_labels(
            &template_labels(&template.data),
            own_labels(id, &template.name),
            pod.zip(made_of.as_ref()),
        )
    }

    /// The labels that the present revision and the present decorations of a Pod have given it, and the labels that the
    /// set gives it.
    fn present_labels(&self, pod: &Pod) -> BTreeMap<String, String> {
        let own = self.revision_of(pod);
        let labels = own
            .map(|own| template_labels(&own.data))
            .unwrap_or_default();
        let stored = self.stored_decorations();
        let decorations = decorations_of(pod);
        let revisions = decorations.values().filter_map(|name| stored.get(name));
        let revisions: Vec<&DecorationRevision> = revisions.map(|r| &**r).collect();
        let mut labels = decorated_labels(&labels, &revisions);
        labels.extend(
            pod.label(keys::REVISION)
                .map(|own| (keys::REVISION.to_owned(), own.to_owned())),
        );
        labels
    }

    /// The first of these decorations whose revision is not stored any more.
    pub fn lost_decoration<'d>(
        &self,
        decorations: &'d DecorationRevisions,
    ) -> Option<(&'d String, &'d String)> {
        let stored = self.stored_decorations();
        decorations
            .iter()
            .find(|(_, revision)| !stored.contains_key(*revision))
    }

    /// The stored revisions of all PodDecorations of the namespace, by name.
    fn stored_decorations(&self) -> &composition::StoredDecorations {
        self.stored_decorations.get_or_init(|| {
            let decorations = self.observed.decorations.iter();
            let revisions = decorations.flat_map(|decoration| &decoration.revisions);
            let revisions = revisions.map(|(name, revision)| (name.clone(), Arc::clone(revision)));
            revisions.collect()
        })
    }

    /// A PodDecoration of the namespace.
    pub fn find_decoration(&self, name: &str) -> Option<&Arc<Decoration>> {
        let mut decorations = self.observed.decorations.iter();
        decorations.find(|decoration| decoration.name == name)
    }

    /// Of these decorations, those that the pool records in the entry of a member. In a large pool these are only those
    /// whose rollout does not reach all members. While a PodDecoration is not ready, which in most cases lasts only
    /// moments, nothing is added for it.
    pub fn to_record(
        &self,
        decorations: &DecorationRevisions,
        entry: Option<&BTreeMap<String, String>>,
    ) -> DecorationRevisions {
        let former = recorded_decorations(entry);
        let members = self.members.len().max(self.strategy.replicas);
        let is_large = members * self.observed.decorations.len() > MAX_RECORDS;
        let is_recorded = |name: &String| match self.find_decoration(name) {
            Some(decoration) if decoration.hold.is_some() => former.contains_key(name),
            Some(decoration) => !is_large || decoration.reach != Reach::All,
            None => false,
        };
        let mut recorded = decorations.clone();
        recorded.retain(|name, _| is_recorded(name));
        recorded
    }
}

/// The decorations that a member should have.
///
/// Somebody may have set labels on a single Pod: a user by hand, a webhook at its creation, or the API server, which
/// copies the zone of the node to the Pod. The next Pod of the member does not have such a label at first. If the set
/// recreated a Pod because of it, the next Pod would have to be recreated, too, without end. Therefore such labels have
/// an effect only if the change is possible in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WantedDecorations {
    /// Those that do not depend on such labels. The Pod keeps what it has of the others.
    pub sure: DecorationRevisions,
    /// Those by all labels of the Pod.
    pub by_all_labels: DecorationRevisions,
}

impl WantedDecorations {
    fn same(decorations: DecorationRevisions) -> WantedDecorations {
        WantedDecorations {
            sure: decorations.clone(),
            by_all_labels: decorations,
        }
    }
}

/// The decorations that an entry of the pool records.
fn recorded_decorations(entry: Option<&BTreeMap<String, String>>) -> DecorationRevisions {
    let recorded = entry.and_then(|data| data.get(data::DECORATIONS));
    recorded.map(|json| from_json(json)).unwrap_or_default()
}
