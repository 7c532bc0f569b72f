//! CollaSet planning: computes the writes that a CollaSet needs from the objects that exist (contract 6).
//!
//! [`planner::plan_set`] is a pure function of [`observed::ObservedSet`]. It holds no state between two calls and never
//! waits for an effect. It derives every wanted change from the objects again each time. Therefore a crash, a lost
//! reply or an edit by hand between any two writes changes only the number of reconciles. The plan of a settled set is
//! empty.
//!
//! | File | Purpose |
//! |---|---|
//! | `observed`, `set_facts` | the objects, and the facts in them: members by instance ID, revisions, strategy |
//! | `api_refusals` | the writes that the API server refused recently |
//! | `decoration_owners` | the owner references of Pods to PodDecorations |
//! | `draft` | the changes of each Pod and ID that the steps below have asked for so far |
//! | `plan`, `planner` | the resulting writes, and the order of the steps |
//! | `composition` | what a Pod is made of: a revision of the template with decorations |
//! | `core_v1` | whether two notations of a template mean the same, and the notation that Kuperator stored |
//! | `revision` | the revision of the template, the comparison of two revisions, and which revisions are kept |
//! | `pool` | instance IDs: which Pod has which ID, which IDs are taken and freed |
//! | `headroom` | how many more entries fit into the pool |
//! | `duplicates` | Pods whose instance ID another Pod has |
//! | `membership` | Pods that leave the set, and finished Pods that are deleted |
//! | `inclusion` | Pods that enter the set: those in `podToInclude`, and orphans |
//! | `obstacles` | why a Pod in `podToInclude` can't enter, and the command that helps |
//! | `pairs` | replace pairs of an origin and its new Pod |
//! | `scaling` | the number of Pods, and which Pods a scale-in deletes |
//! | `rollout` | a rollout in steps, and the commands of users to it |
//! | `update` | which Pods get the updated revision, and how |
//! | `pvcs` | PersistentVolumeClaims (PVCs) |
//! | `instance_creation`, `construct` | the Pods that are created |
//! | `pool_write_failure` | the part of a plan that is still possible when the pool can't be written |
//! | `reclaim` | the plan of a set that is being deleted |
//! | `status` | counts and conditions |

pub mod api_refusals;
pub(crate) mod composition;
pub(crate) mod construct;
pub mod core_v1;
mod decoration_owners;
mod draft;
mod duplicates;
pub mod headroom;
mod inclusion;
mod instance_creation;
mod membership;
pub mod observed;
mod obstacles;
mod pairs;
pub mod plan;
pub mod planner;
mod pool;
pub(crate) mod pool_write_failure;
pub mod pvcs;
mod reclaim;
pub(crate) mod revision;
mod rollout;
mod scaling;
mod set_facts;
mod set_operations;
pub(crate) mod status;
pub(crate) mod strategy;
mod update;

pub use decoration_owners::{abandoned_decoration_owners, is_released_later};
pub use inclusion::has_name_of_set;
pub use reclaim::{deletes_its_pods, orphans_its_pods};
pub use rollout::{ABORT, RETRY};
pub use set_operations::{
    LIFECYCLE_ID, OperationState, SetOperation, abandoned_metadata_patch, awaited_rule_stage,
    updates_in_step_write,
};

#[cfg(test)]
mod tests;
