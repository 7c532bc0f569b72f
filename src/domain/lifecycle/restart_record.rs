//! The record of the containers that have yet to restart, as the annotation [`keys::AWAITS_RESTART`] has it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::stored_operations::is_held_offline;
use crate::api::keys;
use crate::domain::digest::Digest;
use crate::domain::inplace::{
    self, ContainerBefore, InPlaceRestart, RestartProgress, RunningContainers,
};
use crate::domain::pod::Pod;

/// Time after the change when a restart that cannot be proven is assumed to be done. A claim for the change would lapse
/// at the same time: after the API server's request timeout (60 s by default) and the margin of the ledger (15 s).
pub const ASSUMED_AFTER_NANOS: u64 = 75_000_000_000;

/// The containers whose restart a Pod waits for, by name. `Display` writes a clause, such as "container app to restart
/// for its new image".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PendingRestarts(pub(super) BTreeMap<String, PendingRestart>);

/// The state of a container before the first change for which it has not restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PendingRestart {
    /// When the last of the changes was made, in nanoseconds since 1970.
    pub(super) since: String,
    /// The container ID before the change.
    pub(super) run: String,
    /// For a change of the image: the image before the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<PendingImage>,
    /// Whether a resize that restarts the container was not in force yet when the image changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) resize: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PendingImage {
    /// Digest of the image ID, in hexadecimal; see [`ContainerBefore::image`].
    id: String,
    /// Digest of the image name in the spec, in hexadecimal.
    pub(super) name: String,
    /// Whether the name changed again before the container restarted. If so, a new run may belong to the earlier
    /// change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
}

impl PendingImage {
    /// The digest of the image ID. 0 if it is not known.
    fn image_id(&self) -> u64 {
        u64::from_str_radix(&self.id, 16).unwrap_or(0)
    }
}

/// How far the restart of one container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerProgress {
    Awaited,
    /// The container has a new run, but the run may not belong to the last change.
    Unproven,
    Over,
}

impl PendingRestarts {
    /// Reads the record of a Pod, including restarts that are already done.
    ///
    /// # Errors
    /// Why the value of the annotation can't be read. Callers treat such a value as absent.
    pub fn from_pod(pod: &Pod) -> Result<PendingRestarts, String> {
        let Some(text) = pod.annotation(keys::AWAITS_RESTART) else {
            return Ok(PendingRestarts::default());
        };
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// Whether the record contains the restarts of all these containers. False if the change is a resize of a
    /// container: the API server drops changes of annotations from a write of `pods/resize`.
    pub fn covers_restarts(&self, change: &InPlaceRestart) -> bool {
        self.covers_image_restarts(change) && change.containers.iter().all(|c| c.image.is_some())
    }

    /// Like [`PendingRestarts::covers_restarts`], but ignores resizes.
    pub fn covers_image_restarts(&self, change: &InPlaceRestart) -> bool {
        let mut images = change.containers.iter().filter(|c| c.image.is_some());
        images.all(|c| self.0.contains_key(&c.name))
    }

    /// Value of the annotation. `None` if nothing is recorded.
    pub fn annotation_value(&self) -> Option<String> {
        let text = || serde_json::to_string(self).ok();
        (!self.0.is_empty()).then(text).flatten()
    }

    /// Drops the restarts that are done by the state of `pod`, at `now` in nanoseconds since 1970.
    pub(super) fn drop_finished(&mut self, pod: &RunningContainers<'_>, now: u64) {
        self.0
            .retain(|name, entry| match entry.container_progress(pod, name) {
                ContainerProgress::Over => false,
                ContainerProgress::Unproven => entry.assumed_done_at() > now,
                ContainerProgress::Awaited => true,
            });
    }

    /// Adds the restarts that the write causes. If a container has not restarted for an earlier change, the record
    /// keeps the state before the earlier change.
    pub(super) fn add_change(&mut self, old: &Pod, new: &Pod, is_lost: bool, now: u64) {
        let Some(change) = inplace::in_place_restart(old, new) else {
            return;
        };
        let needs_no_claim =
            is_held_offline(old) && is_held_offline(new) || is_lost && !old.is_broken();
        let mut containers = change.containers;
        containers
            .retain(|c| c.image.is_some() && (needs_no_claim || self.0.contains_key(&c.name)));
        if containers.is_empty() {
            return;
        }
        let containers_by_name = RunningContainers::from_pod(old);
        for before in containers {
            let ContainerBefore {
                name, run, image, ..
            } = before;
            let record = PendingRestart {
                since: now.to_string(),
                run,
                image: image.map(|id| PendingImage {
                    id: digest_hex(id),
                    name: image_name_digest(&containers_by_name, &name).unwrap_or_default(),
                    again: false,
                }),
                resize: self.0.get(&name).is_some_and(|entry| entry.image.is_none()),
            };
            match self.0.get_mut(&name) {
                Some(PendingRestart {
                    since,
                    image: Some(earlier),
                    ..
                }) => {
                    *since = now.to_string();
                    earlier.again = true;
                }
                _ => _ = self.0.insert(name, record),
            }
        }
        // The claim of a resize ends with the next change of the spec, so this function records the restart for the
        // resize.
        for resize in inplace::unfinished_resizes(old) {
            let entry = self.0.entry(resize.name);
            let entry = entry.and_modify(|entry| entry.resize = true);
            entry.or_insert(PendingRestart {
                since: now.to_string(),
                run: resize.run,
                image: None,
                resize: false,
            });
        }
    }
}

impl PendingRestart {
    pub(super) fn container_progress(
        &self,
        pod: &RunningContainers<'_>,
        name: &str,
    ) -> ContainerProgress {
        let Some(container) = pod.find_container(name) else {
            return ContainerProgress::Over;
        };
        let status = pod.ready_status(name);
        let restart = self.restart_progress(pod, name);
        if self.resize && !is_resize_over(pod, name) {
            return ContainerProgress::Awaited;
        }
        let is_awaited = restart == RestartProgress::Awaited && status.is_some();
        if self.image.is_none() && is_awaited && pod.is_resize_infeasible() {
            return ContainerProgress::Unproven; // the report may be about an earlier spec
        }
        if let Some(image) = &self.image
            && image.image_id() != 0
            && image_name_digest(pod, name).as_deref() == Some(&image.name)
        {
            // The image change was withdrawn. Nothing restarts if the kubelet has seen the withdrawal and the old image
            // still runs. Otherwise the container restarts with the image that the registry has under this name now.
            return match restart {
                _ if status
                    .is_some_and(|status| inplace::image_digest(status) == image.image_id()) =>
                {
                    ContainerProgress::Over
                }
                RestartProgress::Proven | RestartProgress::Unproven => ContainerProgress::Unproven,
                RestartProgress::Awaited | RestartProgress::Nothing => ContainerProgress::Awaited,
            };
        }
        let has_changed_again = self.image.as_ref().is_some_and(|image| image.again);
        let runs_last_image =
            || status.is_some_and(|status| names_same_image(&status.image, &container.image));
        match restart {
            RestartProgress::Awaited => ContainerProgress::Awaited,
            RestartProgress::Nothing => ContainerProgress::Over,
            RestartProgress::Proven if !has_changed_again || runs_last_image() => {
                ContainerProgress::Over
            }
            RestartProgress::Proven | RestartProgress::Unproven => ContainerProgress::Unproven,
        }
    }

    /// How far the restart for the image is, or for the resize if the image did not change.
    pub(super) fn restart_progress(
        &self,
        pod: &RunningContainers<'_>,
        name: &str,
    ) -> RestartProgress {
        let before = ContainerBefore {
            name: name.to_owned(),
            run: self.run.clone(),
            image: self.image.as_ref().map(PendingImage::image_id),
            by_resources: false,
        };
        pod.restart_progress(&[before])
    }

    pub(super) fn assumed_done_at(&self) -> u64 {
        self.since
            .parse::<u64>()
            .unwrap_or(0)
            .saturating_add(ASSUMED_AFTER_NANOS)
    }
}

impl fmt::Display for PendingRestarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, entry)) in self.0.iter().enumerate() {
            let cause = match entry.image {
                Some(_) => "new image",
                None => "new resources",
            };
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}container {name} to restart for its {cause}")?;
        }
        Ok(())
    }
}

/// Whether the resources of a container are in force, or never will be. A new run does not count, because it may belong
/// to a change of the image.
fn is_resize_over(pod: &RunningContainers<'_>, name: &str) -> bool {
    let by_resources = ContainerBefore {
        name: name.to_owned(),
        run: String::new(),
        image: None,
        by_resources: true,
    };
    pod.restart_progress(&[by_resources]) == RestartProgress::Nothing || pod.is_resize_infeasible()
}

/// Digest of the image name of a container in the spec.
fn image_name_digest(pod: &RunningContainers<'_>, container: &str) -> Option<String> {
    pod.find_container(container).map(|c| digest_text(&c.image))
}

pub(super) fn digest_text(text: &str) -> String {
    let mut digest = Digest::default();
    digest.add_text(text);
    digest_hex(digest.value())
}

fn digest_hex(digest: u64) -> String {
    format!("{digest:016x}")
}

/// Whether the image name that a runtime reports is the one in the spec. Runtimes add the registry to a short name.
pub(super) fn names_same_image(reported: &str, name: &str) -> bool {
    let prefix = reported.strip_suffix(name);
    prefix.is_some_and(|registry| registry.is_empty() || registry.ends_with('/'))
}
