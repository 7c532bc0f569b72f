//! Claims of the set whose labels somebody has edited. They are read as they were made, and get their labels back: by them a claim that a Pod
//! mounts would serve another instance, or be deleted as left over.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{instance, is_generated, is_owned, prefix, template_name};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::domain::collaset::observed::{Claim, Observed};
use crate::domain::collaset::revision::data::{claim_name, claim_templates};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// What is to be read in the place of an observation, and the claims with the labels that they are to get back.
pub fn corrected(observed: &Observed) -> (Cow<'_, Observed>, Vec<(Arc<Claim>, LabelPatch)>) {
    let wrong: Vec<_> = observed
        .claims
        .iter()
        .enumerate()
        .filter(|(_, claim)| is_owned(&observed.set, claim))
        .filter_map(|(at, claim)| Some((at, labels(observed, claim)?)))
        .collect();
    if wrong.is_empty() {
        return (Cow::Borrowed(observed), Vec::new());
    }
    let mut as_made = observed.clone();
    let mended = wrong.into_iter().map(|(at, labels)| {
        let mut claim = Claim::clone(&observed.claims[at]);
        claim.labels.extend(labels.clone());
        as_made.claims[at] = Arc::new(claim);
        let labels = labels.into_iter().map(|(key, value)| (key, Some(value)));
        (
            Arc::clone(&observed.claims[at]),
            LabelPatch(labels.collect()),
        )
    });
    let mended = mended.collect();
    (Cow::Owned(as_made), mended)
}

/// The labels of a claim that are other than it was made with; `None` where that is none, as far as can be known.
fn labels(observed: &Observed, claim: &Claim) -> Option<BTreeMap<String, String>> {
    let template = template(observed, claim).map(|of| (keys::PVC_TEMPLATE_NAME.to_owned(), of));
    let id = instance_of_pod(observed, claim).map(|id| (keys::INSTANCE_ID.to_owned(), id));
    let labels: BTreeMap<_, _> = template.into_iter().chain(id).collect();
    (!labels.is_empty()).then_some(labels)
}

/// The template by which a claim is named, where it says to be of another.
fn template(observed: &Observed, claim: &Claim) -> Option<String> {
    let revisions = observed.revisions.iter();
    let stored = revisions.flat_map(|revision| claim_templates(&revision.data));
    let templates = stored.chain(&observed.set.spec.volume_claim_templates);
    let is_of = |name: &&str| is_generated(&prefix(&observed.set, name), &claim.name);
    let mut names = templates.map(claim_name).filter(is_of);
    let name = names.next()?;
    let is_told = names.all(|other| other == name); // of long names the prefix is cut
    (is_told && template_name(claim) != Some(name)).then(|| name.to_owned())
}

/// The instance ID that the Pods of the set which mount a claim agree on, where the claim carries that of another Pod, which mounts one that
/// was made for it. Where no other has it the claim is believed: the label of its Pod may have been edited as well.
fn instance_of_pod(observed: &Observed, claim: &Claim) -> Option<String> {
    let said = claim.labels.get(keys::INSTANCE_ID)?;
    let own = |claim: &Claim| {
        let pods = observed.mounts.get(&claim.name).into_iter().flatten();
        pods.filter(|pod| is_member(&observed.set, pod))
    };
    let carried = own(claim).next()?.label(keys::INSTANCE_ID)?;
    let agrees = |pod: &Arc<Pod>| pod.label(keys::INSTANCE_ID) == Some(carried);
    if carried == said || carried.parse::<i64>().is_err() || !own(claim).all(agrees) {
        return None;
    }
    let is_rightful = |other: &&Arc<Claim>| {
        let is_other = other.name != claim.name && is_owned(&observed.set, other);
        let mut pods = own(other);
        is_other
            && instance(other) == instance(claim)
            && template_name(other) == template_name(claim)
            && pods.any(|pod| pod.label(keys::INSTANCE_ID) == Some(said))
    };
    let is_contested = observed.claims.iter().any(|other| is_rightful(&other));
    is_contested.then(|| carried.to_owned())
}

fn is_member(set: &CollaSet, pod: &Pod) -> bool {
    let controller = pod.controller().map(|owner| &owner.uid);
    controller.is_some() && controller == set.metadata.uid.as_ref()
}
