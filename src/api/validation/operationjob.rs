//! Validation of OperationJob (contract 1.5). The schema checks some of this too, but names no remedy, and its rules on
//! the targets are limited by the cost of CEL.

use std::collections::HashMap;

use super::values::{allowed_values, check_non_negative};
use super::{FieldError, FieldErrors};
use crate::api::keys;
use crate::api::labels::{dns_label_problem, dns_name_problem};
use crate::api::operationjob::{Action, OperationJobSpec, Target};

/// Maximum number of targets. The status has an entry for each target, and etcd stores at most 1.5 MiB of one object. Texts
/// in the entries of a large job are short (`domain::operationjob::target_plan`), and entries of targets in progress are
/// larger, so that not all targets are in progress at a time (`domain::operationjob::selection`).
pub const MAX_TARGETS: usize = 2_000;

/// Maximum number of bytes of the names in `spec.targets`: enough for 2,000 Pods with names of 90 characters. The status
/// repeats the names.
pub const MAX_NAME_BYTES: usize = 192 * 1024;
/// Maximum number of containers that a target may name. The status notes each container of a target in progress.
pub const MAX_CONTAINERS: usize = 32;

/// The values of the annotation [`keys::RESTART_BY`].
pub const RESTART_METHODS: [&str; 3] = ["auto", "ContainerRecreateRequest", "ImageReference"];

/// The errors of an OperationJob on its own. `restart_by` is the value of its annotation [`keys::RESTART_BY`].
pub fn validate(spec: &OperationJobSpec, restart_by: Option<&str>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    check_operationjob(spec, restart_by, &mut errors);
    errors
}

/// Adds the errors of an OperationJob on its own to `errors`, see [`validate`].
pub fn check_operationjob(
    spec: &OperationJobSpec,
    restart_by: Option<&str>,
    errors: &mut FieldErrors,
) {
    check_action(spec.action.as_ref(), errors);
    check_targets(&spec.targets, errors);
    check_non_negative(spec.partition, "spec.partition", errors);
    check_non_negative(
        spec.operation_delay_seconds,
        "spec.operationDelaySeconds",
        errors,
    );
    check_positive(
        spec.active_deadline_seconds,
        "spec.activeDeadlineSeconds",
        "it is the number of seconds that each target may take",
        errors,
    );
    check_positive(
        spec.ttl_seconds_after_finished,
        "spec.TTLSecondsAfterFinished",
        "it is the number of seconds after which the finished job is deleted",
        errors,
    );
    if is_action(spec, Action::RESTART) {
        check_restart_by(restart_by, errors);
    }
}

/// The errors of a change of a stored OperationJob. `partition` may grow or be removed, and the times may change.
pub fn validate_change(old: &OperationJobSpec, new: &OperationJobSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    if let Some(old) = old.action.as_ref().filter(|action| !action.0.is_empty())
        && new.action.as_ref() != Some(old)
    {
        let new = new.action.as_ref().map_or("", |action| &action.0);
        let problem = format!(
            "is immutable, it was {:?}: create another OperationJob for another action",
            old.0
        );
        errors.push(FieldError::new("spec.action", new, problem));
    }
    if !old.targets.is_empty() && old.targets != new.targets {
        let problem = "is immutable: create another OperationJob for other Pods";
        errors.push(FieldError::missing_field("spec.targets", problem));
    }
    errors.extend(partition_error(old.partition, new.partition));
    errors
}

/// Warnings about valid specs that probably have an unintended effect; `old` is the stored spec of an update.
pub fn warnings(old: Option<&OperationJobSpec>, new: &OperationJobSpec) -> Vec<String> {
    // The targets of a stored job are immutable, so a warning about them would have no remedy.
    if old.is_some() || !is_action(new, Action::REPLACE) {
        return Vec::new();
    }
    let has_containers = |target: &Target| !target.containers.is_empty();
    let ignored = new.targets.iter().position(has_containers);
    let warning = ignored.map(|index| {
        format!(
            "spec.targets[{index}].containers: is ignored, because the action Replace replaces the whole Pod: leave out the \
             containers of all targets, or set the action to Restart"
        )
    });
    warning.into_iter().collect()
}

fn is_action(spec: &OperationJobSpec, name: &str) -> bool {
    spec.action.as_ref().is_some_and(|action| action.0 == name)
}

fn check_action(action: Option<&Action>, errors: &mut FieldErrors) {
    let path = "spec.action";
    let known = "Replace, Restart, or <domain>/<name> for the action of another program";
    match action.filter(|action| !action.0.is_empty()) {
        None => {
            let problem = format!("is required: set it to {known}");
            errors.push(FieldError::missing_field(path, problem));
        }
        Some(action) if !action.is_known() => {
            let detail = qualified_name_problem(&action.0).unwrap_or_default();
            let problem = format!("must be {known}{detail}");
            errors.push(FieldError::new(path, &action.0, problem));
        }
        Some(_) => {}
    }
}

/// What is wrong with an unknown action that has a slash, as the end of a sentence.
fn qualified_name_problem(action: &str) -> Option<String> {
    let (domain, _) = action.split_once('/')?;
    Some(match dns_name_problem(domain) {
        Some(problem) => format!("; the domain {problem}"),
        None => "; the name must have 1 to 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
            .to_owned(),
    })
}

fn check_targets(targets: &[Target], errors: &mut FieldErrors) {
    let path = "spec.targets";
    match targets.len() {
        0 => {
            let problem = "is required: list the Pods to operate on, each by name";
            errors.push(FieldError::missing_field(path, problem));
        }
        // Without the other checks, whose effort grows with the number of targets.
        count if count > MAX_TARGETS => {
            let problem = format!(
                "has {count} entries and may have {MAX_TARGETS}, because the status has an entry for each target and must \
                 fit into etcd: split the targets over several OperationJobs"
            );
            errors.push(FieldError::missing_field(path, problem));
        }
        _ if name_bytes(targets) > MAX_NAME_BYTES => {
            let problem = format!(
                "has names of {} bytes and may have {MAX_NAME_BYTES}, because the status repeats them and must fit into \
                 etcd: split the targets over several OperationJobs",
                name_bytes(targets)
            );
            errors.push(FieldError::missing_field(path, problem));
        }
        _ => {
            check_target_names(targets, errors);
            for (index, target) in targets.iter().enumerate() {
                check_containers(
                    &format!("{path}[{index}].containers"),
                    &target.containers,
                    errors,
                );
            }
        }
    }
}

fn name_bytes(targets: &[Target]) -> usize {
    let bytes = targets.iter().map(|target| {
        let containers = target.containers.iter().map(String::len);
        target.name.len() + containers.sum::<usize>()
    });
    bytes.sum()
}

fn check_target_names(targets: &[Target], errors: &mut FieldErrors) {
    let mut first = HashMap::new();
    let problems = targets.iter().enumerate().filter_map(|(index, target)| {
        let path = format!("spec.targets[{index}].name");
        let name = target.name.as_str();
        if name.is_empty() {
            let problem = "is required: set it to the name of a Pod in the namespace of the job";
            return Some(FieldError::missing_field(path, problem));
        }
        if let Some(problem) = dns_name_problem(name) {
            let problem = format!("{problem}: set it to the name of a Pod");
            return Some(FieldError::new(path, name, problem));
        }
        let earlier = *first.entry(name).or_insert(index);
        (earlier != index).then(|| {
            let problem =
                format!("is the name of spec.targets[{earlier}], too: list each Pod once");
            FieldError::new(path, name, problem)
        })
    });
    errors.extend(problems);
}

/// `path` is the path of the list.
fn check_containers(path: &str, containers: &[String], errors: &mut FieldErrors) {
    if containers.len() > MAX_CONTAINERS {
        let problem = format!(
            "has {} entries and may have {MAX_CONTAINERS}: leave the list out to restart all containers",
            containers.len()
        );
        errors.push(FieldError::missing_field(path, problem));
        return;
    }
    let mut first = HashMap::new();
    let problems = containers.iter().enumerate().filter_map(|(index, name)| {
        let at = || format!("{path}[{index}]");
        if name.is_empty() {
            let problem =
                "must not be empty: set it to the name of a container, or remove the entry";
            return Some(FieldError::new(at(), name, problem));
        }
        if let Some(problem) = dns_label_problem(name) {
            let problem = format!("{problem}: set it to the name of a container");
            return Some(FieldError::new(at(), name, problem));
        }
        let earlier = *first.entry(name.as_str()).or_insert(index);
        (earlier != index).then(|| {
            let problem =
                format!("is the name of {path}[{earlier}], too: list each container once");
            FieldError::new(at(), name, problem)
        })
    });
    errors.extend(problems);
}

/// Adds an error if a number is below 1. `meaning` is a clause.
fn check_positive(value: Option<i32>, path: &str, meaning: &str, errors: &mut FieldErrors) {
    if let Some(value) = value.filter(|value| *value <= 0) {
        let problem =
            format!("must be 1 or more: {meaning}; set a number, or leave it out for the default");
        errors.push(FieldError::with_raw_value(path, value.to_string(), problem));
    }
}

fn check_restart_by(restart_by: Option<&str>, errors: &mut FieldErrors) {
    if let Some(method) = restart_by.filter(|method| !RESTART_METHODS.contains(method)) {
        let path = format!("metadata.annotations[{}]", keys::RESTART_BY);
        let known = allowed_values(&RESTART_METHODS);
        let problem =
            format!("{known}: correct it, or remove the annotation for the setting of the server");
        errors.push(FieldError::new(path, method, problem));
    }
}

/// The error of a partition that would leave out targets that may have been operated on. Without a partition, all
/// targets are operated on.
fn partition_error(old: Option<i32>, new: Option<i32>) -> Option<FieldError> {
    let new = new?;
    let problem = match old {
        None => "can't be set afterwards: without it all targets are operated on, and some may have been already; leave it \
                 out"
            .to_owned(),
        Some(old) if new < old => format!(
            "may not decrease, it was {old}: targets beyond it may have been operated on already; set it to {old} or more, \
             or leave it out for all targets"
        ),
        Some(_) => return None,
    };
    let path = "spec.partition";
    Some(FieldError::with_raw_value(path, new.to_string(), problem))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    const NONE: [&str; 0] = [];
    const KNOWN: &str =
        "must be Replace, Restart, or <domain>/<name> for the action of another program";

    /// A valid spec with `part` merged into it.
    fn spec(part: Value) -> OperationJobSpec {
        let mut spec = json!({ "action": "Replace", "targets": [{ "name": "web-a" }] });
        json_patch::merge(&mut spec, &part);
        serde_json::from_value(spec).unwrap()
    }

    fn lines(errors: &FieldErrors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn errors(part: Value) -> Vec<String> {
        lines(&validate(&spec(part), None))
    }

    fn change(old: Value, new: Value) -> Vec<String> {
        lines(&validate_change(&spec(old), &spec(new)))
    }

    #[test]
    fn valid_jobs_have_no_errors() {
        let targets = json!([
            { "name": "web-a", "containers": ["app", "log"] },
            { "name": "b.c", "containers": ["app"] },
            { "name": "c", "containers": null },
        ]);
        for part in [
            json!({}),
            json!({ "action": "Restart", "targets": targets }),
            json!({ "action": "example.com/Drain", "partition": 0, "operationDelaySeconds": 0 }),
            json!({ "partition": 7, "activeDeadlineSeconds": 1, "TTLSecondsAfterFinished": 1 }),
        ] {
            assert_eq!(errors(part.clone()), NONE, "{part}");
        }
    }

    #[test]
    fn action_is_required_and_known() {
        let missing = "spec.action: is required: set it to Replace, Restart, or <domain>/<name> for the action of another \
                       program";
        for action in [json!(null), json!("")] {
            assert_eq!(errors(json!({ "action": action })), [missing]);
        }
        let name = "the name must have 1 to 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit";
        let domain = "the domain must have at most 253 lower-case letters, digits, '-' or '.', and begin and end with a \
                      letter or digit";
        let long = format!("example.com/{}", "a".repeat(64));
        for (action, want) in [
            ("Paint", KNOWN.to_owned()),
            ("replace", KNOWN.to_owned()),
            ("example.com/", format!("{KNOWN}; {name}")),
            ("a/b/c", format!("{KNOWN}; {name}")),
            (&long, format!("{KNOWN}; {name}")),
            ("/Drain", format!("{KNOWN}; {domain}")),
            ("Example/Drain", format!("{KNOWN}; {domain}")),
        ] {
            let want = format!("spec.action: {action:?}: {want}");
            assert_eq!(errors(json!({ "action": action })), [want]);
        }
    }

    #[test]
    fn targets_are_required_and_limited() {
        let missing = "spec.targets: is required: list the Pods to operate on, each by name";
        for targets in [json!(null), json!([])] {
            assert_eq!(errors(json!({ "targets": targets })), [missing]);
        }
        let many = |count: usize| {
            let targets = (0..count).map(|n| json!({ "name": format!("web-{n}") }));
            json!({ "targets": targets.collect::<Vec<_>>() })
        };
        assert_eq!(errors(many(2_000)), NONE);
        assert_eq!(
            errors(many(2_001)),
            [
                "spec.targets: has 2001 entries and may have 2000, because the status has an entry for each target and must \
                 fit into etcd: split the targets over several OperationJobs"
            ]
        );
    }

    #[test]
    fn target_names_are_pod_names_and_unique() {
        let targets = json!([
            { "name": "a" }, {}, { "name": "A b" }, { "name": "b" }, { "name": "a" }, { "name": "A b" },
        ]);
        let dns = "must have at most 253 lower-case letters, digits, '-' or '.', and begin and end with a letter or digit: set \
                   it to the name of a Pod";
        assert_eq!(
            errors(json!({ "targets": targets })),
            [
                "spec.targets[1].name: is required: set it to the name of a Pod in the namespace of the job".to_owned(),
                format!("spec.targets[2].name: \"A b\": {dns}"),
                "spec.targets[4].name: \"a\": is the name of spec.targets[0], too: list each Pod once".to_owned(),
                format!("spec.targets[5].name: \"A b\": {dns}"),
            ]
        );
    }

    #[test]
    fn containers_are_named_and_unique() {
        let targets = json!([{ "name": "a", "containers": ["x"] }, { "name": "b", "containers": ["x", "", "y", "x"] }]);
        assert_eq!(
            errors(json!({ "targets": targets })),
            [
                "spec.targets[1].containers[1]: \"\": must not be empty: set it to the name of a container, or remove the \
                 entry",
                "spec.targets[1].containers[3]: \"x\": is the name of spec.targets[1].containers[0], too: list each \
                 container once",
            ]
        );
    }

    #[test]
    fn numbers_are_within_their_ranges() {
        let part = json!({
            "partition": -1, "operationDelaySeconds": -2, "activeDeadlineSeconds": 0, "TTLSecondsAfterFinished": -3,
        });
        assert_eq!(
            errors(part),
            [
                "spec.partition: -1: must be 0 or more",
                "spec.operationDelaySeconds: -2: must be 0 or more",
                "spec.activeDeadlineSeconds: 0: must be 1 or more: it is the number of seconds that each target may take; set \
                 a number, or leave it out for the default",
                "spec.TTLSecondsAfterFinished: -3: must be 1 or more: it is the number of seconds after which the finished \
                 job is deleted; set a number, or leave it out for the default",
            ]
        );
    }

    #[test]
    fn method_of_a_restart_is_known() {
        let restart = spec(json!({ "action": "Restart" }));
        let check = |spec: &OperationJobSpec, method: &str| lines(&validate(spec, Some(method)));
        for method in RESTART_METHODS {
            assert_eq!(check(&restart, method), NONE, "{method}");
        }
        for method in ["", "Auto", "kill"] {
            let want = format!(
                "metadata.annotations[operationjob.kusionstack.io/restart-by]: {method:?}: must be auto or \
                 ContainerRecreateRequest or ImageReference: correct it, or remove the annotation for the setting of the server"
            );
            assert_eq!(check(&restart, method), [want]);
            assert_eq!(check(&spec(json!({})), method), NONE);
        }
    }

    #[test]
    fn action_and_targets_are_immutable() {
        for (old, new) in [
            (json!({}), json!({ "activeDeadlineSeconds": 5 })),
            (
                json!({ "action": null, "targets": null }),
                json!({ "action": "Restart" }),
            ),
            (json!({ "action": "" }), json!({})),
        ] {
            assert_eq!(change(old.clone(), new.clone()), NONE, "{old} to {new}");
        }
        let action =
            "is immutable, it was \"Replace\": create another OperationJob for another action";
        for (new, shown) in [(json!("Restart"), "Restart"), (json!(null), "")] {
            let want = format!("spec.action: {shown:?}: {action}");
            assert_eq!(change(json!({}), json!({ "action": new })), [want]);
        }
        let targets = "spec.targets: is immutable: create another OperationJob for other Pods";
        for new in [
            json!(null),
            json!([{ "name": "web-b" }]),
            json!([{ "name": "web-a", "containers": ["app"] }]),
            json!([{ "name": "web-a" }, { "name": "web-b" }]),
        ] {
            let changed = change(json!({}), json!({ "targets": new }));
            assert_eq!(changed, [targets]);
        }
    }

    #[test]
    fn partition_may_only_grow_or_be_removed() {
        let partition = |old: Value, new: Value| {
            change(json!({ "partition": old }), json!({ "partition": new }))
        };
        for (old, new) in [
            (json!(null), json!(null)),
            (json!(2), json!(2)),
            (json!(2), json!(3)),
            (json!(2), json!(null)),
        ] {
            assert_eq!(partition(old.clone(), new.clone()), NONE, "{old} to {new}");
        }
        assert_eq!(
            partition(json!(2), json!(1)),
            [
                "spec.partition: 1: may not decrease, it was 2: targets beyond it may have been operated on already; set it to \
                 2 or more, or leave it out for all targets"
            ]
        );
        assert_eq!(
            partition(json!(null), json!(9)),
            [
                "spec.partition: 9: can't be set afterwards: without it all targets are operated on, and some may have been \
                 already; leave it out"
            ]
        );
    }

    #[test]
    fn containers_of_a_replacement_give_one_warning() {
        let named = json!([
            { "name": "a" }, { "name": "b", "containers": ["x"] }, { "name": "c", "containers": ["x"] },
        ]);
        let replace = spec(json!({ "targets": named }));
        assert_eq!(
            warnings(None, &replace),
            [
                "spec.targets[1].containers: is ignored, because the action Replace replaces the whole Pod: leave out the \
                 containers of all targets, or set the action to Restart"
            ]
        );
        assert_eq!(warnings(Some(&replace), &replace), NONE);
        assert_eq!(warnings(None, &spec(json!({}))), NONE);
        for action in ["Restart", "example.com/Drain"] {
            let job = spec(json!({ "action": action, "targets": named }));
            assert_eq!(warnings(None, &job), NONE);
        }
    }
}
