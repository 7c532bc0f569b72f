//! Finds the stable revision if no status names it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::collaset::observed::Revision;

/// Names of revisions that Pods and pool entries refer to, with the number of Pods of each.
pub type RevisionUse = BTreeMap<String, usize>;

/// Returns the stable revision. If no revision is in use, it is the revision of the template. Otherwise it is the
/// revision that the latest revision names in its annotation, if it exists. Therefore the loss of the status neither
/// ends nor begins a rollout. The same holds if a user recreates the set with the template from before the rollout,
/// which takes the rollout back.
///
/// Without the annotation, as for revisions by Kuperator, it is the revision with the most Pods among those in use
/// except the revision of the template, because a canary has fewer Pods. If the template was applied again and has at
/// least as many Pods, its revision is the stable one. Its stored number shows that the template was applied again: it
/// is lower than the number of the other revision.
pub fn stable_revision(
    updated: &Arc<Revision>,
    readable: &[Arc<Revision>],
    in_use: &RevisionUse,
) -> Arc<Revision> {
    let pods = |revision: &Revision| in_use.get(&revision.name);
    let latest = readable.iter().max_by_key(|r| r.revision);
    let stable_name = latest.and_then(|latest| latest.stable.as_ref());
    let stable = readable.iter().find(|r| stable_name == Some(&r.name));
    if let Some(stable) = stable.filter(|_| !in_use.is_empty()) {
        return Arc::clone(stable);
    }
    let others = readable.iter().filter(|r| r.name != updated.name);
    let others = others.filter(|r| pods(r).is_some());
    let Some(other) = others.max_by_key(|r| (pods(r), Reverse(r.revision))) else {
        return Arc::clone(updated);
    };
    let stored = readable.iter().find(|r| r.name == updated.name);
    let is_former = stored.is_some_and(|stored| stored.revision < other.revision);
    let is_taken_back = is_former && pods(updated) >= pods(other);
    Arc::clone(if is_taken_back { updated } else { other })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stable revision without an annotation. `updated` is the revision of the template; `revisions` have a number,
    /// a name and a number of Pods.
    fn stable(updated: &str, revisions: &[(i64, &str, usize)]) -> String {
        noted(updated, revisions, None)
    }

    /// Like [`stable`], with the annotation of all revisions.
    fn noted(updated: &str, revisions: &[(i64, &str, usize)], note: Option<&str>) -> String {
        let stored = |number, name: &str| {
            Arc::new(Revision {
                name: name.to_owned(),
                revision: number,
                stable: note.map(str::to_owned),
                ..Revision::default()
            })
        };
        let in_use = revisions
            .iter()
            .map(|(_, name, pods)| ((*name).to_owned(), *pods));
        let readable: Vec<_> = revisions
            .iter()
            .map(|(n, name, _)| stored(*n, name))
            .collect();
        stable_revision(&stored(9, updated), &readable, &in_use.collect())
            .name
            .clone()
    }

    #[test]
    fn revision_that_most_pods_are_of_is_stable() {
        for canary in [0, 1, 2] {
            let revisions = [(1, "former", 2), (2, "canary", canary)];
            for template in ["former", "canary", "third"] {
                assert_eq!(
                    stable(template, &revisions),
                    "former",
                    "{template} {canary}"
                );
            }
        }
    }

    #[test]
    fn rollout_targets_revision_of_most_pods() {
        assert_eq!(stable("new", &[(1, "former", 1), (2, "new", 2)]), "former");
        let applied_again = [(1, "former", 1), (2, "older", 2)];
        assert_eq!(stable("older", &applied_again), "former");
    }

    #[test]
    fn template_that_few_pods_are_of_is_rolled_out() {
        assert_eq!(
            stable("old", &[(1, "old", 1), (2, "present", 2)]),
            "present"
        );
    }

    #[test]
    fn noted_revision_is_stable_while_it_exists() {
        let revisions = [(2, "canary", 2), (3, "former", 1)];
        for note in ["former", "canary"] {
            assert_eq!(noted("former", &revisions, Some(note)), note);
        }
        assert_eq!(noted("canary", &revisions, Some("gone")), "canary");
    }

    #[test]
    fn template_is_stable_if_no_other_revision_is_used() {
        assert_eq!(stable("new", &[]), "new");
    }

    #[test]
    fn stable_note_without_pods_is_ignored() {
        let former = Arc::new(Revision {
            name: "former".to_owned(),
            stable: Some("former".to_owned()),
            ..Revision::default()
        });
        let updated = Arc::new(Revision::default());
        let stable = stable_revision(&updated, &[former], &RevisionUse::new());
        assert_eq!(stable, updated);
    }
}
