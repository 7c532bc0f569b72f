//! Which revisions of which decorations a member of a CollaSet should have.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Decoration, DecorationRevisions, MemberKey, Reach};

/// A member of a CollaSet, as far as its decorations depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The key by which a partition knows the member. The new Pod of a replacement has the key of its origin.
    pub key: &'a MemberKey,
    /// The labels of [`super::labels::selection_labels`].
    pub labels: &'a BTreeMap<String, String>,
    /// The decorations that the member has: those of its Pod, otherwise those recorded for its instance ID. For the new
    /// Pod of a replacement, those of its origin.
    pub stable: &'a DecorationRevisions,
    /// Whether the member has a Pod.
    pub is_running: bool,
    /// The generation of the set, if the member has a Pod that is out of the scope of the set's rollout. Kuperator may
    /// have held back the decorations of such a member.
    pub unscoped: Option<i64>,
    /// Whether the set has just added the instance ID. A partition does not count such a member among those that it
    /// keeps, so that a set that grows disturbs no running Pod.
    pub is_new: bool,
}

/// Returns the revision of each decoration that the member should have.
///
/// - A member that the rollout reaches gets the updated revision.
/// - A member that it does not reach keeps the revision that it has, even if a user has deleted that revision. Without one, it gets the current revision of the
///   PodDecoration. Without a current revision, it is not decorated.
/// - A decoration that can't be used changes nothing.
pub fn effective_revisions(
    decorations: &[Arc<Decoration>],
    member: Member<'_>,
) -> DecorationRevisions {
    let wanted = decorations.iter().filter_map(|decoration| {
        let revision = effective_revision(decoration, member)?;
        Some((decoration.name.clone(), revision.to_owned()))
    });
    wanted.collect()
}

/// Returns the revision of one decoration that the member should have.
pub fn effective_revision<'a>(decoration: &'a Decoration, member: Member<'a>) -> Option<&'a str> {
    let held = member.stable.get(&decoration.name).map(String::as_str);
    if decoration.deleting {
        return None;
    }
    if decoration.invalid.is_some() || decoration.holds_back(member) {
        return held;
    }
    if !decoration.selects(member.labels) {
        return None;
    }
    let updated = decoration.updated.as_deref();
    if decoration.reaches(member) && updated.is_some() {
        return updated;
    }
    let is_stored = |name: &&str| decoration.revisions.contains_key(*name);
    let current = decoration.current.as_deref();
    match held {
        // A revision that is not stored any more can't be applied to another Pod.
        Some(held) if member.is_running => Some(held),
        Some(held) => [Some(held), current, updated]
            .into_iter()
            .flatten()
            .find(is_stored),
        None => current.filter(is_stored),
    }
}

impl Decoration {
    /// Whether it selects a member with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(labels))
    }

    fn holds_back(&self, member: Member<'_>) -> bool {
        let generation = self.held_back.get(&member.key.0);
        generation.is_some() && generation == member.unscoped.as_ref()
    }

    fn reaches(&self, member: Member<'_>) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Selector(selector) => selector.matches(member.labels),
            Reach::Members(keys) => member.is_new || keys.contains(member.key),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::selector::Selector;
    use crate::domain::decoration::DecorationRevision;

    fn selector(labels: Value) -> Selector {
        let selector = serde_json::from_value(json!({ "matchLabels": labels })).unwrap();
        Selector::compile(&selector).unwrap()
    }

    fn decoration(reach: Reach) -> Decoration {
        let revisions = ["log-1", "log-2"].map(|name| {
            let revision = DecorationRevision {
                name: name.into(),
                ..DecorationRevision::default()
            };
            (name.to_owned(), Arc::new(revision))
        });
        Decoration {
            name: "log".into(),
            selector: Some(selector(json!({ "app": "web" }))),
            reach,
            updated: Some("log-2".into()),
            revisions: revisions.into(),
            ..Decoration::default()
        }
    }

    /// The revision for a member of ID 1 with the label `app=web`, which has `held`.
    fn wanted(decoration: &Decoration, held: Option<&str>, is_new: bool) -> Option<String> {
        wanted_of(decoration, held, is_new, false)
    }

    fn wanted_of(
        decoration: &Decoration,
        held: Option<&str>,
        is_new: bool,
        is_running: bool,
    ) -> Option<String> {
        let labels = [("app", "web"), ("id", "1")];
        let labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let stable = held.map(|name| ("log".to_owned(), name.to_owned()));
        let member = Member {
            key: &("web".to_owned(), 1),
            labels: &labels,
            stable: &stable.into_iter().collect(),
            unscoped: Some(3),
            is_running,
            is_new,
        };
        effective_revision(decoration, member).map(str::to_owned)
    }

    #[test]
    fn member_within_reach_gets_updated_revision() {
        let key = ("web".to_owned(), 1);
        for reach in [
            Reach::All,
            Reach::Selector(selector(json!({ "id": "1" }))),
            Reach::Members([key].into()),
        ] {
            let decoration = decoration(reach);
            for held in [None, Some("log-1"), Some("log-2"), Some("log-0")] {
                assert_eq!(wanted(&decoration, held, false).as_deref(), Some("log-2"));
            }
        }
    }

    #[test]
    fn member_beyond_reach_keeps_its_revision() {
        let away = [
            Reach::Selector(selector(json!({ "id": "2" }))),
            Reach::Members([("web".to_owned(), 2)].into()),
            Reach::Members([("api".to_owned(), 1)].into()),
        ];
        for reach in away {
            let mut decoration = decoration(reach);
            assert_eq!(wanted(&decoration, None, false), None);
            assert_eq!(
                wanted(&decoration, Some("log-1"), false).as_deref(),
                Some("log-1")
            );
            assert_eq!(
                wanted(&decoration, Some("log-2"), false).as_deref(),
                Some("log-2")
            );
            let is_partition = matches!(decoration.reach, Reach::Members(_));
            let of_new = is_partition.then_some("log-2");
            assert_eq!(wanted(&decoration, None, true).as_deref(), of_new, "new");
            decoration.current = Some("log-1".into());
            assert_eq!(wanted(&decoration, None, false).as_deref(), Some("log-1"));
            assert_eq!(
                wanted(&decoration, Some("log-0"), false).as_deref(),
                Some("log-1"),
                "lost"
            );
            let of_pod = wanted_of(&decoration, Some("log-0"), false, true);
            assert_eq!(of_pod.as_deref(), Some("log-0"), "its Pod keeps it");
            decoration.current = Some("log-0".into());
            assert_eq!(
                wanted(&decoration, None, false),
                None,
                "the current revision is lost"
            );
            assert_eq!(
                wanted(&decoration, Some("log-0"), false).as_deref(),
                Some("log-2")
            );
        }
    }

    #[test]
    fn deleted_decoration_goes_and_invalid_one_stays() {
        let mut decoration = decoration(Reach::All);
        decoration.invalid = Some("spec.selector: …".into());
        assert_eq!(wanted(&decoration, None, true), None);
        assert_eq!(
            wanted(&decoration, Some("log-1"), false).as_deref(),
            Some("log-1")
        );
        decoration.deleting = true;
        assert_eq!(wanted(&decoration, Some("log-1"), false), None);
    }

    #[test]
    fn member_held_back_by_kuperator_keeps_what_it_has() {
        let mut decoration = decoration(Reach::All);
        decoration.held_back = [("web".to_owned(), 3)].into();
        assert_eq!(wanted(&decoration, None, false), None);
        assert_eq!(
            wanted(&decoration, Some("log-1"), false).as_deref(),
            Some("log-1")
        );
        decoration.held_back = [("web".to_owned(), 2), ("api".to_owned(), 3)].into();
        assert_eq!(
            wanted(&decoration, None, false).as_deref(),
            Some("log-2"),
            "the set has changed"
        );
    }

    #[test]
    fn unselected_member_is_not_decorated() {
        let mut decoration = decoration(Reach::All);
        decoration.selector = Some(selector(json!({ "app": "api" })));
        assert_eq!(wanted(&decoration, Some("log-1"), false), None);
        decoration.selector = None;
        assert_eq!(wanted(&decoration, Some("log-1"), true), None);
        decoration.selector = Some(Selector::default());
        assert_eq!(wanted(&decoration, None, false).as_deref(), Some("log-2"));
    }

    #[test]
    fn nothing_changes_before_first_revision_is_stored() {
        let mut decoration = decoration(Reach::All);
        decoration.updated = None;
        assert_eq!(wanted(&decoration, None, true), None);
        assert_eq!(
            wanted(&decoration, Some("log-1"), false).as_deref(),
            Some("log-1")
        );
    }
}
