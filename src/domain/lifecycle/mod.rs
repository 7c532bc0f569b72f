//! PodOpsLifecycle: how an operation takes a Pod off traffic, works on it and puts it back (contract 3).
//!
//! Every *run* is an ID on the Pod, and its state is the Pod's labels alone:
//!
//! ```text
//!  begin ─▶ PreCheck ─pass─▶ Preparing ─operable─▶ Operate ─finish─▶ PostCheck ─pass─▶ Completing ─online─▶ idle
//!              └──────────── undo, or finish before Operate ─────────────────────────────────────────────────▲
//! ```
//!
//! * An operation advances one ID and knows of no other; only whether the Pod is to be on or off traffic is
//!   asked of all IDs together.
//! * [`Run`] is one write of a Pod, as the mutating webhook sees it. The controller drives the same code with the Pod
//!   as both sides of the write ([`controller_step`]), so that the two cannot diverge: what a dead webhook missed, the
//!   controller makes up for.
//! * [`validate`] says what a write may not do. Admission asks it before it opens the [`Run`] of an UPDATE, so that a
//!   forged label is refused with a reason, and of the final object in the validating webhook.
//! * [`operator`] is the other side: begin, finish, undo.
//!
//! The state machine trusts nothing that a request brings: labels that only the webhook writes are taken from the old
//! object, and a mark that rules have passed is a question to admission until [`Run::pass`] answers it.

mod expected_finalizers;
mod label_name;
mod lifecycle_write;
pub mod manual_label;
pub mod min_ready;
mod next_step;
mod operation;
pub mod operator;
mod patch;
mod phase;
pub mod restarts;
pub mod service_obstacles;
mod validate;

pub use expected_finalizers::ExpectedFinalizers;
pub use lifecycle_write::{
    LifecycleWrite, has_operation_type, ids_without_type, is_held_offline, is_ready_to_operate,
    stored_phases,
};
pub use next_step::{
    LifecycleStep, controller_step, controller_step_with_passed, follow_readiness,
};
pub use patch::LabelPatch;
pub use phase::Phase;
pub use validate::{FieldError, validate};

use crate::api::keys::Family;

/// When the rules of a PodTransitionRule are asked about an ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Before the Pod is taken off traffic.
    PreCheck,
    /// Before it is put back.
    PostCheck,
}

impl Stage {
    /// The labels by which IDs wait in the stage.
    pub const fn family(self) -> Family {
        match self {
            Stage::PreCheck => Family::PreCheck,
            Stage::PostCheck => Family::PostCheck,
        }
    }

    /// The word used in spec and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::PreCheck => "PreCheck",
            Stage::PostCheck => "PostCheck",
        }
    }
}
