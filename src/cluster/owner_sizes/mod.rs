//! How many Pods the owners of Pods are to have: watched for the kinds that are known, read live for all others.

mod live_owners;
mod read_failure;
mod scale_discovery;
mod single_flight;
pub(crate) mod workload_json;
mod workloads;

pub use live_owners::{LiveOwners, MAX_READING_AGE, OwnerReadError};
pub use read_failure::Remedy;
pub use workload_json::parse_workload;
pub use workloads::{LiveReading, OwnerSize, ReadingBasis, RootOwner, Workload, Workloads};
