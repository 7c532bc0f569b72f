//! PodDecorations: which Pods of CollaSets get which additions (contract 1.4).
//!
//! The controller of PodDecorations makes a [`Decoration`] of each PodDecoration: its compiled selectors, its stored
//! revisions, and the members that its rollout has reached. The plans of CollaSets read nothing else of a PodDecoration.
//! Therefore a change of a PodDecoration reaches all CollaSets as one consistent value.
//!
//! | File | Purpose |
//! |---|---|
//! | `apply` | applies revisions of decorations to a Pod template |
//! | `labels` | the labels by which decorations select members, and the labels that record decorations |
//! | `effective` | which revisions of which decorations a member should have |
//! | `observed`, `plan` | the input of a plan, the writes that a PodDecoration needs, and the value that sets read |
//! | `members`, `choice`, `status` | the selected members, those that a partition reaches, and the status |
//! | `held_back` | members that Kuperator did not decorate because of the partition of their set |
//! | `stored` | a PodDecoration as commands for users see it, which read only the object |
//! | `revision` | the data, the names and the history of revisions |

pub mod apply;
pub mod choice;
pub mod effective;
pub mod held_back;
pub mod labels;
pub mod members;
pub mod observed;
pub mod plan;
pub mod revision;
pub mod status;
pub mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::poddecoration::Template;
use crate::api::selector::Selector;

/// The decorations of one Pod: names of revisions by the name of the PodDecoration.
pub type DecorationRevisions = BTreeMap<String, String>;

/// The CollaSets that Kuperator held back, see [`held_back`]: the generation of each, by name.
pub type HeldBackSets = BTreeMap<String, i64>;

/// A member of a CollaSet: the name of the set, and the instance ID.
pub type MemberKey = (String, i64);

/// A PodDecoration as the plans of CollaSets read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoration {
    /// Name of the PodDecoration.
    pub name: String,
    /// UID of the PodDecoration.
    pub uid: String,
    /// `metadata.generation` of the PodDecoration from which this value was made.
    pub generation: i64,
    /// The members that it selects. `None` selects nobody.
    pub selector: Option<Selector>,
    /// The selected members that get the updated revision.
    pub reach: Reach,
    /// Whether its deletion has begun. No member keeps the decoration then.
    pub deleting: bool,
    /// Why the stored spec can't be used, with the field. Pods that have the decoration keep it, and no other Pod gets
    /// it.
    pub invalid: Option<String>,
    /// Name of the revision of the present spec. `None` until a revision is stored.
    pub updated: Option<String>,
    /// `status.currentRevision`: the revision for members of the stable part that have no revision yet.
    pub current: Option<String>,
    /// Why no Pod that it selects may be created yet, as a clause. `None` if nothing stands in the way.
    pub hold: Option<String>,
    /// Whether the hold lasts because the API server refuses a write. Otherwise it lasts milliseconds.
    pub is_refused: bool,
    /// The CollaSets that Kuperator held back, by name, each with its generation at that time.
    pub held_back: HeldBackSets,
    /// The stored revisions by name.
    pub revisions: BTreeMap<String, Arc<DecorationRevision>>,
}

/// The members that the rollout of a decoration reaches. The other selected members keep their stable revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reach {
    /// All selected members.
    #[default]
    All,
    /// The selected members that this selector matches.
    Selector(Selector),
    /// These members. The controller of PodDecorations chooses them by `partition` over all sets.
    Members(BTreeSet<MemberKey>),
}

/// A stored revision of a PodDecoration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecorationRevision {
    /// Name of the PodDecoration.
    pub decoration: String,
    /// Name of the ControllerRevision.
    pub name: String,
    /// The additions to a Pod.
    pub template: Template,
    /// Position among the decorations of a Pod, see [`effective`].
    pub weight: i32,
}
