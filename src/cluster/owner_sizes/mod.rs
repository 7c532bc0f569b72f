//! How many Pods each owner of Pods asks for. The known kinds are watched, and all other kinds are read live.

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
