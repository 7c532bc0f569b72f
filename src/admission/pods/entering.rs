//! Pods that come under a rule by a change of their labels.
//!
//! A Pod is judged by what its rules see of it. What its spec went through before that no rule has held: a container that
//! is yet to restart, or a deadline that somebody set, would be lost to the budget later, without a claim.

use crate::admission::context::Context;
use crate::admission::gate;
use crate::admission::review::Verdict;
use crate::domain::inplace;
use crate::domain::pod::Pod;

/// The refusal of an UPDATE by which a Pod comes under a rule that did not cover it, while something is outstanding that
/// ends or restarts it.
pub fn refused(context: &Context, old: &Pod, new: &Pod) -> Option<Verdict> {
    let outstanding = inplace::outstanding(new)?;
    let index = &context.index;
    let before = index.rules_of(old);
    let entered = index
        .rules_of(new)
        .into_iter()
        .find(|rule| !before.contains(rule));
    let name = &new.metadata.name;
    let text = match entered {
        Some(rule) => format!(
            "Pod {name} can't come under PodTransitionRule {} now",
            rule.name
        ),
        None if !index.synced().all() && gate::are_labels_changed(old, new) => {
            format!(
                "Pod {name} can't change its labels while this replica has yet to see all rules"
            )
        }
        None => return None,
    };
    let text =
        format!("{text}: {outstanding}; change the labels when that is over, or delete the Pod");
    Some(Verdict::deny(409, "Conflict", text).audit("held", "enters-changed"))
}
