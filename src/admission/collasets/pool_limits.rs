//! Checks whether the pool of instance IDs has headroom for the Pods that a CollaSet asks for.

use crate::api::collaset::CollaSetSpec;
use crate::api::validation::FieldError;
use crate::domain::collaset::headroom::{max_pairs, max_replicas};
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdatePolicy};

/// The error for more replicas than the pool can hold. An update that does not raise the replicas is not an error.
pub fn replicas_error(
    name: &str,
    old: Option<&CollaSetSpec>,
    new: &CollaSetSpec,
) -> Option<FieldError> {
    let (max, wanted) = (max_replicas(name), replicas(new));
    let grows = old.is_none_or(|old| replicas(old) < wanted);
    (grows && wanted > max).then(|| {
        let problem = format!(
            "is more than the {max} instance IDs that one ResourceContext has room for, with names of {} characters: the object \
             would outgrow the 1.5 MiB that etcd stores; use several CollaSets, or a shorter name",
            name.len()
        );
        FieldError::with_raw_value("spec.replicas", wanted.to_string(), problem)
    })
}

/// The warning that `Replace` can replace only some of the Pods at a time, or no Pod at all.
pub fn replace_warning(
    name: &str,
    old: Option<&CollaSetSpec>,
    new: &CollaSetSpec,
) -> Option<String> {
    let pairs = bounded_pairs(name, new)?;
    if old.is_some_and(|old| bounded_pairs(name, old) == Some(pairs)) {
        return None;
    }
    let wanted = replicas(new);
    Some(match pairs {
        0 => format!(
            "spec.replicas: {wanted}: with podUpgradePolicy Replace no Pod can be replaced, as the ResourceContext has room for no \
             instance ID beside these; use several CollaSets, a shorter name, or InPlaceIfPossible"
        ),
        _ => format!(
            "spec.updateStrategy.maxSurge: with podUpgradePolicy Replace at most {pairs} of the {wanted} Pods are replaced at a time, as \
             the ResourceContext has room for no more instance IDs; set maxSurge to no more than that"
        ),
    })
}

/// The number of replace pairs that can exist at the same time, if it is smaller than the spec asks for.
fn bounded_pairs(name: &str, spec: &CollaSetSpec) -> Option<usize> {
    let strategy = ResolvedStrategy::from_spec(spec);
    if strategy.policy != UpdatePolicy::Replace {
        return None;
    }
    let wanted = strategy.replicas;
    let surge = strategy.max_surge.unwrap_or(wanted);
    let pairs = max_pairs(name, wanted);
    (pairs < surge.min(wanted)).then_some(pairs)
}

fn replicas(spec: &CollaSetSpec) -> usize {
    ResolvedStrategy::from_spec(spec).replicas
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn spec(replicas: i32, strategy: Value) -> CollaSetSpec {
        let spec = json!({ "replicas": replicas, "updateStrategy": strategy });
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn more_replicas_than_the_pool_has_room_for_are_refused() {
        let (long, plain) = ("n".repeat(40), json!({}));
        let max = i32::try_from(max_replicas(&long)).unwrap();
        assert_eq!(replicas_error(&long, None, &spec(max, plain.clone())), None);
        let larger = spec(max + 1, plain.clone());
        let refused = replicas_error(&long, None, &larger).unwrap();
        assert_eq!(refused.path, "spec.replicas");
        let problem = format!("is more than the {max} instance IDs");
        assert!(refused.problem.starts_with(&problem), "{refused}");
        assert_eq!(replicas_error("web", None, &larger), None);
        // A stored set that is too large may shrink, and may change in other ways.
        assert_eq!(
            replicas_error(&long, Some(&spec(max + 9, plain.clone())), &larger),
            None
        );
        assert!(replicas_error(&long, Some(&spec(max, plain)), &larger).is_some());
    }

    #[test]
    fn replace_in_waves_is_warned_when_introduced() {
        let name = "n".repeat(30);
        let replace = |surge: Value| json!({ "podUpgradePolicy": "Replace", "maxSurge": surge });
        let all = spec(10_000, replace(Value::Null));
        let pairs = max_pairs(&name, 10_000);
        let warning = replace_warning(&name, None, &all).unwrap();
        let bound = format!("at most {pairs} of the 10000 Pods are replaced at a time");
        assert!(warning.contains(&bound), "{warning}");
        assert_eq!(replace_warning(&name, Some(&all), &all), None);
        assert_eq!(
            replace_warning(&name, None, &spec(10_000, replace(json!(pairs)))),
            None
        );
        assert_eq!(replace_warning(&name, None, &spec(10_000, json!({}))), None);
        assert_eq!(
            replace_warning(&name, None, &spec(1_000, replace(Value::Null))),
            None
        );
        let max = i32::try_from(max_replicas(&name)).unwrap();
        let warning = replace_warning(&name, None, &spec(max, replace(json!(1)))).unwrap();
        assert!(warning.contains("no Pod can be replaced"), "{warning}");
    }
}
