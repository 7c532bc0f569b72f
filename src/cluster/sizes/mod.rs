//! How many Pods the owners of Pods are to have: watched for the kinds that are known, read live for all others.

mod discovery;
mod failure;
mod known;
mod live;
mod shared;
pub(crate) mod wire;

pub use failure::Remedy;
pub use known::{Basis, Reading, RootOf, Size, Workload, Workloads};
pub use live::{LiveOwners, RECENT, Unreadable};
pub use wire::workload;
