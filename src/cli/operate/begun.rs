//! Tells the operation that this process began or took up from another under the same ID.

use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod as StoredPod;
use kube::api::{Api, PartialObjectMeta};

use super::pod::OperatedPod;
use crate::api::keys::Family;
use crate::cli::why::follow_mode;
use crate::domain::pod::Pod;

/// An operation that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub id: String,
    uid: String,
    /// The value of the label `operating`.
    pub time: String,
}

/// What has become of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The operation is in progress.
    Held,
    /// The Pod was deleted, or another has its name.
    Gone,
    /// Somebody else has finished or cancelled the operation, and perhaps begun another under the ID.
    Lost,
}

impl Begun {
    /// The operation of the Pod; `None` if it is not in progress.
    pub fn of(pod: &Pod, id: &str) -> Option<Begun> {
        let time = pod.label(&Family::Operating.key(id))?;
        Some(Begun {
            id: id.to_owned(),
            uid: pod.metadata.uid.clone(),
            time: time.to_owned(),
        })
    }

    /// What has become of it.
    pub fn fate(&self, pod: Option<&Pod>) -> Fate {
        let Some(pod) = pod.filter(|pod| pod.metadata.uid == self.uid) else {
            return Fate::Gone;
        };
        match pod.label(&Family::Operating.key(&self.id)) {
            Some(time) if time == self.time => Fate::Held,
            _ => Fate::Lost,
        }
    }

    /// Waits until the operation is lost. Never returns if the Pod is deleted, or can't be watched.
    pub async fn until_lost(&self, target: &OperatedPod) {
        let pods: Api<PartialObjectMeta<StoredPod>> =
            Api::namespaced(target.client.clone(), &target.namespace);
        let watch = follow_mode::watch_changes(pods, Some(&target.name));
        let mut changes = SelectAll::from_iter([watch]);
        while let Ok(true) = follow_mode::next_change(follow_mode::BURST_WINDOW, &mut changes).await
        {
            let Ok(pod) = target.read(None).await else {
                break;
            };
            if self.fate(pod.as_ref()) == Fate::Lost {
                return;
            }
        }
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, time: &str) -> Pod {
        let mut pod = Pod::default();
        uid.clone_into(&mut pod.metadata.uid);
        let label = (Family::Operating.key("id"), time.to_owned());
        pod.metadata.labels = [label].into();
        pod
    }

    #[test]
    fn operation_of_another_run_is_not_ours() {
        let begun = Begun::of(&pod("u", "1"), "id");
        let fate = |pod: Option<&Pod>| begun.as_ref().map(|begun| begun.fate(pod));
        assert_eq!(fate(Some(&pod("u", "1"))), Some(Fate::Held));
        assert_eq!(fate(Some(&pod("u", "2"))), Some(Fate::Lost));
        assert_eq!(fate(Some(&pod("other", "1"))), Some(Fate::Gone));
        assert_eq!(fate(None), Some(Fate::Gone));
        let mut finished = pod("u", "1");
        finished.metadata.labels.clear();
        assert_eq!(fate(Some(&finished)), Some(Fate::Lost));
    }
}
