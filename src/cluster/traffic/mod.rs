//! ResourceConsist: which adapters there are, and what this replica knows of the objects whose traffic they manage.
//!
//! | File | What it has |
//! |---|---|
//! | `adapters` | the adapters of this server, and which of them manages an employer |
//! | `guarded` | keeps a panic of an adapter to the employer that caused it |
//! | `employer_object` | the JSON form of an employer |
//! | `employers` | the cache of employers |
//! | `stale_protections` | which protections of a Pod do not show that traffic is on |
//! | `slices` | the cache of EndpointSlices |
//! | `endpoints` | the built-in adapter, which follows EndpointSlices |
//! | `counters` | what the calls to load balancers came to, for metrics |

pub mod adapters;
pub mod counters;
mod employer_object;
pub mod employers;
pub mod endpoints;
pub mod guarded;
pub mod slices;
mod stale_protections;

use std::sync::Arc;

use adapters::Adapters;
use counters::TrafficCounters;
pub use employer_object::EmployerObject;
use employers::Employers;
use slices::Slices;

/// What this replica knows of traffic. Without adapters, nothing is watched and nothing is managed.
#[derive(Default)]
pub struct Traffic {
    /// The adapters.
    pub adapters: Adapters,
    /// The employers.
    pub employers: Employers,
    /// The EndpointSlices.
    pub slices: Arc<Slices>,
    /// What the calls came to.
    pub counters: TrafficCounters,
}

impl Traffic {
    /// Creates empty caches for these adapters.
    pub fn new(adapters: Adapters, slices: Arc<Slices>) -> Arc<Traffic> {
        Arc::new(Traffic {
            employers: Employers::new(adapters.employer_kinds()),
            adapters,
            slices,
            counters: TrafficCounters::default(),
        })
    }
}
