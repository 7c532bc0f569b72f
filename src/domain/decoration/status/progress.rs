//! How far a decoration has been rolled out, by CollaSet.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::collaset::observed::set_name;
use crate::domain::decoration::Decoration;
use crate::domain::decoration::choice::is_reached;
use crate::domain::decoration::labels::decorations_of;
use crate::domain::decoration::members::{Instance, Member};
use crate::domain::decoration::observed::ObservedDecoration;

/// How far a decoration has been rolled out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Selected instances that their set does not remove.
    pub selected: usize,
    /// The selected instances that have the updated revision.
    pub updated: usize,
    /// The selected instances that the partition or the selector keeps on other revisions.
    pub kept: usize,
    /// What is left to do, by the name of the CollaSet. Sets without work are absent.
    pub sets: BTreeMap<String, SetWork>,
}

/// What a CollaSet has left to do for a decoration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetWork {
    /// Pods to update to the updated revision.
    pub behind: usize,
    /// Instances that get the updated revision with their next Pod.
    pub missing: usize,
    /// Names of Pods that have the updated revision and are not available.
    pub unavailable: Vec<String>,
    /// Pods that have the decoration although it selects them no longer, or although it is being deleted.
    pub to_remove: usize,
}

impl Progress {
    /// Whether nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.sets.is_empty()
    }

    /// Whether every selected instance has the updated revision, Pods that are not available included.
    pub fn is_everywhere(&self) -> bool {
        self.updated == self.selected
    }
}

/// Measures the progress of a decoration that is not being deleted.
pub fn measure_progress(
    observed: &ObservedDecoration,
    publish: &Decoration,
    members: &[Member],
) -> Progress {
    let mut progress = Progress::default();
    let updated = publish.updated.as_deref();
    for member in members {
        for instance in member
            .instances
            .iter()
            .filter(|instance| !instance.is_leaving)
        {
            let is_held_back = publish.held_back.contains_key(&member.key.0);
            let is_wanted = updated.is_some()
                && is_reached(&publish.reach, member, instance)
                && !(is_held_back && instance.pod.is_some());
            progress.add_instance(&member.key.0, instance, updated, is_wanted);
        }
    }
    let selected: BTreeSet<&str> = members
        .iter()
        .flat_map(Member::pods)
        .map(|pod| &*pod.metadata.uid)
        .collect();
    for set in &observed.sets {
        if set.set.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if publish.held_back.contains_key(set_name(&set.set)) {
            continue;
        }
        let pods = set
            .pods
            .iter()
            .filter(|pod| !pod.is_terminating() && !pod.is_finished());
        let others = pods.filter(|pod| !selected.contains(&*pod.metadata.uid));
        let decorated = others.filter(|pod| decorations_of(pod).contains_key(&publish.name));
        let to_remove = decorated.count();
        if to_remove > 0 {
            let name = set_name(&set.set).to_owned();
            progress.sets.entry(name).or_default().to_remove = to_remove;
        }
    }
    progress
}

/// Counts the Pods that have a decoration that is being deleted, in any phase.
pub fn measure_removal(observed: &ObservedDecoration, decoration: &str) -> Progress {
    let sets = observed.sets.iter().filter_map(|set| {
        let pods = set.pods.iter();
        let decorated = pods.filter(|pod| decorations_of(pod).contains_key(decoration));
        let to_remove = decorated.count();
        let work = SetWork {
            to_remove,
            ..SetWork::default()
        };
        (to_remove > 0).then(|| (set_name(&set.set).to_owned(), work))
    });
    Progress {
        sets: sets.collect(),
        ..Progress::default()
    }
}

impl Progress {
    fn add_instance(
        &mut self,
        set: &str,
        instance: &Instance,
        updated: Option<&str>,
        is_wanted: bool,
    ) {
        self.selected += 1;
        let has_updated = updated.is_some_and(|updated| instance.has_revision(updated));
        self.updated += usize::from(has_updated);
        if !is_wanted && !has_updated {
            self.kept += 1;
            return;
        }
        let is_available = instance.pod.as_ref().is_some_and(|pod| pod.is_available());
        if has_updated && is_available {
            return;
        }
        let work = self.sets.entry(set.to_owned()).or_default();
        match &instance.pod {
            None => work.missing += 1,
            Some(pod) if has_updated => work.unavailable.push(pod.metadata.name.clone()),
            Some(_) => work.behind += 1,
        }
    }
}
