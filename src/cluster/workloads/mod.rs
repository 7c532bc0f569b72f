//! What the controllers of workloads look at besides Pods: CollaSets whole, and the ControllerRevisions,
//! PersistentVolumeClaims and ResourceContexts behind them. One watch per kind. Admission needs none of it.

mod feed;
pub mod store;
mod wire;
pub mod write;

use std::sync::Arc;

use kube::Client;

use super::index::Index;
use super::path;
use super::position::{self, Unread};
use super::pulse::Pulse;
use super::sources;
use crate::api::collaset::CollaSet;
use crate::domain::collaset::observed::{Claim, Pool, Revision, pool_name};
use crate::tasks::Supervisor;

use feed::{Feed, Sets};
use store::Store;
pub use wire::{ClaimObject, PoolObject, RevisionObject, SetObject, Wire};

/// The caches.
#[derive(Debug, Default)]
pub struct Objects {
    /// CollaSets.
    pub sets: Store<CollaSet>,
    /// ControllerRevisions that a CollaSet controls, or nobody.
    pub revisions: Store<Revision>,
    /// PersistentVolumeClaims with `kusionstack.io/control=true` that a CollaSet controls, or nobody.
    pub claims: Store<Claim>,
    /// ResourceContexts.
    pub pools: Store<Pool>,
}

/// Number of kinds that [`start_sets`] and [`start`] watch.
pub const KINDS: u8 = 4;

impl Objects {
    /// Names of the CollaSets of a namespace that ask for a Pod by its name (`podToInclude`).
    pub fn sets_including(&self, namespace: &str, pod: &str) -> Vec<String> {
        self.sets.names_where(namespace, |set| {
            let scale = set.spec.scale_strategy.as_ref();
            scale.is_some_and(|s| s.pod_to_include.iter().any(|name| name == pod))
        })
    }

    /// Names of the CollaSets of a namespace that take their instance IDs from the ResourceContext of this name.
    pub fn sets_using(&self, namespace: &str, pool: &str) -> Vec<String> {
        self.sets
            .names_where(namespace, |set| pool_name(set) == pool)
    }
}

/// A position of each cache of what belongs to CollaSets.
pub struct Positions(Vec<(Arc<Pulse>, u64)>);

impl Positions {
    /// Returns when the caches have come there. A watch whose connection is dead looks as one of objects that nobody changes.
    pub async fn reached(&self) {
        let all = self.0.iter().map(|(pulse, at)| pulse.reach(*at));
        futures::future::join_all(all).await;
    }
}

/// Where etcd is by now.
///
/// # Errors
/// When that can't be read.
pub async fn positions(client: &Client, index: &Index) -> Result<Positions, Unread> {
    let paths = [
        SetObject::PATH,
        RevisionObject::PATH,
        ClaimObject::PATH,
        PoolObject::PATH,
    ];
    let one = |path| async move {
        let Some(pulse) = index.pulses.of(path) else {
            return Ok::<_, Unread>(None); // it is not watched
        };
        let at = position::read(client, &path::Objects::of_watch(path), None).await?;
        Ok(Some((pulse, at)))
    };
    let all = futures::future::try_join_all(paths.map(one)).await?;
    Ok(Positions(all.into_iter().flatten().collect()))
}

/// Starts the watch of CollaSets, which also tells the budgets how many Pods there should be; `budget` is its sink.
pub(super) fn start_sets(
    client: &Client,
    index: &Arc<Index>,
    budget: sources::Workloads,
    supervisor: &Supervisor,
) {
    let sets = Sets {
        budget,
        feed: Feed::new(index),
    };
    sources::spawn::<SetObject, _>(
        client,
        index,
        wire::source::<SetObject>(),
        Arc::new(sets),
        super::watch::CatchUp::default(),
        supervisor,
    );
}

/// Starts the watches of what belongs to CollaSets.
pub(super) fn start(client: &Client, index: &Arc<Index>, supervisor: &Supervisor) {
    follow::<RevisionObject>(client, index, supervisor);
    follow::<ClaimObject>(client, index, supervisor);
    follow::<PoolObject>(client, index, supervisor);
}

fn follow<W: Wire>(client: &Client, index: &Arc<Index>, supervisor: &Supervisor) {
    sources::spawn::<W, _>(
        client,
        index,
        wire::source::<W>(),
        Arc::new(Feed::<W>::new(index)),
        super::watch::CatchUp::default(),
        supervisor,
    );
}
