//! Pods that their ReplicaSet, or ReplicationController, has chosen to delete, and that go through their lifecycle first.

use std::sync::Arc;

use super::index::Namespace;
use crate::domain::grace;
use crate::domain::pod::Pod;

/// The living Pods that an owner has chosen, and nobody else.
pub fn chosen<'a>(home: &'a Namespace, owner: &str) -> Vec<&'a Arc<Pod>> {
    let living = home
        .owned_by(owner)
        .filter(|pod| !pod.is_terminating() && !pod.is_finished());
    living
        .filter(|pod| grace::scaled_in_by(pod) == Some(owner))
        .collect()
}
