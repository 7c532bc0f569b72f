//! What each lifecycle ID on the Pod waits for (contract 3.2), told by the same conditions by which the state machine steps.

use std::sync::Arc;

use super::facts::{On, OperationFacts, RuleFacts, Trial, Verdict, Wait};
use super::{Controller, Observed, gate, owner, rules, stamp};
use crate::api::collaset::CollaSet;
use crate::api::keys::{self, Family};
use crate::domain::collaset::revision::inplace::{Progress, progress};
use crate::domain::collaset::strategy::Strategy;
use crate::domain::collaset::{Operation, Turn};
use crate::domain::lifecycle::offline::{self, Obstacle};
use crate::domain::lifecycle::{ExpectedFinalizers, Phase, Stage, phases};
use crate::domain::pod::Pod;
use crate::domain::wording;

/// Lifecycle ID of a CollaSet's operations, and of a deletion by `to-delete` (contract 3.1).
const COLLASET: &str = "collaset";
const DELETION: &str = "pod-delete";

const SECOND: u64 = 1_000_000_000;

/// The operations in flight. `rules` are those that cover the Pod; `excluded` says why none of them is enforced.
pub fn facts(
    observed: &Observed,
    rules: &[RuleFacts],
    excluded: Option<&str>,
) -> Vec<OperationFacts> {
    let all = phases(&observed.pod);
    let several = all.len() > 1;
    let all = all.into_iter().map(|(id, phase)| {
        // An endpoint answers each operation on its own.
        let own = several.then(|| rules::facts(observed, excluded, Some(&id)));
        one(observed, own.as_deref().unwrap_or(rules), id, phase)
    });
    all.collect()
}

fn one(observed: &Observed, rules: &[RuleFacts], id: String, phase: Phase) -> OperationFacts {
    let pod = &*observed.pod;
    let label = |family: Family| pod.label(&family.key(&id));
    let type_ = label(Family::OperationType).or(label(Family::DoneOperationType));
    let type_ = type_.unwrap_or_default().to_owned();
    let since = match phase {
        Phase::Idle => None,
        Phase::PreCheck => label(Family::PreCheck).or(label(Family::Operating)),
        Phase::Preparing => label(Family::Preparing),
        Phase::Operate => label(Family::Operate),
        Phase::PostCheck => label(Family::PostCheck),
        Phase::Completing => label(Family::Completing),
    };
    let deletes = id == DELETION || type_ == "scale-in";
    let deleted = match refused_deletion(observed) {
        Some(_) => {
            "the Pod is deleted once the API server lets it be".to_owned() + &back(observed, &id)
        }
        None => "the Pod is deleted".to_owned(),
    };
    let (waits_for, then) = match phase {
        Phase::Idle => (Vec::new(), ""),
        _ if pod.is_terminating() => {
            let text = "the end of the Pod, which is being deleted";
            (vec![wait(On::Kubelet, "", text)], "the Pod is gone")
        }
        Phase::PreCheck => (
            checked(rules, Stage::PreCheck, &type_, &id),
            "the Pod is taken off traffic (Preparing)",
        ),
        Phase::Preparing => (preparing(pod), "the operator may work on the Pod (Operate)"),
        Phase::Operate if deletes => (operate(observed, &id, &type_), &*deleted),
        Phase::Operate => (
            operate(observed, &id, &type_),
            "the rules of PostCheck are asked, and traffic comes back",
        ),
        Phase::PostCheck => (
            checked(rules, Stage::PostCheck, &type_, &id),
            "traffic is put back (Completing)",
        ),
        Phase::Completing => (completing(pod, &id), "the Pod is available again"),
    };
    OperationFacts {
        phase: phase.name(),
        since: stamp(since),
        begun: stamp(label(Family::Operating)),
        waits_for,
        then: then.to_owned(),
        id,
        type_,
    }
}

/// What the API server says to the deletion of the Pod, if it refuses that for good.
fn refused_deletion(observed: &Observed) -> Option<&str> {
    match &observed.around.trial {
        Some(trial) if gate::begins_lifecycle(trial) => None,
        Some(Trial::Denied { message, .. }) => Some(message),
        _ => None,
    }
}

/// How a Pod that can't be deleted gets back on traffic, after `; `; empty where the set decides that.
fn back(observed: &Observed, id: &str) -> String {
    if id != DELETION {
        return String::new();
    }
    let (key, pod) = (keys::TO_DELETE, &observed.pod.metadata);
    let command = format!("kubectl label pod {} -n {} {key}-", pod.name, pod.namespace);
    let set = observed
        .controller
        .as_ref()
        .and_then(|controller| match controller {
            Controller::CollaSet(set) => Some(set),
            _ => None,
        });
    let names = |set: &&Arc<CollaSet>| {
        let scale = set.spec.scale_strategy.as_ref();
        scale.is_some_and(|scale| scale.pod_to_delete.contains(&pod.name))
    };
    let first = set.filter(names).map_or_else(String::new, |set| {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        format!(", after its name is out of podToDelete of CollaSet {name}")
    });
    format!("; this brings it back on traffic instead{first}: `{command}`")
}

fn wait(on: On, name: impl Into<String>, text: impl Into<String>) -> Wait {
    Wait {
        on,
        name: name.into(),
        text: text.into(),
    }
}

/// Rows 2 and 8: the rules of the stage, then its turn, then whoever grants it.
fn checked(rules: &[RuleFacts], stage: Stage, type_: &str, id: &str) -> Vec<Wait> {
    if stage == Stage::PreCheck && type_.is_empty() {
        let key = Family::OperationType.key(id);
        let text = format!("whoever began it, to set the label {key} to the type of the operation");
        return vec![wait(On::Operator, key, text)];
    }
    let of_stage = rules.iter().filter(|rule| rule.stage == stage.as_str());
    let mut waits: Vec<Wait> = of_stage
        .clone()
        .filter(|rule| matches!(rule.verdict, Verdict::Holds | Verdict::Unknown))
        .map(|rule| {
            let text = format!(
                "{}: {}",
                wording::rule(&rule.object, &rule.rule),
                rule.reason
            );
            wait(On::Rule, format!("{}/{}", rule.object, rule.rule), text)
        })
        .collect();
    if waits.is_empty() && stage == Stage::PreCheck {
        let longer = of_stage
            .filter(|rule| rule.verdict == Verdict::Passes)
            .filter_map(|rule| Some((rule, rule.budget.as_ref()?.before?)))
            .max_by_key(|(_, before)| *before);
        if let Some((rule, before)) = longer.filter(|(_, before)| *before > 0) {
            let head = rule.budget.as_ref().and_then(|b| b.behind.as_deref());
            let head = head.unwrap_or("another Pod");
            let others = match before {
                1 => format!("its turn behind {head}, which waits"),
                before => format!("its turn behind {head} and {} more, which wait", before - 1),
            };
            let text = format!(
                "{others} longer for {}",
                wording::rule(&rule.object, &rule.rule)
            );
            waits.push(wait(
                On::Turn,
                format!("{}/{}", rule.object, rule.rule),
                text,
            ));
        }
    }
    if waits.is_empty() {
        let text = "the lifecycle controller, to grant it: no rule holds it";
        waits.push(wait(On::Controller, "", text));
    }
    waits
}

/// Rows 4 and 5: finalizers of cooperators off, condition False, kubelet followed.
fn preparing(pod: &Pod) -> Vec<Wait> {
    let expected = ExpectedFinalizers::of(pod).unwrap_or_default();
    let finalizers = pod.metadata.finalizers.iter();
    let mut waits: Vec<Wait> = finalizers
        .filter(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX))
        .map(|finalizer| {
            let owner = expected.entries().find(|(_, f)| f == finalizer);
            let owner = owner.map_or_else(String::new, |(key, _)| format!(" of {key}"));
            let text = format!("finalizer {finalizer}{owner}, to be taken off once traffic is off");
            wait(On::Finalizer, finalizer, text)
        })
        .collect();
    if pod.has_service_ready_gate() {
        if pod.condition(keys::SERVICE_READY) != Some(false) {
            let text = format!(
                "the lifecycle controller, to set the condition {} to False",
                keys::SERVICE_READY
            );
            waits.push(wait(On::Controller, keys::SERVICE_READY, text));
        } else if pod.is_ready() {
            waits.push(wait(
                On::Kubelet,
                "Ready",
                "the kubelet, to report the Pod not Ready",
            ));
        }
    }
    if waits.is_empty() {
        let text = "the lifecycle controller, to make the next step: nothing keeps it, unless an Event of the Pod says who refuses the write";
        waits.push(wait(On::Controller, "", text));
    }
    waits
}

/// Row 6: whoever works on the Pod.
fn operate(observed: &Observed, id: &str, type_: &str) -> Vec<Wait> {
    let pod = &*observed.pod;
    let one = match id {
        DELETION if let Some(why) = refused_deletion(observed) => wait(
            On::User,
            "",
            format!("the API server, which refuses its deletion: {why}"),
        ),
        DELETION => wait(
            On::Controller,
            "",
            "the deletion controller, to delete the Pod",
        ),
        COLLASET => collaset(observed, type_),
        id => match observed
            .jobs
            .iter()
            .find(|job| job.metadata.name.as_deref() == Some(id))
        {
            Some(job) => {
                let progress = job.status.as_ref().and_then(|s| s.progress.as_ref());
                let progress = progress.map_or_else(String::new, |p| format!(", which is {p}"));
                wait(
                    On::Operator,
                    id,
                    format!("OperationJob {id}, to finish ({type_}){progress}"),
                )
            }
            None => {
                let key = Family::Operating.key(id);
                let text =
                    format!("whoever began it, to do its work and then remove the label {key}");
                wait(On::Operator, id, text)
            }
        },
    };
    let kubelet = match progress(pod) {
        Progress::Waiting(why) | Progress::Refused(why) => {
            Some(wait(On::Kubelet, "", format!("the kubelet: {why}")))
        }
        Progress::Done => None,
    };
    kubelet.into_iter().chain([one]).collect()
}

/// The CollaSet's turn: its delay, its pause, then its work.
fn collaset(observed: &Observed, type_: &str) -> Wait {
    let Some(Controller::CollaSet(set)) = &observed.controller else {
        let text = "its CollaSet, which is gone or could not be read";
        return wait(On::Operator, COLLASET, text);
    };
    let name = set.metadata.name.clone().unwrap_or_default();
    let scales_in = type_ == "scale-in";
    let operation = match scales_in {
        true => Operation::ScaleIn,
        false => Operation::Update,
    };
    let delay = operation.delay(&Strategy::of(&set.spec));
    let now = u64::try_from(observed.now.as_nanosecond()).unwrap_or(0);
    let begun = observed.pod.annotation(keys::LAST_POD_STATUS).is_some();
    if let Turn::Delayed(left) = operation.turn(&observed.pod, delay, now)
        && !begun
    {
        let seconds = i64::try_from(left.div_ceil(SECOND)).unwrap_or(i64::MAX);
        let (delay, left) = (delay / SECOND, wording::age(seconds));
        let text =
            format!("CollaSet {name}: its operationDelaySeconds are {delay}, {left} are left");
        return wait(On::Delay, name, text);
    }
    if set.spec.paused {
        let text = format!("CollaSet {name}, which is paused: set spec.paused to false");
        return wait(On::User, name, text);
    }
    let from = observed.pod.label(keys::REVISION).unwrap_or_default();
    let text = match (scales_in, begun) {
        (true, _) => format!("CollaSet {name}, to scale the Pod in"),
        (false, true) => format!("CollaSet {name}, to finish the update to revision {from}"),
        (false, false) => match owner::updated_revision(set) {
            Some(to) => format!("CollaSet {name}, to update the Pod from revision {from} to {to}"),
            None => format!("CollaSet {name}, to update the Pod from revision {from}"),
        },
    };
    wait(On::Operator, name, text)
}

/// Rows 10 to 12: condition True, kubelet followed, finalizers of cooperators on.
fn completing(pod: &Pod, id: &str) -> Vec<Wait> {
    let obstacles = offline::obstacles(pod, &[id]);
    let mut waits: Vec<Wait> = obstacles.into_iter().map(of_obstacle).collect();
    if waits.is_empty() {
        let text = "the lifecycle controller, to make the last step: nothing keeps it, unless an Event of the Pod says who refuses the write";
        waits.push(wait(On::Controller, "", text));
    }
    waits
}

fn of_obstacle(obstacle: Obstacle) -> Wait {
    let text = obstacle.to_string();
    match obstacle {
        Obstacle::Operation(id, _) => wait(On::Operation, id, text),
        Obstacle::StayOffline => wait(On::User, keys::STAY_OFFLINE, text),
        Obstacle::Restart(_) => wait(On::Kubelet, keys::AWAITS_RESTART, text),
        Obstacle::Unnoticed | Obstacle::NotReady => wait(On::Kubelet, "Ready", text),
        Obstacle::Gate => wait(On::Controller, keys::SERVICE_READY, text),
        Obstacle::Finalizer(_, finalizer) => wait(On::Finalizer, finalizer, text),
        Obstacle::Unreadable(_) => wait(On::User, keys::AVAILABLE_CONDITIONS, text),
    }
}
