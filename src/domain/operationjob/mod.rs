//! OperationJobs: one operation on a list of Pods (contract 1.5 and 8). Decides without I/O.
//!
//! | File | Purpose |
//! |---|---|
//! | `names` | names in the status |
//! | `restart` | restarts of containers in place |

pub mod names;
pub mod restart;
