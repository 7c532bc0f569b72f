//! Why a Pod is not Ready, by what the scheduler, the kubelet and the node controller report. The readiness gate of the
//! lifecycle is no such cause, because it only follows them. Diagnoses, the status of CollaSets and Events share this
//! decision.

use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::{ContainerStatus, Pod, PodCondition, WaitingState};

/// Reason of a container that waits for the init containers.
const WAITS_FOR_INIT: &str = "PodInitializing";
/// Reason of a container that crashes again and again. The message of the kubelet contains the name of the Pod.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Why a Pod is not Ready.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotReadyCause<'a> {
    /// The Pod has no node: the scheduler finds none, or scheduling gates hold the Pod.
    NoNode(&'a PodCondition),
    /// The Pod has no node, and no scheduler has reported on it.
    NoScheduler,
    /// The node has not begun to start the containers.
    NotStarted {
        /// Name of the node.
        node: &'a str,
    },
    /// A container waits for the kubelet.
    Waiting(&'a ContainerStatus, &'a WaitingState),
    /// An init container has not finished.
    Initializing(&'a ContainerStatus),
    /// A container runs, and a probe has not succeeded.
    Unready(&'a ContainerStatus),
    /// A container has ended.
    Ended(&'a ContainerStatus),
    /// The condition of a readiness gate of another program is not True.
    Gate(&'a str),
    /// All containers are ready, and the node controller has set the Pod to not Ready.
    NodeLost {
        /// Name of the node.
        node: &'a str,
    },
}

impl<'a> NotReadyCause<'a> {
    /// The cause. `None` if the Pod is Ready, terminates or has finished, or if no cause is known.
    pub fn of_pod(pod: &'a Pod) -> Option<NotReadyCause<'a>> {
        if pod.is_ready() || pod.is_terminating() || pod.is_finished() {
            return None;
        }
        let scheduled = condition(pod, "PodScheduled");
        if let Some(unscheduled) = scheduled.filter(|c| c.status != "True") {
            return Some(NotReadyCause::NoNode(unscheduled));
        }
        let is_new = pod.status.phase == "Pending" && pod.status.container_statuses.is_empty();
        if scheduled.is_none() && pod.spec.node_name.is_empty() && is_new {
            return Some(NotReadyCause::NoScheduler);
        }
        waiting_container(pod)
            .or_else(|| unfinished_init_container(pod))
            .or_else(|| unready_container(pod))
            .or_else(|| pending_on_node(pod))
            .or_else(|| foreign_gate(pod))
            .or_else(|| lost_node(pod))
    }

    /// Whether the Pod stays as it is until somebody corrects the cause, or until the cluster changes. False for the
    /// causes of a normal start.
    pub fn is_stuck(&self) -> bool {
        match self {
            NotReadyCause::NoNode(_)
            | NotReadyCause::NoScheduler
            | NotReadyCause::NodeLost { .. } => true,
            NotReadyCause::Waiting(_, waiting) => waiting.is_broken(),
            _ => false,
        }
    }

    /// The cause as a clause. `scheduler_message` is the whole message of the scheduler; a Pod keeps only its begin.
    pub fn describe(&self, pod: &Pod, scheduler_message: Option<&str>) -> String {
        match self {
            NotReadyCause::NoNode(unscheduled) => {
                let message = scheduler_message.or(unscheduled.message.as_deref());
                match message.filter(|message| !message.is_empty()) {
                    Some(message) => {
                        let pvc_names = messages::append_pvc_names(message, &pod.spec.pvcs);
                        format!("{}: {message}{pvc_names}", self.describe_kind())
                    }
                    None => self.describe_kind(),
                }
            }
            NotReadyCause::Waiting(_, waiting) => match waiting.message.as_str() {
                "" => self.describe_kind(),
                message => format!("{}: {message}", self.describe_kind()),
            },
            _ => self.describe_kind(),
        }
    }

    /// The cause as a clause that is the same for all Pods with the cause.
    pub fn describe_shared(&self, pod: &Pod) -> String {
        match self {
            NotReadyCause::Waiting(_, waiting) if waiting.reason == CRASH_LOOP => {
                self.describe_kind()
            }
            _ => self.describe(pod, None),
        }
    }

    /// The cause in short, without messages.
    pub fn describe_kind(&self) -> String {
        match self {
            NotReadyCause::NoNode(unscheduled) => match unscheduled.reason.as_str() {
                "SchedulingGated" => "it is not scheduled to a node (SchedulingGated)".to_owned(),
                _ => "it is not scheduled to a node".to_owned(),
            },
            NotReadyCause::NoScheduler => {
                "no scheduler has reported on it: see spec.schedulerName".to_owned()
            }
            NotReadyCause::NotStarted { node } => {
                format!("node {node} has not started its containers yet")
            }
            NotReadyCause::Waiting(container, waiting) => {
                let exit = last_exit(container);
                format!(
                    "container {} waits: {}{exit}",
                    container.name, waiting.reason
                )
            }
            NotReadyCause::Initializing(container) => {
                let exit = last_exit(container);
                format!("init container {} has not finished{exit}", container.name)
            }
            NotReadyCause::Unready(container) => {
                let (name, exit) = (&container.name, last_exit(container));
                format!(
                    "container {name} runs and is not ready: its readiness or startup probe has not succeeded{exit}"
                )
            }
            NotReadyCause::Ended(container) => {
                let exit = match container.state.exit_code {
                    Some(code) => format!(" (exit code {code})"),
                    None => last_exit(container),
                };
                format!("container {} has ended{exit}", container.name)
            }
            NotReadyCause::Gate(type_) => format!(
                "the condition {type_} is not True, which a readiness gate of the Pod demands and another program sets"
            ),
            NotReadyCause::NodeLost { node } => format!(
                "its containers were ready when node {node} last reported, and the node controller has set it to not Ready: \
                 see whether the node is Ready"
            ),
        }
    }
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.conditions.iter();
    conditions.find(|c| c.type_ == type_)
}

/// The exit code of the last run of a container, in parentheses after a space. Empty if it has not ended before.
fn last_exit(container: &ContainerStatus) -> String {
    container
        .last_exit_code
        .map_or_else(String::new, |code| format!(" (last exit code {code})"))
}

/// A container that waits. Broken containers come first. A container that waits for an init container comes last,
/// because the init container has the cause.
fn waiting_container(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let status = &pod.status;
    let statuses = status.init_container_statuses.iter();
    let waiting = || {
        let statuses = statuses.clone().chain(&status.container_statuses);
        statuses.filter_map(|container| Some((container, container.state.waiting.as_deref()?)))
    };
    let broken = waiting().find(|(_, waiting)| waiting.is_broken());
    let has_cause =
        |waiting: &WaitingState| !waiting.reason.is_empty() && waiting.reason != WAITS_FOR_INIT;
    let first = broken.or_else(|| waiting().find(|(_, waiting)| has_cause(waiting)));
    first.map(|(container, waiting)| NotReadyCause::Waiting(container, waiting))
}

fn unfinished_init_container(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let is_sidecar = |name: &str| {
        let mut containers = pod.spec.init_containers.iter();
        containers.any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
    };
    let mut statuses = pod.status.init_container_statuses.iter();
    let unfinished = statuses.find(|status| !status.ready && !is_sidecar(&status.name))?;
    Some(NotReadyCause::Initializing(unfinished))
}

fn unready_container(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let status = &pod.status;
    let sidecars = status.init_container_statuses.iter();
    let mut statuses = sidecars.chain(&status.container_statuses);
    let unready = statuses.find(|container| !container.ready)?;
    Some(match unready.state.is_running {
        true => NotReadyCause::Unready(unready),
        false => NotReadyCause::Ended(unready),
    })
}

fn pending_on_node(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let node = pod.spec.node_name.as_str();
    let is_new = pod.status.phase == "Pending" && pod.status.container_statuses.is_empty();
    (is_new && !node.is_empty()).then_some(NotReadyCause::NotStarted { node })
}

/// The first readiness gate of another program that the kubelet names.
fn foreign_gate(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let message = condition(pod, "Ready")?.message.as_deref()?;
    let mut gates = pod.spec.readiness_gates.iter();
    let gate = gates.find(|gate| {
        let type_ = &gate.condition_type;
        type_ != keys::SERVICE_READY && message.contains(&format!("\"{type_}\""))
    })?;
    Some(NotReadyCause::Gate(&gate.condition_type))
}

/// The kubelet names a reason whenever it reports a Pod not Ready. The node controller changes only the status of the
/// condition (`MarkPodsNotReady`).
fn lost_node(pod: &Pod) -> Option<NotReadyCause<'_>> {
    let (node, containers) = (pod.spec.node_name.as_str(), &pod.status.container_statuses);
    let is_marked = condition(pod, "Ready")?.reason.is_empty();
    let may_serve =
        !pod.has_service_ready_gate() || pod.condition(keys::SERVICE_READY) == Some(true);
    let ran = !containers.is_empty() && containers.iter().all(|container| container.ready);
    (is_marked && may_serve && ran && !node.is_empty()).then_some(NotReadyCause::NodeLost { node })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        let gates = [keys::SERVICE_READY, "example.com/registered"];
        let gates = gates.map(|type_| json!({ "conditionType": type_ }));
        let mut pod = json!({
            "metadata": { "name": "web-0" },
            "spec": {
                "nodeName": "node-1", "readinessGates": gates,
                "initContainers": [{ "name": "init" }, { "name": "proxy", "restartPolicy": "Always" }],
            },
            "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": "False" }, { "type": keys::SERVICE_READY, "status": "True" },
            ] },
        });
        json_patch::merge(&mut pod["status"], &status);
        serde_json::from_value(pod).unwrap()
    }

    /// The cause, and whether somebody must correct it.
    fn cause(status: Value) -> (String, bool) {
        let pod = pod(status);
        let cause = NotReadyCause::of_pod(&pod);
        cause.map_or_else(Default::default, |cause| {
            (cause.describe(&pod, None), cause.is_stuck())
        })
    }

    fn main_container(status: Value) -> Value {
        let mut main = json!({ "name": "main" });
        json_patch::merge(&mut main, &status);
        json!({ "containerStatuses": [main] })
    }

    #[test]
    fn scheduler_message_and_gates_are_reported() {
        let unscheduled = |reason: &str, message: &str| {
            json!({ "conditions": [
                { "type": "PodScheduled", "status": "False", "reason": reason, "message": message },
            ] })
        };
        let (text, is_stuck) = cause(unscheduled("Unschedulable", "0/3 nodes are available"));
        assert_eq!(
            text,
            "it is not scheduled to a node: 0/3 nodes are available"
        );
        assert!(is_stuck);
        let (text, is_stuck) = cause(unscheduled("SchedulingGated", "blocked"));
        assert_eq!(
            text,
            "it is not scheduled to a node (SchedulingGated): blocked"
        );
        assert!(is_stuck);
    }

    #[test]
    fn pod_that_no_scheduler_has_seen_is_stuck() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "web-0" }, "spec": {}, "status": { "phase": "Pending" },
        }))
        .unwrap();
        let cause = NotReadyCause::of_pod(&pod).unwrap();
        assert_eq!(
            cause.describe(&pod, None),
            "no scheduler has reported on it: see spec.schedulerName"
        );
        assert!(cause.is_stuck());
    }

    #[test]
    fn crash_loop_is_reported_with_exit_code() {
        let status = main_container(json!({
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 5m0s of pod=web-0" } },
            "lastState": { "terminated": { "exitCode": 137 } },
        }));
        let shared = "container main waits: CrashLoopBackOff (last exit code 137)";
        assert_eq!(
            cause(status.clone()),
            (format!("{shared}: back-off 5m0s of pod=web-0"), true)
        );
        let pod = pod(status);
        let cause = NotReadyCause::of_pod(&pod).unwrap();
        assert_eq!(cause.describe_shared(&pod), shared);
    }

    #[test]
    fn broken_container_comes_before_one_that_starts() {
        let waits = |name: &str, reason: &str| json!({ "name": name, "state": { "waiting": { "reason": reason } } });
        let both = [waits("a", "ContainerCreating"), waits("b", "ErrImagePull")];
        let (text, is_stuck) = cause(json!({ "containerStatuses": both }));
        assert_eq!(text, "container b waits: ErrImagePull");
        assert!(is_stuck);
        let (text, is_stuck) = cause(json!({ "containerStatuses": [both[0]] }));
        assert_eq!(text, "container a waits: ContainerCreating");
        assert!(!is_stuck);
    }

    #[test]
    fn init_container_comes_before_containers_that_wait_for_it() {
        let mut status =
            main_container(json!({ "state": { "waiting": { "reason": "PodInitializing" } } }));
        status["initContainerStatuses"] = json!([
            { "name": "proxy", "ready": false, "state": { "running": {} } },
            { "name": "init", "ready": false, "state": { "running": {} } },
        ]);
        let init = "init container init has not finished";
        assert_eq!(cause(status.clone()), (init.to_owned(), false));
        status["initContainerStatuses"][1]["ready"] = json!(true);
        let (text, _) = cause(status);
        assert!(text.starts_with("container proxy runs"), "{text}");
    }

    #[test]
    fn failing_probe_differs_from_ended_container() {
        let (text, is_stuck) = cause(main_container(json!({ "state": { "running": {} } })));
        assert!(text.contains("probe has not succeeded"), "{text}");
        assert!(!is_stuck);
        let (text, _) = cause(main_container(
            json!({ "state": { "terminated": { "exitCode": 0 } } }),
        ));
        assert_eq!(text, "container main has ended (exit code 0)");
        let (text, _) = cause(main_container(json!({
            "state": { "terminated": { "exitCode": 3 } }, "lastState": { "terminated": { "exitCode": 1 } },
        })));
        assert_eq!(text, "container main has ended (exit code 3)");
    }

    #[test]
    fn own_gate_is_no_cause_but_a_foreign_gate_is() {
        let with_gate = |type_: &str| {
            let message = format!("the status of pod readiness gate \"{type_}\" is not \"True\"");
            let mut status = main_container(json!({ "ready": true, "state": { "running": {} } }));
            status["conditions"] = json!([
                { "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": message },
            ]);
            cause(status)
        };
        assert_eq!(with_gate(keys::SERVICE_READY), (String::new(), false));
        let (text, _) = with_gate("example.com/registered");
        assert!(
            text.starts_with("the condition example.com/registered is not True"),
            "{text}"
        );
    }

    #[test]
    fn lost_node_is_told_from_a_report_of_the_kubelet() {
        let running = main_container(json!({ "ready": true, "state": { "running": {} } }));
        let (text, is_stuck) = cause(running.clone());
        assert!(text.contains("node node-1 last reported"), "{text}");
        assert!(is_stuck);
        let mut reported = running;
        reported["conditions"] =
            json!([{ "type": "Ready", "status": "False", "reason": "ContainersNotReady" }]);
        assert_eq!(cause(reported), (String::new(), false));
    }

    #[test]
    fn ready_or_ending_pod_has_no_cause() {
        let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        assert_eq!(cause(ready), (String::new(), false));
        assert_eq!(cause(json!({ "phase": "Failed" })), (String::new(), false));
        let (text, _) = cause(json!({ "phase": "Pending" }));
        assert_eq!(text, "node node-1 has not started its containers yet");
    }
}
