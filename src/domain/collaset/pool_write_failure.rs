//! Reduces a plan to the writes that are safe while the pool of instance IDs can't be written: those that do not depend
//! on an entry that is not stored.
//!
//! If a Pod were created under an ID that is not stored, it could be created twice. If a Pod were deleted before the
//! new revision of its ID is stored, its successor would have the old revision and would be deleted again; therefore
//! such a Pod does not even go off traffic. Under `PersistentSequence` the same holds for a Pod that `podToDelete`
//! names.

use std::collections::BTreeMap;

use super::draft::changes_anything;
use super::observed::InstancePool;
use super::plan::{PodChange, PvcChange, SetPlan};
use super::pool::{DELETED, REPLACE_ORIGIN, REVISION, SCALE_IN};
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Returns the plan without the write of the pool, and without the writes that need it. `stored` is the present pool.
pub fn without_pool_writes(mut plan: SetPlan, stored: Option<&InstancePool>) -> SetPlan {
    let Some(wanted) = plan.pool.take() else {
        return plan;
    };
    let entries = StoredEntries {
        stored: entries_by_id(stored.map_or(&[], |pool| &pool.contexts)),
        wanted: entries_by_id(&wanted),
    };
    plan.pvcs.retain(|change| match change {
        PvcChange::Create { id, .. } => entries.stored.contains_key(id),
        PvcChange::Patch { labels, .. } => entries.stores_instance_id(labels),
        PvcChange::Delete(_) | PvcChange::Retain(_) => true,
    });
    plan.pods.retain_mut(|change| match change {
        PodChange::Create { id, .. } => entries.is_written(*id),
        PodChange::Patch(patch) => {
            // The label that links to a new Pod, and a deletion, can wait until their entry is stored. The other
            // changes of the Pod can't.
            if !entries.stores_instance_id_as(&patch.labels, keys::REPLACE_PAIR_NEW_ID) {
                patch.labels.0.remove(keys::REPLACE_PAIR_NEW_ID);
            }
            let forgotten = id_of(&patch.pod).is_some_and(|id| !entries.is_deletion_written(id));
            if forgotten && matches!(patch.labels.0.get(keys::TO_DELETE), Some(Some(_))) {
                patch.labels.0.remove(keys::TO_DELETE);
                patch.annotations.remove(keys::SENT_AWAY);
            }
            let id = id_of(&patch.pod).filter(|_| patch.deletes);
            let is_written = id.is_none_or(|id| entries.is_written(id));
            entries.stores_instance_id(&patch.labels) && is_written && changes_anything(patch)
        }
        PodChange::Delete(pod, _) => {
            id_of(pod).is_none_or(|id| entries.is_written(id) || entries.is_id_unwanted(id))
        }
    });
    plan
}

fn id_of(pod: &Pod) -> Option<i64> {
    pod.label(keys::INSTANCE_ID)?.parse().ok()
}

type EntryData = BTreeMap<String, String>;

struct StoredEntries<'a> {
    stored: BTreeMap<i64, &'a EntryData>,
    wanted: BTreeMap<i64, &'a EntryData>,
}

impl StoredEntries<'_> {
    /// Whether the stored entry already has the wanted revision and origin for the Pod of the ID.
    fn is_written(&self, id: i64) -> bool {
        let (stored, wanted) = (self.stored.get(&id), self.wanted.get(&id));
        let revision_and_origin =
            |data: &&EntryData| [REVISION, REPLACE_ORIGIN].map(|key| data.get(key).cloned());
        stored.is_some() && stored.map(revision_and_origin) == wanted.map(revision_and_origin)
    }

    /// Whether the stored entry already records, if wanted, which Pod is deleted because `podToDelete` names it.
    fn is_deletion_written(&self, id: i64) -> bool {
        let named = |data: Option<&&EntryData>| data.and_then(|data| data.get(DELETED).cloned());
        named(self.stored.get(&id)) == named(self.wanted.get(&id))
    }

    /// Whether the Pod of an ID is not wanted any more.
    fn is_id_unwanted(&self, id: i64) -> bool {
        let wanted = self.wanted.get(&id);
        wanted.is_none_or(|data| data.contains_key(SCALE_IN))
    }

    /// Whether the instance ID in these labels, if any, is stored.
    fn stores_instance_id(&self, labels: &LabelPatch) -> bool {
        self.stores_instance_id_as(labels, keys::INSTANCE_ID)
    }

    /// Whether the ID in the label with this key, if any, is stored.
    fn stores_instance_id_as(&self, labels: &LabelPatch, key: &str) -> bool {
        let given = labels.0.get(key).and_then(Option::as_ref);
        given.is_none_or(|id| id.parse().is_ok_and(|id| self.stored.contains_key(&id)))
    }
}

fn entries_by_id(contexts: &[ContextDetail]) -> BTreeMap<i64, &EntryData> {
    contexts.iter().map(|c| (c.id, &c.data)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::collaset::plan::PodPatch;

    fn entry(id: i64, data: &[(&str, &str)]) -> ContextDetail {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        ContextDetail { id, data }
    }

    fn pod(id: i64) -> Arc<Pod> {
        let labels = json!({ (keys::INSTANCE_ID): id.to_string() });
        serde_json::from_value(json!({ "metadata": { "uid": id.to_string(), "labels": labels } }))
            .unwrap()
    }

    fn patch(key: &str, id: i64) -> PodChange {
        let mut patch = PodPatch {
            pod: pod(0),
            ..PodPatch::default()
        };
        patch.labels.0.insert(key.to_owned(), Some(id.to_string()));
        PodChange::Patch(patch)
    }

    #[test]
    fn plan_without_pool_write_uses_stored_entries_only() {
        let stored = InstancePool {
            contexts: vec![
                entry(0, &[(REVISION, "a")]),
                entry(1, &[(REVISION, "a")]),
                entry(2, &[(REVISION, "a")]),
            ],
            ..InstancePool::default()
        };
        let create = |id| PodChange::Create {
            id,
            body: json!({}),
        };
        let delete = |id| PodChange::Delete(pod(id), None);
        let pvc = |id| PvcChange::Create {
            id,
            template: "data".to_owned(),
            body: json!({}),
        };
        let unaffected = vec![
            create(0),
            delete(0),
            delete(2),
            delete(4),
            patch("other", 7),
            patch(keys::REPLACE_PAIR_NEW_ID, 1),
        ];
        let mut pods = unaffected.clone();
        pods.extend([
            create(1),
            create(3),
            delete(1),
            patch(keys::INSTANCE_ID, 3),
            patch(keys::REPLACE_PAIR_NEW_ID, 3),
        ]);
        let plan = SetPlan {
            pool: Some(vec![
                entry(0, &[(REVISION, "a"), ("more", "1")]),
                entry(1, &[(REVISION, "b")]),
                entry(2, &[(REVISION, "b"), (SCALE_IN, "true")]),
                entry(3, &[(REVISION, "b")]),
            ]),
            pvcs: vec![pvc(1), pvc(3)],
            pods,
            ..SetPlan::default()
        };
        let remaining = without_pool_writes(plan, Some(&stored));
        assert_eq!(remaining.pods, unaffected);
        assert_eq!(remaining.pvcs, [pvc(1)]);
        assert_eq!(remaining.pool, None);
    }
    #[test]
    fn pod_is_not_deleted_while_that_cannot_be_noted() {
        let pool = |marks: &[(&str, &str)]| InstancePool {
            contexts: vec![entry(0, marks)],
            ..InstancePool::default()
        };
        let plan = |data: &[(&str, &str)]| SetPlan {
            pool: Some(vec![entry(0, data)]),
            pods: vec![patch(keys::TO_DELETE, 1)],
            ..SetPlan::default()
        };
        let remaining_pods = |stored: &[(&str, &str)], wanted: &[(&str, &str)]| {
            without_pool_writes(plan(wanted), Some(&pool(stored)))
                .pods
                .len()
        };
        let deleted_mark = [(DELETED, "web-0")];
        assert_eq!(remaining_pods(&[], &deleted_mark), 0);
        assert_eq!(remaining_pods(&deleted_mark, &deleted_mark), 1);
        assert_eq!(remaining_pods(&[], &[]), 1);
    }
}
