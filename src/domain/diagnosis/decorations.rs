//! The PodDecorations that a Pod of a CollaSet has or should have, and why it does not have their updated revisions.
//!
//! | File | Content |
//! |---|---|
//! | `decoration_stays` | why a Pod stays as it is |
//! | `decoration_waits` | what the update of a Pod waits for |

use std::collections::BTreeMap;

use super::facts::{DecorationFacts, DecorationVerdict, OperationFacts};
use super::{ObservedPod, PodController, decoration_stays, decoration_waits};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::api::selector::Selector;
use crate::domain::collaset::observed::set_name;
use crate::domain::decoration::effective::{Member, effective_revision};
use crate::domain::decoration::labels::{decorated_labels, decorations_of, selection_labels};
use crate::domain::decoration::stored::{StoredDecoration, read_stored};
use crate::domain::decoration::{DecorationRevision, DecorationRevisions, MemberKey};
use crate::domain::pod::Pod;

/// The PodDecorations that the Pod has or should have, sorted by name. Empty if no CollaSet controls the Pod.
pub fn decoration_facts(
    observed: &ObservedPod,
    operations: &[OperationFacts],
) -> Vec<DecorationFacts> {
    let Some(PodController::CollaSet(set)) = &observed.controller else {
        return Vec::new();
    };
    let Some(objects) = &observed.context.decorations else {
        let unknown = |(name, revision)| DecorationFacts {
            name,
            revision: Some(revision),
            wanted_revision: None,
            verdict: DecorationVerdict::Unknown,
            reason: None,
        };
        let on_pod = decorations_of(&observed.pod).into_iter();
        return on_pod.map(unknown).collect();
    };
    let mut facts = judge_decorations(set, &observed.pod, objects);
    let leaving = decoration_stays::leaving_reason(observed, set, operations);
    for facts in &mut facts {
        let differs = [DecorationVerdict::Waits, DecorationVerdict::MayStay];
        if !differs.contains(&facts.verdict) {
            continue;
        }
        if let Some(leaving) = &leaving {
            facts.verdict = DecorationVerdict::Stays;
            facts.wanted_revision.clone_from(&facts.revision);
            facts.reason = Some(leaving.clone());
        } else if facts.verdict == DecorationVerdict::Waits {
            let wait =
                decoration_waits::wait_reason(observed, set, operations, objects, &facts.name);
            // The reason so far says why the revision is wanted.
            facts.reason = Some(match facts.reason.take() {
                Some(reason) => format!("{reason}; {wait}"),
                None => wait,
            });
        }
    }
    facts
}

/// Whether `maxUnavailable` of the set may delay a change of the Pod's decorations. If so, the diagnosis needs the Pods
/// of the set.
pub fn may_wait_for_max_unavailable(set: &CollaSet, pod: &Pod, objects: &[PodDecoration]) -> bool {
    let update = set.spec.update_strategy.as_ref();
    update.is_some_and(|update| update.max_unavailable.is_some())
        && judge_decorations(set, pod, objects)
            .iter()
            .any(|facts| facts.verdict == DecorationVerdict::Waits)
}

/// Decides about each PodDecoration. The reason of a wait is not filled in yet.
fn judge_decorations(set: &CollaSet, pod: &Pod, objects: &[PodDecoration]) -> Vec<DecorationFacts> {
    let on_pod = decorations_of(pod);
    let case = Case {
        set,
        pod,
        key: &(set_name(set).to_owned(), instance_id(pod)),
        labels: &member_labels(set, pod, objects, &on_pod),
        on_pod: &on_pod,
    };
    let mut facts: BTreeMap<String, DecorationFacts> = on_pod
        .keys()
        .map(|name| {
            (
                name.clone(),
                case.removed(name, "it does not exist any more"),
            )
        })
        .collect();
    for object in objects {
        let name = object.metadata.name.clone().unwrap_or_default();
        match case.judge_decoration(object) {
            Some(judged) => facts.insert(name, judged),
            None => facts.remove(&name),
        };
    }
    facts.into_values().collect()
}

/// A negative ID is the ID of no member.
fn instance_id(pod: &Pod) -> i64 {
    let id = pod.label(keys::INSTANCE_ID).and_then(|id| id.parse().ok());
    id.unwrap_or(-1)
}

/// The labels by which PodDecorations select the Pod, as far as the Pod shows them: the labels of the Pod that no
/// decoration has set.
fn member_labels(
    set: &CollaSet,
    pod: &Pod,
    objects: &[PodDecoration],
    on_pod: &DecorationRevisions,
) -> BTreeMap<String, String> {
    let revisions = objects.iter().filter_map(|object| {
        let name = object.metadata.name.as_ref()?;
        let held = on_pod.get(name)?;
        read_stored(object, Some(held))
            .decoration
            .revisions
            .remove(held)
    });
    let revisions: Vec<_> = revisions.collect();
    let revisions: Vec<&DecorationRevision> =
        revisions.iter().map(|revision| &**revision).collect();
    let mut decorated = decorated_labels(&BTreeMap::new(), &revisions);
    let template = set.spec.template.pointer("/metadata/labels");
    decorated.retain(|key, value| {
        let of_template = template.and_then(|labels| labels.get(key)?.as_str());
        of_template != Some(value)
    });
    selection_labels(&BTreeMap::new(), [], Some((pod, &decorated)))
}

/// A Pod of a CollaSet with its decorations.
struct Case<'a> {
    set: &'a CollaSet,
    pod: &'a Pod,
    key: &'a MemberKey,
    labels: &'a BTreeMap<String, String>,
    on_pod: &'a DecorationRevisions,
}

impl Case<'_> {
    /// Decides about a PodDecoration. `None` if the Pod does not have it and should not have it.
    fn judge_decoration(&self, object: &PodDecoration) -> Option<DecorationFacts> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let held = self.on_pod.get(name).map(String::as_str);
        let stored = read_stored(object, held);
        let decoration = &stored.decoration;
        let updated = decoration.updated.as_deref();
        if decoration.deleting {
            return held.map(|_| self.removed(name, "it is being deleted"));
        }
        if let Some(problem) = &decoration.invalid {
            let concerns_pod = held.is_some() || may_select(object, self.labels);
            let reason = format!("it is invalid: {problem}");
            return concerns_pod.then(|| self.facts(name, DecorationVerdict::Stays, held, reason));
        }
        let is_selected = decoration.selects(self.labels) || lists_pod(object, self.pod);
        if let Some(hold) = &decoration.hold
            && is_selected
        {
            return Some(self.facts(name, DecorationVerdict::Stays, held, hold.clone()));
        }
        if let Some((verdict, reason)) = decoration_stays::held_back(&stored, self.set, self.pod) {
            let is_behind = match is_selected {
                true => held != updated,
                false => held.is_some(),
            };
            if is_behind {
                return Some(self.facts(name, verdict, held, reason));
            }
        }
        if !is_selected {
            return held.map(|_| self.removed(name, "it does not select the Pod"));
        }
        if held.is_some() && held == updated {
            return Some(self.up_to_date(name));
        }
        Some(self.judge_reach(object, &stored, held))
    }

    /// Decides about a selected Pod that does not have the updated revision.
    fn judge_reach(
        &self,
        object: &PodDecoration,
        stored: &StoredDecoration,
        held: Option<&str>,
    ) -> DecorationFacts {
        let mut decoration = stored.decoration.clone();
        // The status may list a Pod whose labels alone do not show that it is selected.
        decoration.selector = Some(Selector::default());
        let member = Member {
            is_running: true,
            key: self.key,
            labels: self.labels,
            stable: self.on_pod,
            unscoped: None,
            is_new: false,
        };
        let wanted = effective_revision(&decoration, member);
        let updated = decoration.updated.as_deref();
        let (name, verdict) = (&*decoration.name, DecorationVerdict::Waits);
        let wait = DecorationFacts {
            reason: None,
            ..self.facts(name, verdict, wanted, String::new())
        };
        match (stored.partition, wanted == held) {
            (Some(partition), true) => {
                let (verdict, reason) =
                    decoration_stays::partition_reason(object, stored, partition);
                self.facts(name, verdict, held, reason)
            }
            (Some(_), false) if wanted != updated => DecorationFacts {
                reason: Some(format!(
                    "it gets revision {} instead if the partition lets it",
                    updated.unwrap_or_default()
                )),
                ..wait
            },
            (None, true) => {
                let reason = decoration_stays::selector_reason(updated);
                self.facts(name, DecorationVerdict::Stays, held, reason)
            }
            _ => wait,
        }
    }

    fn facts(
        &self,
        name: &str,
        verdict: DecorationVerdict,
        wanted: Option<&str>,
        reason: String,
    ) -> DecorationFacts {
        let wanted = wanted.filter(|_| verdict != DecorationVerdict::MayStay);
        DecorationFacts {
            name: name.to_owned(),
            revision: self.on_pod.get(name).cloned(),
            wanted_revision: wanted.map(str::to_owned),
            verdict,
            reason: Some(reason),
        }
    }

    fn removed(&self, name: &str, reason: &str) -> DecorationFacts {
        self.facts(name, DecorationVerdict::Waits, None, reason.to_owned())
    }

    fn up_to_date(&self, name: &str) -> DecorationFacts {
        let held = self.on_pod.get(name).map(String::as_str);
        DecorationFacts {
            reason: None,
            ..self.facts(name, DecorationVerdict::UpToDate, held, String::new())
        }
    }
}

/// Whether an invalid PodDecoration selects the Pod, or would perhaps do so if its selector could be used.
fn may_select(object: &PodDecoration, labels: &BTreeMap<String, String>) -> bool {
    let selector = object.spec.selector.as_ref();
    let compiled = selector.map(Selector::compile);
    compiled.is_some_and(|compiled| compiled.map_or(true, |selector| selector.matches(labels)))
}

/// Whether the status lists the Pod, which means that the controller has found it selected by the present spec.
fn lists_pod(object: &PodDecoration, pod: &Pod) -> bool {
    let details = object.status.iter().flat_map(|status| &status.details);
    let mut pods = details.flat_map(|details| &details.pods);
    pods.any(|detail| detail.name == pod.metadata.name)
}
