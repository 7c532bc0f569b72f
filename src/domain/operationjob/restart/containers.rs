//! Chooses the containers of a Pod that a target restarts.

use std::collections::{HashMap, HashSet};

use super::super::names::reason::CONTAINER_NOT_FOUND;
use crate::api::operationjob::{Target, TargetError};
use crate::domain::pod::{Container, Pod};

/// The containers of `pod` that `target` means: those with the given names, in this order, or all of `spec.containers`
/// if no names are given. Sidecars (init containers with `restartPolicy: Always`) are chosen only by name.
///
/// # Errors
///
/// `ContainerNotFound`, if the Pod has no container of a given name, or the name is that of an init container that runs
/// only at the start of the Pod.
pub fn choose<'a>(target: &Target, pod: &'a Pod) -> Result<Vec<&'a Container>, TargetError> {
    if target.containers.is_empty() {
        return Ok(pod.spec.containers.iter().collect());
    }
    let containers = pod.spec.containers.iter().map(|c| (c, true));
    let init_containers = pod.spec.init_containers.iter();
    let init_containers = init_containers.map(|c| (c, is_sidecar(c)));
    let by_name: HashMap<&str, _> = containers
        .chain(init_containers)
        .map(|(container, runs)| (container.name.as_str(), (container, runs)))
        .collect();
    let mut seen = HashSet::new();
    let names = target.containers.iter().filter(|name| seen.insert(*name));
    names
        .map(|name| match by_name.get(name.as_str()) {
            Some((container, true)) => Ok(*container),
            Some((_, false)) => Err(not_found(format!(
                "init container {name:?} of Pod {} has run already and can't be restarted; only containers, and init \
                 containers with restartPolicy Always, can be restarted",
                target.name
            ))),
            None => Err(not_found(format!(
                "Pod {} has no container {name:?}; name a container of its spec.containers or spec.initContainers",
                target.name
            ))),
        })
        .collect()
}

fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

fn not_found(message: String) -> TargetError {
    TargetError {
        reason: CONTAINER_NOT_FOUND.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn chosen(names: &[&str]) -> Result<Vec<String>, TargetError> {
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "containers": [{ "name": "app" }, { "name": "log" }],
            "initContainers": [
                { "name": "setup" },
                { "name": "mesh", "restartPolicy": "Always" },
                { "name": "retry", "restartPolicy": "OnFailure" },
            ],
        } }))
        .unwrap();
        let target = Target {
            name: "web-1".into(),
            containers: names.iter().map(ToString::to_string).collect(),
        };
        let containers = choose(&target, &pod)?;
        Ok(containers.iter().map(|c| c.name.clone()).collect())
    }

    #[test]
    fn all_containers_without_sidecars_are_the_default() {
        assert_eq!(chosen(&[]).unwrap(), ["app", "log"]);
    }

    #[test]
    fn named_containers_and_sidecars_are_chosen_once_in_order() {
        assert_eq!(chosen(&["mesh", "app", "mesh"]).unwrap(), ["mesh", "app"]);
    }

    #[test]
    fn unknown_container_and_finished_init_container_are_refused() {
        for (name, words) in [
            ("absent", "Pod web-1 has no container \"absent\""),
            ("setup", "has run already"),
            ("retry", "has run already"),
        ] {
            let error = chosen(&["app", name]).unwrap_err();
            assert_eq!(error.reason, CONTAINER_NOT_FOUND);
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
