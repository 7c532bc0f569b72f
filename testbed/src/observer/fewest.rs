//! Availability of Pods over time, for tests.
#![allow(clippy::panic)] // a test fails by a panic

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Observer;
use crate::pods::is_available;
use crate::scope::Scope;

impl Observer<Pod> {
    /// Begins to follow the Pods of a namespace.
    ///
    /// # Panics
    /// When they cannot be listed.
    pub async fn start(scope: &Scope) -> Self {
        Self::follow(scope).await
    }

    /// Every version of every Pod in the order of the writes, complete up to the time of the call.
    pub async fn versions(&self) -> Vec<Pod> {
        let changes = self.by_uid().await;
        changes.into_iter().filter_map(|(_, pod)| pod).collect()
    }

    /// The same with UIDs, and `None` for the removal of a Pod.
    pub async fn by_uid(&self) -> Vec<(String, Option<Pod>)> {
        let history = self.history().await.into_iter();
        let pod = |pod: Option<Arc<Pod>>| pod.map(Arc::unwrap_or_clone);
        history
            .map(|change| (change.uid, pod(change.object)))
            .collect()
    }

    /// The minimum number of available Pods that `counts` selects, since `matching` of them were available
    /// for the first time. Complete up to the time of the call.
    ///
    /// # Panics
    /// If there were never `matching` such Pods.
    pub async fn fewest_available(&self, counts: impl Fn(&Pod) -> bool, matching: usize) -> Fewest {
        let history = self.history().await;
        let mut available: BTreeMap<&str, bool> = BTreeMap::new();
        let mut story = Vec::new();
        let mut fewest: Option<Fewest> = None;
        for change in &history {
            let (version, uid, pod) = (change.version, &change.uid, &change.object);
            let now = pod.as_ref().is_some_and(|p| counts(p) && serves(p));
            let before = available.insert(uid, now).unwrap_or_default();
            if before == now {
                continue;
            }
            let count = available.values().filter(|v| **v).count();
            story.push(format!(
                "{version}: {count} available, {}",
                describe_pod(uid, pod.as_deref())
            ));
            if fewest
                .as_ref()
                .map_or(count == matching, |f| count < f.count)
            {
                fewest = Some(Fewest {
                    count,
                    until: story.len(),
                    story: Vec::new(),
                });
            }
        }
        let mut fewest = fewest
            .unwrap_or_else(|| panic!("there were never {matching} available Pods: {story:#?}"));
        fewest.story = story;
        fewest
    }
}

/// The minimum number of available Pods, and the changes that led to it.
pub struct Fewest {
    /// The minimum.
    pub count: usize,
    until: usize,
    story: Vec<String>,
}

impl Fewest {
    /// Fails with the last changes before the moment of least availability.
    pub fn at_least(&self, wanted: usize) {
        let last = &self.story[self.until.saturating_sub(25)..self.until];
        assert!(
            self.count >= wanted,
            "{} available instead of {wanted}: {last:#?}",
            self.count
        );
    }
}

/// Describes the availability of a Pod.
pub fn describe_pod(uid: &str, pod: Option<&Pod>) -> String {
    let Some(pod) = pod else {
        return format!("{uid} is gone");
    };
    let keys: Vec<_> = pod
        .labels()
        .keys()
        .filter(|k| k.contains("kusionstack.io"))
        .collect();
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    let conditions: Vec<_> = conditions
        .map(|c| format!("{}={}", c.type_, c.status))
        .collect();
    let deletion = if pod.metadata.deletion_timestamp.is_some() {
        "terminating"
    } else {
        ""
    };
    format!("{} {deletion} {keys:?} {conditions:?}", pod.name_any())
}

/// Available, and the kubelet has caught up with the last in-place change.
pub fn serves(pod: &Pod) -> bool {
    let running = |name: &str| {
        let statuses = pod
            .status
            .iter()
            .flat_map(|s| s.container_statuses.iter().flatten());
        statuses
            .into_iter()
            .find(|s| s.name == name)
            .map(|s| s.image.clone())
    };
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    is_available(pod) && containers.into_iter().all(|c| running(&c.name) == c.image)
}
