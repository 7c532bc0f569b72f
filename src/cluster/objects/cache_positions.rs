//! Tells when the caches of CollaSets, their objects, PodDecorations and OperationJobs have reached a position.

use std::sync::Arc;

use kube::Client;

use super::{
    CachedKind, CollaSetObject, DecorationObject, JobObject, PvcObject, ResourceContextObject,
    RevisionObject,
};
use crate::cluster::list_position::{self, PositionError};
use crate::cluster::request_path;
use crate::cluster::watch_health::{WatchHealth, WatchRegistry};

/// A position for each cache of CollaSets, their objects, PodDecorations and OperationJobs.
pub struct CachePositions(Vec<(Arc<WatchHealth>, u64)>);

impl CachePositions {
    /// Returns when the caches have reached their positions. This is needed because a watch with a dead connection
    /// looks like a watch of objects that nobody changes.
    pub async fn wait_reached(&self) {
        let all = self
            .0
            .iter()
            .map(|(health, position)| health.wait_delivered(*position));
        futures::future::join_all(all).await;
    }
}

/// Reads the present positions from etcd.
///
/// # Errors
/// If a position cannot be read.
pub async fn read_positions(
    client: &Client,
    watch_registry: &WatchRegistry,
) -> Result<CachePositions, PositionError> {
    let paths = [
        CollaSetObject::KIND.path(),
        RevisionObject::KIND.path(),
        PvcObject::KIND.path(),
        ResourceContextObject::KIND.path(),
        DecorationObject::KIND.path(),
        JobObject::KIND.path(),
    ];
    let read_position = |path| async move {
        let Some(health) = watch_registry.find_by_path(path) else {
            return Ok::<_, PositionError>(None); // this kind is not watched
        };
        let at = list_position::read_list_position(
            client,
            &request_path::ResourcePath::from_watch_path(path),
            None,
        )
        .await?;
        Ok(Some((health, at)))
    };
    let all = futures::future::try_join_all(paths.map(read_position)).await?;
    Ok(CachePositions(all.into_iter().flatten().collect()))
}
