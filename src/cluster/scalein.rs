//! Pods of a ReplicaSet, or ReplicationController, that go through their lifecycle to be deleted.

use std::sync::Arc;

use super::index::Namespace;
use crate::domain::grace;
use crate::domain::pod::Pod;

/// The living Pods that an owner has chosen, and nobody else.
pub fn chosen<'a>(home: &'a Namespace, owner: &str) -> Vec<&'a Arc<Pod>> {
    let living = living(home, owner);
    living
        .filter(|pod| grace::scaled_in_by(pod) == Some(owner))
        .collect()
}

/// How many living Pods of an owner are to go, whoever has asked for it.
pub fn going(home: &Namespace, owner: &str) -> usize {
    let living = living(home, owner);
    living.filter(|pod| grace::is_begun(pod)).count()
}

fn living<'a>(home: &'a Namespace, owner: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
    let owned = home.owned_by(owner);
    owned.filter(|pod| !pod.is_terminating() && !pod.is_finished())
}
