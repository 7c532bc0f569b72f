//! Compares a stored webhook configuration with the one that this version needs. Decides without I/O.

use serde_json::{Map, Value, json};

use crate::admission::routes::{GRACEFUL_DELETION_WEBHOOKS, WEBHOOKS, Webhook};
use crate::tls::selfmanaged::client_config::{path_segment, split_target};
use crate::tls::selfmanaged::segments::join_path;

/// Labels of namespaces that AKS leaves out of every webhook.
const PLATFORM_KEYS: [&str; 2] = ["control-plane", "kubernetes.azure.com/managedby"];

/// The webhooks that a stored configuration should have, and what is wrong with those that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// All webhooks, for the field `webhooks`.
    pub webhooks: Value,
    /// The differences, in words.
    pub differences: Vec<String>,
}

/// How a stored configuration compares with the needed one.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// It is as it should be.
    Right,
    /// It is made by another installation, which this reason names.
    Other(&'static str),
    Differs(Correction),
}

/// Compares `stored` with `needed`, both in JSON.
///
/// The address of the webhooks, the segment in their paths and `caBundle` stay as they are stored, because others write
/// them: the installation, and the owner of the certificates. A webhook that lacks them gets them from another one.
/// Webhooks with unknown names are removed: they are Kuperator's, and no server answers them.
///
/// A configuration without any needed webhook is not corrected: nobody knows its address and its authority before an
/// installation. Nor is a configuration with the webhooks of other feature gates: an update changes the configuration
/// first and the servers later.
pub fn compare(stored: &Value, needed: &Value) -> Comparison {
    let mut differences = Vec::new();
    let is_needed = |hook: &&Value| hooks(needed).any(|n| n["name"] == hook["name"]);
    let Some(model) = hooks(stored).find(is_needed).map(|h| &h["clientConfig"]) else {
        return Comparison::Other("it has no webhook of this server: install again");
    };
    if features(stored) != features(needed) {
        return Comparison::Other(
            "it has the webhooks of other feature gates than those of this server",
        );
    }
    let ours = hooks(stored).filter(is_needed);
    let mut authorities = ours.map(|hook| &hook["clientConfig"]["caBundle"]);
    let authority = authorities.find(|authority| !authority.is_null());
    let corrected: Vec<Value> = hooks(needed)
        .map(|needed| {
            let found = hooks(stored).find(|found| found["name"] == needed["name"]);
            let client = found.map_or(model, |found| &found["clientConfig"]);
            let mut wanted = needed.clone();
            wanted["clientConfig"] = keep_address(client, &needed["clientConfig"]);
            if let Some(found) = found {
                let selector = &mut wanted["namespaceSelector"]["matchExpressions"];
                keep_exclusions(&found["namespaceSelector"]["matchExpressions"], selector);
            }
            // Until the owner of the certificates has seen a new webhook.
            let lacks_authority = client["caBundle"].is_null();
            if let Some(authority) = authority.filter(|_| lacks_authority) {
                wanted["clientConfig"]["caBundle"] = authority.clone();
            }
            match found {
                None => differences.push(format!("{} is missing", name_of(needed))),
                Some(found) => {
                    let fields = different_fields(found, &wanted);
                    if !fields.is_empty() {
                        let fields = fields.join(", ");
                        differences.push(format!("{} has another {fields}", name_of(needed)));
                    }
                }
            }
            wanted
        })
        .collect();
    let foreign = hooks(stored).filter(|hook| !is_needed(hook));
    differences.extend(foreign.map(|hook| format!("{} is not needed", name_of(hook))));
    if differences.is_empty() {
        return Comparison::Right;
    }
    Comparison::Differs(Correction {
        webhooks: Value::Array(corrected),
        differences,
    })
}

/// Whether there are webhooks of graceful deletion, and of CollaSets.
fn features(configuration: &Value) -> (bool, bool) {
    let has = |webhook: &Webhook| hooks(configuration).any(|hook| hook["name"] == webhook.name);
    let mut collasets = WEBHOOKS.iter().filter(|w| w.route.is_for_collasets());
    (
        GRACEFUL_DELETION_WEBHOOKS.iter().any(has),
        collasets.any(has),
    )
}

fn hooks(configuration: &Value) -> impl Iterator<Item = &Value> {
    configuration["webhooks"].as_array().into_iter().flatten()
}

fn name_of(hook: &Value) -> &str {
    hook["name"].as_str().unwrap_or_default()
}

/// Keeps the expressions by which a platform leaves out its own namespaces. The platform would add them again for ever.
fn keep_exclusions(stored: &Value, needed: &mut Value) {
    let (Some(stored), Some(needed)) = (stored.as_array(), needed.as_array_mut()) else {
        return;
    };
    for (index, expression) in stored.iter().enumerate() {
        let key = expression["key"].as_str().unwrap_or_default();
        let operator = expression["operator"].as_str().unwrap_or_default();
        let excludes = ["NotIn", "DoesNotExist"].contains(&operator);
        if excludes && PLATFORM_KEYS.contains(&key) {
            needed.insert(index.min(needed.len()), expression.clone());
        }
    }
}

/// The stored address with the path that is needed.
fn keep_address(stored: &Value, needed: &Value) -> Value {
    let (_, plain_path) = split_target(needed);
    let path = join_path(path_segment(stored), plain_path);
    let mut kept = stored.clone();
    match split_target(stored).0 {
        Some(host) => kept["url"] = json!(format!("{host}{path}")),
        None => kept["service"]["path"] = json!(path),
    }
    kept
}

/// The fields of a stored webhook that differ from the wanted one. An absent field has the API server's default.
fn different_fields<'a>(found: &'a Value, wanted: &'a Value) -> Vec<&'a str> {
    let empty = Map::new();
    let keys = |hook: &'a Value| hook.as_object().map(|all| all.keys());
    let mut fields: Vec<&str> = keys(found)
        .into_iter()
        .chain(keys(wanted))
        .flatten()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    fields.dedup();
    let of = |hook: &Value, field: &str| {
        let value = hook.as_object().unwrap_or(&empty).get(field);
        normalized(value.unwrap_or(&Value::Null))
    };
    fields.retain(|field| of(found, field) != of(wanted, field));
    fields
}

/// A value without what means nothing: null, and empty lists and objects inside of it.
fn normalized(value: &Value) -> Value {
    match value {
        Value::Object(all) => {
            let kept = all
                .iter()
                .map(|(key, value)| (key.clone(), normalized(value)));
            let kept: Map<_, _> = kept.filter(|(_, value)| !value.is_null()).collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        Value::Array(all) if all.is_empty() => Value::Null,
        Value::Array(all) => all.iter().map(normalized).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::admission::routes::{ClientConfig, ConfigurationSettings, webhook_configurations};

    fn correct(stored: &Value, needed: &Value) -> Option<Correction> {
        match compare(stored, needed) {
            Comparison::Right => None,
            Comparison::Differs(correction) => Some(correction),
            Comparison::Other(reason) => panic!("{reason}"),
        }
    }

    fn is_left_alone(stored: &Value, needed: &Value) -> bool {
        matches!(compare(stored, needed), Comparison::Other(_))
    }

    const SEGMENT: &str = "0123456789abcdef0123456789abcdef";

    fn configuration(client: ClientConfig, segment: Option<&str>, grace_delete: bool) -> Value {
        let (_, validating) = webhook_configurations(&ConfigurationSettings {
            client,
            namespace: "home".to_owned(),
            ca_bundle: None,
            grace_delete,
            collasets: true,
            cert_manager: None,
            segment: segment.map(str::to_owned),
        });
        serde_json::to_value(validating).unwrap()
    }

    fn needed() -> Value {
        let service = ClientConfig::Service {
            name: "operating".to_owned(),
            namespace: "home".to_owned(),
            port: 443,
        };
        configuration(service, None, false)
    }

    fn position(all: &Value, name: &str) -> usize {
        hooks(all).position(|h| h["name"] == name).unwrap()
    }

    #[test]
    fn address_segment_and_authority_are_no_difference() {
        let url = ClientConfig::Url("https://elsewhere:9443".to_owned());
        let mut stored = configuration(url, Some(SEGMENT), false);
        for hook in stored["webhooks"].as_array_mut().unwrap() {
            hook["clientConfig"]["caBundle"] = json!("QQ==");
        }
        assert_eq!(correct(&stored, &needed()), None);
        stored["webhooks"].as_array_mut().unwrap().reverse();
        assert_eq!(correct(&stored, &needed()), None, "the order means nothing");
        let by_url = ClientConfig::Url("https://here:1".to_owned());
        let by_url = configuration(by_url, None, false);
        assert_eq!(correct(&stored, &by_url), None);
        assert_eq!(correct(&needed(), &by_url), None);
    }

    #[test]
    fn changed_and_missing_webhooks_are_corrected_with_the_stored_address() {
        let url = ClientConfig::Url("https://elsewhere:9443".to_owned());
        let right = configuration(url, Some(SEGMENT), false);
        let mut stored = right.clone();
        let at = position(&stored, "pod-delete.apps.kusionstack.io");
        stored["webhooks"][at]["failurePolicy"] = json!("Ignore");
        stored["webhooks"][at]["matchConditions"] =
            json!([{"name": "none", "expression": "false"}]);
        let missing = position(&stored, "collaset.validate.apps.kusionstack.io");
        stored["webhooks"].as_array_mut().unwrap().remove(missing);
        let correction = correct(&stored, &needed()).unwrap();
        let mut differences = correction.differences.clone();
        differences.sort();
        assert_eq!(
            differences,
            [
                "collaset.validate.apps.kusionstack.io is missing",
                "pod-delete.apps.kusionstack.io has another failurePolicy, matchConditions",
            ]
        );
        assert_eq!(correction.webhooks, right["webhooks"]);
    }

    #[test]
    fn new_webhook_gets_the_authority_of_another_one() {
        let mut stored = needed();
        for hook in stored["webhooks"].as_array_mut().unwrap() {
            hook["clientConfig"]["caBundle"] = json!("QQ==");
        }
        let right = stored.clone();
        stored["webhooks"][2]["clientConfig"]["caBundle"] = Value::Null;
        let correction = correct(&stored, &needed()).unwrap();
        assert_eq!(correction.webhooks, right["webhooks"]);
        assert!(correction.differences[0].ends_with("has another clientConfig"));
    }

    #[test]
    fn webhooks_of_kuperator_are_removed() {
        let mut stored = needed();
        let foreign = json!({
            "name": "validating-pod.apps.kusionstack.io", "failurePolicy": "Fail",
            "clientConfig": { "service": { "name": "kusionstack-controller-manager", "namespace": "kusionstack-system" } },
        });
        let hooks = stored["webhooks"].as_array_mut().unwrap();
        hooks.insert(0, foreign.clone());
        let correction = correct(&stored, &needed()).unwrap();
        assert_eq!(correction.webhooks, needed()["webhooks"]);
        assert_eq!(
            correction.differences,
            ["validating-pod.apps.kusionstack.io is not needed"]
        );
        // Without an installation.
        assert!(is_left_alone(&json!({}), &needed()));
        assert!(is_left_alone(&json!({ "webhooks": [foreign] }), &needed()));
    }

    #[test]
    fn configuration_of_other_feature_gates_is_left_alone() {
        let of = |grace_delete, collasets| {
            let (mutating, _) = webhook_configurations(&ConfigurationSettings {
                client: ClientConfig::Url("https://h".to_owned()),
                namespace: "home".to_owned(),
                ca_bundle: None,
                grace_delete,
                collasets,
                cert_manager: None,
                segment: None,
            });
            serde_json::to_value(mutating).unwrap()
        };
        for grace_delete in [false, true] {
            for collasets in [false, true] {
                let needed = of(grace_delete, collasets);
                assert_eq!(correct(&of(grace_delete, collasets), &needed), None);
                assert!(is_left_alone(&of(!grace_delete, collasets), &needed));
                assert!(is_left_alone(&of(grace_delete, !collasets), &needed));
            }
        }
    }

    #[test]
    fn exclusions_of_the_platform_are_no_difference() {
        let mut stored = needed();
        let expressions = &mut stored["webhooks"][0]["namespaceSelector"]["matchExpressions"];
        let expressions = expressions.as_array_mut().unwrap();
        expressions.push(json!({"key": "control-plane", "operator": "DoesNotExist"}));
        expressions.insert(0, json!({"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]}));
        assert_eq!(correct(&stored, &needed()), None);
        let expressions = &mut stored["webhooks"][0]["namespaceSelector"]["matchExpressions"];
        expressions[0] = json!({"key": "team", "operator": "NotIn", "values": ["a"]});
        assert!(correct(&stored, &needed()).is_some());
    }

    #[test]
    fn every_field_of_a_webhook_is_compared() {
        let right = needed();
        for (field, other) in [
            ("rules", json!([])),
            ("namespaceSelector", json!({"matchLabels": {"a": "b"}})),
            ("objectSelector", json!({"matchLabels": {"a": "b"}})),
            ("timeoutSeconds", json!(30)),
            ("sideEffects", json!("Unknown")),
            ("matchPolicy", json!("Exact")),
            ("admissionReviewVersions", json!(["v1beta1"])),
        ] {
            let mut stored = right.clone();
            stored["webhooks"][0][field] = other;
            let correction = correct(&stored, &right).unwrap();
            assert_eq!(correction.differences.len(), 1, "{field}");
            assert!(correction.differences[0].ends_with(field), "{correction:?}");
        }
        let mut stored = right.clone();
        stored["webhooks"][0]["objectSelector"] = Value::Null;
        stored["webhooks"][0]["clientConfig"]["service"]["path"] = json!("/elsewhere");
        let correction = correct(&stored, &right).unwrap();
        assert!(
            correction.differences[0].contains("clientConfig"),
            "{correction:?}"
        );
    }
}
