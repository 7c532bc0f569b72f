//! Tells when caches have reached the present position of etcd.

use std::sync::Arc;

use kube::Client;

use super::{
    CachedKind, CollaSetObject, DecorationObject, JobObject, PvcObject, ResourceContextObject,
    RevisionObject,
};
use crate::cluster::list_position::{self, PositionError};
use crate::cluster::request_path;
use crate::cluster::watch_health::{WatchHealth, WatchRegistry};

/// A position for each of some caches.
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

/// The watched paths of CollaSets, their objects, PodDecorations and OperationJobs.
pub fn workload_paths() -> Vec<&'static str> {
    vec![
        CollaSetObject::KIND.path(),
        RevisionObject::KIND.path(),
        PvcObject::KIND.path(),
        ResourceContextObject::KIND.path(),
        DecorationObject::KIND.path(),
        JobObject::KIND.path(),
    ]
}

/// Reads the present positions of these paths from etcd. A path that is not watched is left out.
///
/// # Errors
/// If a position cannot be read.
pub async fn read_positions(
    client: &Client,
    watch_registry: &WatchRegistry,
    paths: &[&'static str],
) -> Result<CachePositions, PositionError> {
    let read_position = async |path: &&'static str| {
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
    let all = futures::future::try_join_all(paths.iter().map(read_position)).await?;
    Ok(CachePositions(all.into_iter().flatten().collect()))
}
