//! OperationJobs: one operation on a list of Pods (contract 1.5 and 8). Decides without I/O.
//!
//! A plan reads the stored status and acts only on what is stored there. A crash at any point therefore loses nothing
//! and repeats nothing.
//!
//! | File | Purpose |
//! |---|---|
//! | `observed` | what a plan reads |
//! | `job_pods` | the Pods that a plan reads |
//! | `actions` | the requests of a plan for the Pods |
//! | `plan` | what a plan asks for, and how it is made |
//! | `selection` | which targets a job operates on |
//! | `places` | how many targets may be in progress at a time |
//! | `target` | plans one target |
//! | `target_plan` | how a target begins, waits and ends |
//! | `replace` | the action Replace |
//! | `lifecycle_action` | takes a Pod through the lifecycle for the other actions |
//! | `restart_action` | the action Restart |
//! | `restart` | methods to restart containers in place |
//! | `third_party` | the actions of other programs |
//! | `release` | withdraws what a job asked of a Pod |
//! | `job_status` | the status of the job, and its Events |
//! | `conditions` | the conditions of the job |
//! | `job_settings` | defaults of the spec, and times |
//! | `names` | names in the status |

pub mod actions;
mod conditions;
pub mod job_pods;
pub mod job_settings;
pub mod job_status;
pub mod lifecycle_action;
pub mod names;
pub mod observed;
mod places;
pub mod plan;
mod release;
mod replace;
pub mod restart;
mod restart_action;
pub mod selection;
mod target;
mod target_plan;
#[cfg(test)]
mod tests;
mod third_party;
