//! What of a plan can be done although the pool of instance IDs can't be written: whatever does not depend on an entry that
//! is not stored. A Pod that is made under an ID that nobody has written down could be made twice, and one that is given up
//! before its new revision is written down would be made again of the old one, and given up again: it does not even go off traffic. So
//! would one be that is deleted by name, where names persist.

use std::collections::BTreeMap;

use super::draft::changes;
use super::observed::Pool;
use super::plan::{ClaimChange, Plan, PodChange};
use super::pool::{DELETED, REPLACE_ORIGIN, REVISION, SCALE_IN};
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// The plan without its pool, and without what needs it. `stored` is the pool as it is.
pub fn without_pool(mut plan: Plan, stored: Option<&Pool>) -> Plan {
    let Some(wanted) = plan.pool.take() else {
        return plan;
    };
    let entries = Entries {
        stored: by_id(stored.map_or(&[], |pool| &pool.contexts)),
        wanted: by_id(&wanted),
    };
    plan.claims.retain(|change| match change {
        ClaimChange::Create { id, .. } => entries.stored.contains_key(id),
        ClaimChange::Patch { labels, .. } => entries.knows(labels),
        ClaimChange::Delete(_) | ClaimChange::LetGo(_) => true,
    });
    plan.pods.retain_mut(|change| match change {
        PodChange::Create { id, .. } => entries.is_written(*id),
        PodChange::Patch(patch) => {
            // The link to a new half, and a deletion, that are not stored can wait; what else is to be changed can't.
            if !entries.knows_as(&patch.labels, keys::REPLACE_PAIR_NEW_ID) {
                patch.labels.0.remove(keys::REPLACE_PAIR_NEW_ID);
            }
            let forgotten = id_of(&patch.pod).is_some_and(|id| !entries.is_deletion_written(id));
            if forgotten && matches!(patch.labels.0.get(keys::TO_DELETE), Some(Some(_))) {
                patch.labels.0.remove(keys::TO_DELETE);
                patch.annotations.remove(keys::SENT_AWAY);
            }
            let id = id_of(&patch.pod).filter(|_| patch.deletes);
            let is_written = id.is_none_or(|id| entries.is_written(id));
            entries.knows(&patch.labels) && is_written && changes(patch)
        }
        PodChange::Delete(pod, _) => {
            id_of(pod).is_none_or(|id| entries.is_written(id) || entries.goes(id))
        }
    });
    plan
}

fn id_of(pod: &Pod) -> Option<i64> {
    pod.label(keys::INSTANCE_ID)?.parse().ok()
}

type Data = BTreeMap<String, String>;

struct Entries<'a> {
    stored: BTreeMap<i64, &'a Data>,
    wanted: BTreeMap<i64, &'a Data>,
}

impl Entries<'_> {
    /// Whether what the Pod of an ID is made of is stored as it is wanted.
    fn is_written(&self, id: i64) -> bool {
        let (stored, wanted) = (self.stored.get(&id), self.wanted.get(&id));
        let told = |data: &&Data| [REVISION, REPLACE_ORIGIN].map(|key| data.get(key).cloned());
        stored.is_some() && stored.map(told) == wanted.map(told)
    }

    /// Whether the name by which the Pod of an ID is deleted is stored, if it is to be.
    fn is_deletion_written(&self, id: i64) -> bool {
        let named = |data: Option<&&Data>| data.and_then(|data| data.get(DELETED).cloned());
        named(self.stored.get(&id)) == named(self.wanted.get(&id))
    }

    /// Whether nobody wants the Pod of an ID.
    fn goes(&self, id: i64) -> bool {
        let wanted = self.wanted.get(&id);
        wanted.is_none_or(|data| data.contains_key(SCALE_IN))
    }

    /// Whether the instance ID that labels give is stored.
    fn knows(&self, labels: &LabelPatch) -> bool {
        self.knows_as(labels, keys::INSTANCE_ID)
    }

    /// The same of the ID under another key.
    fn knows_as(&self, labels: &LabelPatch, key: &str) -> bool {
        let given = labels.0.get(key).and_then(Option::as_ref);
        given.is_none_or(|id| id.parse().is_ok_and(|id| self.stored.contains_key(&id)))
    }
}

fn by_id(contexts: &[ContextDetail]) -> BTreeMap<i64, &Data> {
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
    fn only_what_is_written_down_is_built_upon() {
        let stored = Pool {
            contexts: vec![
                entry(0, &[(REVISION, "a")]),
                entry(1, &[(REVISION, "a")]),
                entry(2, &[(REVISION, "a")]),
            ],
            ..Pool::default()
        };
        let create = |id| PodChange::Create {
            id,
            body: json!({}),
        };
        let delete = |id| PodChange::Delete(pod(id), None);
        let claim = |id| ClaimChange::Create {
            id,
            template: "data".to_owned(),
            body: json!({}),
        };
        let kept = vec![
            create(0),
            delete(0),
            delete(2),
            delete(4),
            patch("other", 7),
            patch(keys::REPLACE_PAIR_NEW_ID, 1),
        ];
        let mut pods = kept.clone();
        pods.extend([
            create(1),
            create(3),
            delete(1),
            patch(keys::INSTANCE_ID, 3),
            patch(keys::REPLACE_PAIR_NEW_ID, 3),
        ]);
        let plan = Plan {
            pool: Some(vec![
                entry(0, &[(REVISION, "a"), ("more", "1")]),
                entry(1, &[(REVISION, "b")]),
                entry(2, &[(REVISION, "b"), (SCALE_IN, "true")]),
                entry(3, &[(REVISION, "b")]),
            ]),
            claims: vec![claim(1), claim(3)],
            pods,
            ..Plan::default()
        };
        let left = without_pool(plan, Some(&stored));
        assert_eq!(left.pods, kept);
        assert_eq!(left.claims, [claim(1)]);
        assert_eq!(left.pool, None);
    }
    #[test]
    fn pod_is_not_deleted_while_that_can_not_be_noted() {
        let pool = |marks: &[(&str, &str)]| Pool {
            contexts: vec![entry(0, marks)],
            ..Pool::default()
        };
        let plan = |data: &[(&str, &str)]| Plan {
            pool: Some(vec![entry(0, data)]),
            pods: vec![patch(keys::TO_DELETE, 1)],
            ..Plan::default()
        };
        let left = |stored: &[(&str, &str)], wanted: &[(&str, &str)]| {
            without_pool(plan(wanted), Some(&pool(stored))).pods.len()
        };
        let noted = [(DELETED, "web-0")];
        assert_eq!(left(&[], &noted), 0);
        assert_eq!(left(&noted, &noted), 1);
        assert_eq!(left(&[], &[]), 1);
    }
}
