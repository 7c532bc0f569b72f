//! Prints a world in a few lines, to follow a walk that fails.

use super::super::world::World;
use crate::api::keys;

/// Prints the world under `title`.
pub fn print_cluster(world: &World, title: &str) {
    println!(
        "{title}, at {} s",
        world.now() / 1_000_000_000 - 1_700_000_000
    );
    for pod in world.pods.values() {
        let mut labels = pod.metadata.labels.clone();
        labels.retain(|key, _| !["app", keys::CONTROL, keys::REVISION].contains(&&**key));
        let labels: Vec<String> = labels
            .iter()
            .map(|(k, v)| format!("{}={v}", short_key(k)))
            .collect();
        let flags = [
            (!world.owns(pod), "foreign"),
            (!pod.is_managed(), "unmanaged"),
            (pod.is_terminating(), "terminating"),
            (pod.is_available(), "available"),
        ];
        let flags: Vec<&str> = flags
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, name)| *name)
            .collect();
        println!(
            "  {} {} {:?} {:?} {} {flags:?} {labels:?} {:?}",
            pod.metadata.name,
            pod.label(keys::REVISION).unwrap_or("-"),
            pod.spec.containers[0].image,
            pod.spec.pvcs,
            pod.status.phase,
            pod.metadata.annotations,
        );
    }
    for pvc in world.pvcs.values() {
        let labels = [keys::INSTANCE_ID, keys::ORPHANED].map(|key| pvc.labels.get(key));
        println!("  {} of {:?} {labels:?}", pvc.name, pvc.controller);
    }
    for entry in world.pool.iter().flat_map(|pool| &pool.contexts) {
        println!("  {} {:?}", entry.id, entry.data);
    }
    let revisions = world.revisions.values();
    let revisions: Vec<_> = revisions
        .map(|r| (&r.name, r.revision, &r.controller))
        .collect();
    println!("  {revisions:?}");
    let conditions = world
        .set
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    for condition in conditions {
        let (is, reason) = (&condition.status, &condition.reason);
        println!("  {} {is} {reason} {}", condition.type_, condition.message);
    }
}

fn short_key(key: &str) -> String {
    let parts: Vec<&str> = key.split(['.', '/']).collect();
    match parts[..] {
        [first, .., last] if key.contains("podopslifecycle") => format!("{first}/{last}"),
        [.., last] => last.to_owned(),
        [] => String::new(),
    }
}
