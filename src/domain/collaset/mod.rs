//! CollaSet planning: from what is observed to what is to be written (contract 6).
//!
//! [`planner::plan`] is a pure function of [`observed::Observed`]. It holds no state between two calls and never waits for an effect: what
//! it wants is derived anew from the objects each time, so that a crash, a lost reply or an edit by hand between any
//! two writes changes nothing but the number of rounds. A plan of a settled set is empty.
//!
//! | File | What it decides |
//! |---|---|
//! | `facts` | what the objects say: members by instance ID, revisions, strategy with its defaults |
//! | `refused` | what the API server has refused lately |
//! | `draft` | what is wanted of each Pod and ID so far; each step below edits it, the plan is the difference |
//! | `core_v1` | when two notations of a template mean the same; what Kuperator made of them |
//! | `revision` | which revision the template is; how two compare; what is kept |
//! | `pool` | instance IDs: who has which, which are taken and freed |
//! | `room` | how many the pool has room for |
//! | `doubles` | Pods whose instance ID another has |
//! | `membership` | Pods that leave the set, broken ones that are cleaned away |
//! | `enter` | Pods that enter the set: those that it is asked to include, and orphans |
//! | `obstacles` | what stands in the way of a Pod that it is asked to include, and what mends it |
//! | `replace` | pairs of an origin and its new Pod |
//! | `scale` | how many, and which go |
//! | `rollout` | a rollout in steps, and what users say to it |
//! | `update` | which Pods are to be of the updated revision, and how each gets there |
//! | `claims` | PersistentVolumeClaims |
//! | `create`, `construct` | the Pods that are created |
//! | `poolless` | what of a plan is left when the pool can't be written |
//! | `reclaim` | what is left to do when the set is deleted |
//! | `status` | counts and conditions |

pub mod api_refusals;
pub mod construct;
pub mod core_v1;
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
pub mod pool_write_failure;
pub mod pvcs;
mod reclaim;
pub mod revision;
mod rollout;
mod scaling;
mod set_facts;
mod set_operations;
pub mod status;
pub mod strategy;
mod update;

pub use inclusion::has_name_of_set;
pub use reclaim::{deletes_its_pods, orphans_its_pods};
pub use rollout::{ABORT, RETRY};
pub use set_operations::{
    OperationState, SetOperation, abandoned_metadata_patch, awaited_rule_stage,
    updates_in_step_write,
};

#[cfg(test)]
mod tests;
