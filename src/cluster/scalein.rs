//! Pods of a ReplicaSet, or ReplicationController, that go through their lifecycle to be deleted.

use std::sync::Arc;
use std::time::Duration;

use super::index::Namespace;
use crate::api::keys::Family;
use crate::domain::grace;
use crate::domain::pod::Pod;

/// A Pod whose rules hold it for so long keeps its owner from no other Pod.
const HELD: Duration = Duration::from_secs(300);

/// The living Pods that an owner has chosen, and nobody else.
pub fn chosen<'a>(home: &'a Namespace, owner: &str) -> Vec<&'a Arc<Pod>> {
    let living = living(home, owner);
    living
        .filter(|pod| grace::scaled_in_by(pod) == Some(owner))
        .collect()
}

/// How many living Pods of an owner are to go at `now_nanos`, whoever has asked for it, apart from those that their rules hold for
/// long.
pub fn going(home: &Namespace, owner: &str, now_nanos: u64) -> usize {
    let living = living(home, owner);
    let going = living.filter(|pod| grace::is_begun(pod) && !is_held(pod, now_nanos));
    going.count()
}

fn is_held(pod: &Pod, now_nanos: u64) -> bool {
    let since = waits_since(pod);
    since.is_some_and(|since| u128::from(now_nanos.saturating_sub(since)) > HELD.as_nanos())
}

/// Since when the deletion of a Pod waits for its rules, in nanoseconds since 1970.
pub fn waits_since(pod: &Pod) -> Option<u64> {
    pod.label(&Family::PreCheck.key(grace::ID))?.parse().ok()
}

fn living<'a>(home: &'a Namespace, owner: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
    let owned = home.owned_by(owner);
    owned.filter(|pod| !pod.is_terminating() && !pod.is_finished())
}
