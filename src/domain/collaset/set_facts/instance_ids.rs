//! Which instance ID a Pod has, and which IDs are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::SetFacts;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::domain::collaset::observed::{Pvc, owns_entry};
use crate::domain::collaset::pvcs;
use crate::domain::pod::Pod;

impl SetFacts<'_> {
    /// Gives an instance ID to each Pod that has no ID of its own. This function prefers an ID that the pool records
    /// and that no Pod has, because it most likely belonged to the Pod. Otherwise it takes the lowest free ID that has
    /// no volumes of other Pods. The next plan gives the same IDs, so they need not be stored at once.
    pub(super) fn number_pods(&mut self) {
        let misnumbered = std::mem::take(&mut self.misnumbered);
        let has_other = |pod: &Arc<Pod>| {
            let id = self.instance_id_of(pod);
            id.is_some_and(|id| self.members.contains_key(&id))
        };
        let (doubles, unnumbered): (Vec<_>, Vec<_>) = misnumbered.into_iter().partition(has_other);
        self.misnumbered = doubles;
        if unnumbered.is_empty() {
            return;
        }
        let recorded = self.recorded_ids.iter().copied();
        let mut vacant: BTreeSet<i64> = recorded.filter(|id| self.is_id_vacant(*id)).collect();
        let halves = self.origin_names_by_half();
        let mut lowest = 0;
        let set = &self.observed.set;
        for pod in unnumbered {
            // Neither take the ID reserved for the new Pod of another pair, nor an ID for which the set has other PVCs.
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_own = |pvc: &Pvc| pvc.terminating || pod.spec.pvcs.contains(&pvc.name);
            let suits = |id: &i64| {
                halves.get(id).is_none_or(|of| Some(&**of) == origin)
                    && self
                        .owned_pvcs_with_id(*id)
                        .all(|pvc| is_own(pvc) || self.is_pvc_spare(&pod, pvc))
            };
            let recorded_id = vacant.iter().copied().find(suits);
            let id = recorded_id.unwrap_or_else(|| {
                let is_free = |id: i64| !self.recorded_ids.contains(&id) && self.is_id_vacant(id);
                while !is_free(lowest) {
                    lowest += 1;
                }
                // Skip an ID for which a former set of this name has left volumes: the Pod would take them together
                // with the ID.
                let is_empty = |id: i64| {
                    let mut pvcs = self.pvcs_with_id(id).iter();
                    pvcs.all(|pvc| is_own(pvc) || !pvcs::is_usable_pvc(set, pvc))
                };
                let mut id = lowest;
                while !(is_free(id) && suits(&id) && is_empty(id)) {
                    id += 1;
                }
                id
            });
            vacant.remove(&id);
            self.members.insert(id, pod);
        }
    }

    /// Names of the origins of replace pairs, by the instance ID of the new Pod.
    pub fn origin_names_by_half(&self) -> BTreeMap<i64, String> {
        let new = |origin: &Pod| parse_instance_id(origin.label(keys::REPLACE_PAIR_NEW_ID)?);
        let members = self.members.values();
        let pairs = members.filter_map(|origin| Some((new(origin)?, origin.metadata.name.clone())));
        pairs.collect()
    }

    fn is_id_vacant(&self, id: i64) -> bool {
        let has_ended = self.finished_by_id.contains_key(&id);
        !has_ended && !self.is_id_held(id) && !self.foreign.contains(&id)
    }

    /// IDs of the pool that belong to Pods of the set (`own`), or to other sets.
    pub(super) fn pool_ids(&self, own: bool) -> BTreeSet<i64> {
        let contexts = self.observed.pool.iter().flat_map(|pool| &pool.contexts);
        contexts
            .filter(|c| {
                self.is_own_entry(&c.data) == own && !(own && c.data.contains_key(data::REPLACED))
            })
            .map(|c| c.id)
            .collect()
    }

    /// Whether an entry of the pool belongs to the set.
    pub fn is_own_entry(&self, data: &BTreeMap<String, String>) -> bool {
        owns_entry(&self.observed.set, data)
    }

    /// Whether a Pod without an owner that the selector does not match has the name of this instance. Only names under
    /// `PersistentSequence` can be taken.
    pub fn is_name_taken(&self, id: i64) -> bool {
        if !self.strategy.sequence {
            return false;
        }
        let name = self.persistent_pod_name(id);
        let mut orphans = self.observed.orphans.iter();
        orphans.any(|pod| {
            let is_out = !self.selector.matches(&pod.metadata.labels);
            pod.metadata.name == name && is_out
        })
    }

    /// Whether the set has a Pod with this instance ID, or a finished Pod whose successor it creates later. A
    /// terminating Pod does not count.
    pub fn has_pod_with_id(&self, id: i64) -> bool {
        self.members.contains_key(&id) || self.recreated_later.contains_key(&id)
    }

    /// Whether an existing Pod prevents the creation of another Pod with this instance ID. A persistent name is free
    /// only when the Pod is gone (contract 6.0).
    pub fn is_id_held(&self, id: i64) -> bool {
        self.has_pod_with_id(id)
            || (self.strategy.sequence
                && (self.terminating.contains_key(&id) || self.finished_by_id.contains_key(&id)))
    }

    /// The instance ID of a Pod. Under `PersistentSequence` it is the ID in the Pod's name. Otherwise it is the ID of
    /// the PVCs that the Pod mounts and that belong to the set, or else the ID in the Pod's label. The label comes
    /// last, because somebody may have edited it by hand. If PVCs had another ID than their Pod, the set would delete
    /// them or mount them into another Pod.
    pub fn instance_id_of(&self, pod: &Pod) -> Option<i64> {
        let carried = pod.label(keys::INSTANCE_ID).and_then(parse_instance_id);
        let named = || {
            let suffix = pod.metadata.name.strip_prefix(self.name)?;
            let suffix = suffix.strip_prefix('-')?;
            let id = parse_instance_id(suffix)?;
            let is_known = carried == Some(id) || self.recorded_ids.contains(&id);
            (is_known || !may_be_random(suffix)).then_some(id)
        };
        let id_in_name = match self.strategy.sequence {
            true => named(),
            false => None,
        };
        id_in_name
            .or_else(|| self.instance_id_of_pvcs(pod))
            .or(carried)
    }

    /// The instance ID of the set's PVCs that a Pod mounts; `None` if they do not all have the same ID.
    pub fn instance_id_of_pvcs(&self, pod: &Pod) -> Option<i64> {
        let pvc_names = pod.spec.pvcs.iter();
        let mut ids = pvc_names.filter_map(|pvc_name| self.owned_pvc_ids.get(pvc_name.as_str()));
        let first = ids.next()?;
        ids.all(|id| id == first).then_some(*first)
    }

    /// The name of the Pod of an ID under `PersistentSequence` (contract 6.0).
    pub fn persistent_pod_name(&self, id: i64) -> String {
        format!("{}-{id}", self.name)
    }
}

/// Whether a suffix of digits may be random. Under naming Random the API server chooses five characters, among
/// them these digits.
fn may_be_random(suffix: &str) -> bool {
    suffix.len() == 5 && suffix.chars().all(|c| "2456789".contains(c))
}

pub(super) fn parse_instance_id(id: &str) -> Option<i64> {
    id.parse().ok().filter(|id| *id >= 0)
}
