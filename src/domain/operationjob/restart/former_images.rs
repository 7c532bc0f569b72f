//! The annotation on a Pod that proves which images a restart has changed. The write that changes the images adds the
//! annotation. A job puts back only these images: the status of the job alone proves nothing, because another user may
//! write the status than the users who may change Pods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::keys;
use crate::domain::pod::{Container, Pod};

/// The value of the annotation [`keys::FORMER_IMAGES`].
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    /// UID of the job.
    job: String,
    /// Images by the names of the containers.
    images: BTreeMap<String, String>,
}

/// The images by the names of the containers, as they were before this job has changed them. `None` if the Pod does not
/// prove that this job has changed an image.
pub fn read(job_uid: &str, pod: &Pod) -> Option<BTreeMap<String, String>> {
    let text = pod.annotation(keys::FORMER_IMAGES)?;
    let note: Note = serde_json::from_str(text).ok()?;
    (note.job == job_uid && !job_uid.is_empty()).then_some(note.images)
}

/// The value for a Pod on which this job is about to change the images of these containers.
pub fn add(job_uid: &str, pod: &Pod, containers: &[&Container]) -> String {
    let mut images = read(job_uid, pod).unwrap_or_default();
    for container in containers {
        images.insert(container.name.clone(), container.image.clone());
    }
    let job = job_uid.to_owned();
    serde_json::json!(Note { job, images }).to_string()
}
