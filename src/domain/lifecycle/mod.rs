//! PodOpsLifecycle: how an operation takes a Pod off traffic, works on it and brings it back (contract 3).
//!
//! Each operation has an ID on the Pod, and its state is stored only in the Pod's labels:
//!
//! ```text
//!  begin ─▶ PreCheck ─pass─▶ Preparing ─operable─▶ Operate ─finish─▶ PostCheck ─pass─▶ Completing ─online─▶ idle
//!              └──────────── undo, or finish before Operate ─────────────────────────────────────────────────▲
//! ```
//!
//! * An operation advances by itself and does not depend on other operations. Only the question whether the Pod is on
//!   or off traffic depends on all of them.
//! * [`LifecycleWrite`] is one write of a Pod, as the mutating webhook sees it. The controller calls the same code with
//!   the Pod as the old and the new object ([`controller_step`]), so that webhook and controller cannot diverge. The
//!   controller makes the steps that an unavailable webhook missed.
//! * [`validate()`] says what a write may not do. Admission calls it before it opens the [`LifecycleWrite`] of an
//!   UPDATE, so that a forged label is refused with a reason. The validating webhook calls it for the final object.
//! * [`operator`] contains the operator's side: begin, finish, undo.
//!
//! The state machine trusts no label of a request that only the webhook may write: it takes these labels from the old
//! object. A new label `pre-checked` or `post-checked` only asks for a decision, until admission calls
//! [`LifecycleWrite::pass_stage`].

mod expected_finalizers;
mod label_name;
mod lifecycle_write;
pub(crate) mod manual_label;
pub(crate) mod min_ready;
mod next_step;
mod operation;
pub mod operator;
mod patch;
mod phase;
mod restart_record;
pub mod restarts;
pub(crate) mod service_obstacles;
mod stored_operations;
mod user_labels;
mod validate;

pub use expected_finalizers::ExpectedFinalizers;
pub(crate) use label_name::{NAME_RULE, is_label_name};
pub use lifecycle_write::{LifecycleWrite, is_ready_to_operate};
pub use next_step::{
    LifecycleStep, controller_step, controller_step_with_passed, follow_readiness,
};
pub use patch::LabelPatch;
pub use phase::Phase;
pub use stored_operations::{
    has_operation_type, ids_without_type, is_held_offline, stored_phase, stored_phases,
};
pub use user_labels::are_user_labels_changed;
pub use validate::{LifecycleError, validate};

use crate::api::keys::Family;

/// When the rules of a PodTransitionRule are asked about an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Before the Pod goes off traffic.
    PreCheck,
    /// Before the Pod comes back on traffic.
    PostCheck,
}

impl Stage {
    /// The family of the labels of IDs that wait in this stage.
    pub const fn family(self) -> Family {
        match self {
            Stage::PreCheck => Family::PreCheck,
            Stage::PostCheck => Family::PostCheck,
        }
    }

    /// The name of the stage in spec and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::PreCheck => "PreCheck",
            Stage::PostCheck => "PostCheck",
        }
    }
}
