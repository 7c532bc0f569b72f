//! Plays the lifecycle and the kubelet in a few lines: both do at once what they are asked for.

use serde_json::{Value, json};

use super::World;
use crate::api::keys::{self, Family};
use crate::domain::pod::Pod;

impl World {
    /// Makes one step of the lifecycle, the kubelet and the garbage collector. Returns false if nothing has changed.
    pub fn step_surroundings(&mut self) -> bool {
        if self.on_plane {
            return self.run_pods(u8::MAX);
        }
        let now = self.tick().to_string();
        let due = self.describe_due();
        let state = |world: &World| (world.pods.clone(), world.set.metadata.clone());
        let before = state(self);
        self.collect_garbage();
        self.pods.retain(|_, pod| !pod.is_terminating());
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pods.get_mut(&name).unwrap();
            if pod.label(keys::TO_DELETE).is_some() {
                pod.metadata.deletion_timestamp = Some(due.clone());
                continue;
            }
            advance_lifecycle(pod, &now);
            advance_kubelet(pod, &now);
        }
        before != state(self)
    }
}

/// Allows every operation at once. Finished and undone operations leave no labels.
fn advance_lifecycle(pod: &mut Pod, now: &str) {
    let labels = &mut pod.metadata.labels;
    let id = "collaset";
    let undone = labels.contains_key(&Family::UndoOperationType.key(id));
    let finished = labels.contains_key(&Family::Operate.key(id))
        && !labels.contains_key(&Family::Operating.key(id));
    if undone || finished {
        for family in Family::ALL {
            labels.remove(&family.key(id));
        }
        labels.insert(keys::SERVICE_AVAILABLE.to_owned(), now.to_owned());
    } else if labels.contains_key(&Family::Operating.key(id)) {
        let operate = labels.entry(Family::Operate.key(id));
        operate.or_insert_with(|| now.to_owned());
        labels.remove(keys::SERVICE_AVAILABLE);
    }
}

/// Makes the containers run as the spec says.
fn advance_kubelet(pod: &mut Pod, now: &str) {
    let containers: Vec<Value> = pod
        .spec
        .containers
        .iter()
        .map(|c| {
            json!({ "name": c.name, "imageID": format!("id-of-{}", c.image), "ready": true,
                "containerID": format!("run-of-{}", c.image) })
        })
        .collect();
    pod.status.container_statuses = serde_json::from_value(containers.into()).unwrap();
    if !pod.is_ready() {
        pod.status.phase = "Running".into();
        pod.status.conditions = serde_json::from_value(
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": now }]),
        )
        .unwrap();
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::SERVICE_AVAILABLE.to_owned(), now.to_owned());
        labels.remove(keys::CREATING);
        labels.remove(keys::COMPLETING);
    }
}
