//! How far the caches of what belongs to CollaSets have come.

use std::sync::Arc;

use kube::Client;

use super::{CachedKind, CollaSetObject, PvcObject, ResourceContextObject, RevisionObject};
use crate::cluster::list_position::{self, PositionError};
use crate::cluster::request_path;
use crate::cluster::watch_health::{WatchHealth, WatchRegistry};

/// A position of each cache of what belongs to CollaSets.
pub struct CachePositions(Vec<(Arc<WatchHealth>, u64)>);

impl CachePositions {
    /// Returns when the caches have come there. A watch whose connection is dead looks as one of objects that nobody changes.
    pub async fn wait_reached(&self) {
        let all = self.0.iter().map(|(pulse, at)| pulse.wait_delivered(*at));
        futures::future::join_all(all).await;
    }
}

/// Where etcd is by now.
///
/// # Errors
/// When that can't be read.
pub async fn read_positions(
    client: &Client,
    pulses: &WatchRegistry,
) -> Result<CachePositions, PositionError> {
    let paths = [
        CollaSetObject::KIND.path(),
        RevisionObject::KIND.path(),
        PvcObject::KIND.path(),
        ResourceContextObject::KIND.path(),
    ];
    let one = |path| async move {
        let Some(pulse) = pulses.find_by_path(path) else {
            return Ok::<_, PositionError>(None); // it is not watched
        };
        let at = list_position::read_list_position(
            client,
            &request_path::ResourcePath::from_watch_path(path),
            None,
        )
        .await?;
        Ok(Some((pulse, at)))
    };
    let all = futures::future::try_join_all(paths.map(one)).await?;
    Ok(CachePositions(all.into_iter().flatten().collect()))
}
