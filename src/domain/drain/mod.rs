//! Previews what `kubectl drain` of a node would get: which Pods go in which order, and what holds the others.
//!
//! | File | Content |
//! |---|---|
//! | `kubectl_filters` | which Pods kubectl evicts, which it skips, and because of which it refuses the node |
//! | `observed` | what is read of a node |
//! | `answers` | what the API server answers to a dry-run eviction |
//! | `rule_budgets`, `disruption_budgets` | the budgets of rule objects and of PodDisruptionBudgets |
//! | `skip_annotations` | whether the server honours the annotation by which Pods skip rules |
//! | `waves` | the simulation: which Pods the budgets let go together, and which go after them |
//! | `verdicts` | what the answer and the budgets say about one Pod |
//! | `preview` | the preview of a node |
//! | `assumptions` | what the waves assume |
//! | `facts` | the data of a preview |

mod answers;
mod assumptions;
mod disruption_budgets;
pub mod facts;
mod kubectl_filters;
mod observed;
mod preview;
mod rule_budgets;
mod skip_annotations;
#[cfg(test)]
mod tests;
mod verdicts;
mod waves;

pub use answers::EvictionAnswer;
pub use kubectl_filters::{DaemonSetRead, DrainFlags, KubectlChoice, choose, is_of_daemon_set};
pub use observed::{DrainNamespace, DrainedPod, ObservedNode};
pub use preview::preview;
