//! How far the caches of what belongs to CollaSets have come.

use std::sync::Arc;

use kube::Client;

use super::{CachedKind, ClaimObject, PoolObject, RevisionObject, SetObject};
use crate::cluster::path;
use crate::cluster::position::{self, Unread};
use crate::cluster::pulse::{Pulse, Pulses};

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
pub async fn read(client: &Client, pulses: &Pulses) -> Result<Positions, Unread> {
    let paths = [
        SetObject::KIND.path(),
        RevisionObject::KIND.path(),
        ClaimObject::KIND.path(),
        PoolObject::KIND.path(),
    ];
    let one = |path| async move {
        let Some(pulse) = pulses.of(path) else {
            return Ok::<_, Unread>(None); // it is not watched
        };
        let at = position::read(client, &path::Objects::of_watch(path), None).await?;
        Ok(Some((pulse, at)))
    };
    let all = futures::future::try_join_all(paths.map(one)).await?;
    Ok(Positions(all.into_iter().flatten().collect()))
}
