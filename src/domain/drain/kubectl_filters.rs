//! Which Pods of a node `kubectl drain` evicts, by the same order of filters as kubectl
//! (`k8s.io/kubectl/pkg/drain/filters.go` of Kubernetes 1.36).

use serde::Serialize;

use crate::api::keys;
use crate::domain::pod::Pod;

/// The flags of `kubectl drain` that choose Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainFlags {
    /// `--ignore-daemonsets`.
    pub ignore_daemonsets: bool,
    /// `--delete-emptydir-data`.
    pub delete_emptydir_data: bool,
    /// `--force`.
    pub force: bool,
}

/// The DaemonSet that controls a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonSetRead {
    /// It exists.
    Found,
    /// There is none of this name.
    Gone,
    /// It could not be read, for this reason.
    Unreadable(String),
}

/// What `kubectl drain` does with a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubectlChoice {
    /// kubectl evicts the Pod.
    Evicts,
    /// kubectl leaves the Pod on the node.
    Skips(SkipReason),
    /// kubectl evicts no Pod at all because of this Pod.
    Refuses(RefusalReason),
}

/// Why `kubectl drain` leaves a Pod on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SkipReason {
    /// A DaemonSet controls the Pod, and would make a new Pod on the same node.
    DaemonSet,
    /// The kubelet runs the Pod from a file.
    MirrorPod,
}

/// Why `kubectl drain` does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// A DaemonSet controls the Pod, and `--ignore-daemonsets` is missing.
    DaemonSet,
    /// The DaemonSet of the Pod does not exist, and `--force` is missing.
    DaemonSetGone,
    /// The DaemonSet of the Pod could not be read.
    DaemonSetUnreadable(String),
    /// The Pod has a volume of type `emptyDir`, and `--delete-emptydir-data` is missing.
    EmptyDir,
    /// No controller makes a new Pod in its place, and `--force` is missing.
    NoController,
}

/// Whether a DaemonSet controls the Pod. kubectl looks at the kind alone.
pub fn is_of_daemon_set(pod: &Pod) -> bool {
    pod.controller()
        .is_some_and(|owner| owner.kind == "DaemonSet")
}

/// What `kubectl drain` does with a Pod. `daemon_set` is the DaemonSet of a Pod for which [`is_of_daemon_set`] is true.
pub fn choose(
    pod: &Pod,
    has_empty_dir: bool,
    daemon_set: Option<&DaemonSetRead>,
    flags: DrainFlags,
) -> KubectlChoice {
    let is_finished = pod.is_finished();
    if is_of_daemon_set(pod) && !is_finished {
        match daemon_set {
            Some(DaemonSetRead::Gone) if flags.force => {}
            Some(DaemonSetRead::Gone) => {
                return KubectlChoice::Refuses(RefusalReason::DaemonSetGone);
            }
            Some(DaemonSetRead::Unreadable(why)) => {
                return KubectlChoice::Refuses(RefusalReason::DaemonSetUnreadable(why.clone()));
            }
            Some(DaemonSetRead::Found) | None if flags.ignore_daemonsets => {
                return KubectlChoice::Skips(SkipReason::DaemonSet);
            }
            Some(DaemonSetRead::Found) | None => {
                return KubectlChoice::Refuses(RefusalReason::DaemonSet);
            }
        }
    }
    // kubectl looks at the annotation alone, other than the server.
    if pod.annotation(keys::MIRROR).is_some() {
        return KubectlChoice::Skips(SkipReason::MirrorPod);
    }
    if has_empty_dir && !is_finished && !flags.delete_emptydir_data {
        return KubectlChoice::Refuses(RefusalReason::EmptyDir);
    }
    if pod.controller().is_none() && !is_finished && !flags.force {
        return KubectlChoice::Refuses(RefusalReason::NoController);
    }
    KubectlChoice::Evicts
}

impl SkipReason {
    /// The reason as a clause.
    pub const fn text(self) -> &'static str {
        match self {
            SkipReason::DaemonSet => "a DaemonSet controls it",
            SkipReason::MirrorPod => "the kubelet runs it from a file",
        }
    }
}

impl RefusalReason {
    /// The reason as a clause.
    pub fn text(&self) -> String {
        match self {
            RefusalReason::DaemonSet => "a DaemonSet controls it".to_owned(),
            RefusalReason::DaemonSetGone => "its DaemonSet does not exist".to_owned(),
            RefusalReason::DaemonSetUnreadable(why) => {
                format!("its DaemonSet can't be read: {why}")
            }
            RefusalReason::EmptyDir => {
                "it has a volume of type emptyDir, whose data is lost".to_owned()
            }
            RefusalReason::NoController => {
                "it has no controller that makes a new Pod in its place".to_owned()
            }
        }
    }

    /// What to do, a sentence without its full stop.
    pub const fn remedy(&self) -> &'static str {
        match self {
            RefusalReason::DaemonSet => "Add --ignore-daemonsets, which leaves it on the node",
            RefusalReason::DaemonSetGone => "Add --force, which evicts it, or delete it",
            RefusalReason::DaemonSetUnreadable(_) => {
                "Ask for the right to get DaemonSets, which kubectl drain needs, too"
            }
            RefusalReason::EmptyDir => "Save the data, and add --delete-emptydir-data",
            RefusalReason::NoController => "Add --force, which evicts it for good, or delete it",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    const PLAIN: DrainFlags = DrainFlags {
        ignore_daemonsets: false,
        delete_emptydir_data: false,
        force: false,
    };
    const ALL: DrainFlags = DrainFlags {
        ignore_daemonsets: true,
        delete_emptydir_data: true,
        force: true,
    };

    fn pod(owner: Option<&str>, patch: &Value) -> Pod {
        let owners: Vec<_> = owner
            .iter()
            .map(|kind| json!({ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true }))
            .collect();
        let mut pod = json!({
            "metadata": { "name": "web-0", "ownerReferences": owners },
            "status": { "phase": "Running" },
        });
        json_patch::merge(&mut pod, patch);
        serde_json::from_value(pod).unwrap()
    }

    fn refuses(reason: RefusalReason) -> KubectlChoice {
        KubectlChoice::Refuses(reason)
    }

    #[test]
    fn pods_of_daemon_sets_are_skipped_only_with_the_flag() {
        let pod_of_set = pod(Some("DaemonSet"), &json!({}));
        let found = Some(&DaemonSetRead::Found);
        assert_eq!(
            choose(&pod_of_set, true, found, ALL),
            KubectlChoice::Skips(SkipReason::DaemonSet)
        );
        assert_eq!(
            choose(&pod_of_set, false, found, PLAIN),
            refuses(RefusalReason::DaemonSet)
        );
        let gone = Some(&DaemonSetRead::Gone);
        assert_eq!(choose(&pod_of_set, false, gone, ALL), KubectlChoice::Evicts);
        let no_force = DrainFlags {
            force: false,
            ..ALL
        };
        assert_eq!(
            choose(&pod_of_set, false, gone, no_force),
            refuses(RefusalReason::DaemonSetGone)
        );
        let unreadable = DaemonSetRead::Unreadable("no".to_owned());
        assert_eq!(
            choose(&pod_of_set, false, Some(&unreadable), ALL),
            refuses(RefusalReason::DaemonSetUnreadable("no".to_owned()))
        );
    }

    #[test]
    fn pod_without_controller_or_with_empty_dir_stops_drain() {
        let bare = pod(None, &json!({}));
        assert_eq!(
            choose(&bare, false, None, PLAIN),
            refuses(RefusalReason::NoController)
        );
        assert_eq!(choose(&bare, true, None, ALL), KubectlChoice::Evicts);
        // kubectl looks for local data before it looks for a controller.
        assert_eq!(
            choose(&bare, true, None, PLAIN),
            refuses(RefusalReason::EmptyDir)
        );
        let owned = pod(Some("ReplicaSet"), &json!({}));
        assert_eq!(choose(&owned, false, None, PLAIN), KubectlChoice::Evicts);
        assert_eq!(
            choose(&owned, true, None, PLAIN),
            refuses(RefusalReason::EmptyDir)
        );
    }

    #[test]
    fn finished_pods_go_whatever_the_flags_are() {
        for phase in ["Succeeded", "Failed"] {
            let status = json!({ "status": { "phase": phase } });
            for owner in [None, Some("DaemonSet"), Some("Job")] {
                let choice = choose(&pod(owner, &status), true, None, PLAIN);
                assert_eq!(choice, KubectlChoice::Evicts, "{owner:?} {phase}");
            }
        }
    }

    #[test]
    fn mirror_pods_stay() {
        let annotations =
            json!({ "metadata": { "annotations": { "kubernetes.io/config.mirror": "x" } } });
        assert_eq!(
            choose(&pod(Some("Node"), &annotations), true, None, PLAIN),
            KubectlChoice::Skips(SkipReason::MirrorPod)
        );
    }
}
