//! Lenient deserializers: they read every object that the API server may have stored, and fail for none of
//! them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Null reads as the default.
pub(super) fn nullable<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// A value that does not fit the type reads as the default.
pub(super) fn fitting<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + DeserializeOwned,
{
    let stored = Value::deserialize(d)?;
    Ok(T::deserialize(stored).unwrap_or_default())
}

/// Reads the items of a list that fit the type. A value that is not a list reads as an empty list.
pub(super) fn fitting_items<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let items = match Value::deserialize(d)? {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let items = items.into_iter();
    let mut fitting: Vec<T> = items.filter_map(|item| T::deserialize(item).ok()).collect();
    fitting.shrink_to_fit(); // caches keep these lists
    Ok(fitting)
}

/// A time that cannot be parsed reads as absent: the API server's `date-time` format admits texts that RFC
/// 3339 does not.
pub(super) fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    Ok(text.and_then(|t| t.parse().ok()).map(Time))
}

/// A number beyond 32 bits, which the schema of an int-or-string admits, is kept as its text.
pub(super) fn int_or_string<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<IntOrString>, D::Error> {
    Ok(match Option::<Value>::deserialize(d)? {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(IntOrString::String(text)),
        Some(other) => Some(
            other
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .map_or_else(|| IntOrString::String(other.to_string()), IntOrString::Int),
        ),
    })
}

/// Implements `Serialize` and `Deserialize` for a `#[serde(remote = "Self")]` struct such that an absent or null value
/// reads as the default: CRD schemas of this group never made `spec` required.
macro_rules! absent_is_default {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                <$type>::serialize(self, s)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Present($type);
                impl<'de> serde::Deserialize<'de> for Present {
                    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                        <$type>::deserialize(d).map(Present)
                    }
                }
                let present = <Option<Present> as serde::Deserialize>::deserialize(d)?;
                Ok(present.map(|p| p.0).unwrap_or_default())
            }
        }
    };
}
pub(super) use absent_is_default;

/// Declares an enum of strings whose unknown values read as `Other` and are written back unchanged.
macro_rules! string_enum {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
            /// A value that this version does not know. Admission refuses it, but reading a stored object
            /// preserves it.
            Other(String),
        }

        impl $name {
            /// The known values, as written in JSON.
            pub const KNOWN: &'static [&'static str] = &[$(stringify!($variant)),+];

            /// The value as written in JSON.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => stringify!($variant),)+
                    $name::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $(stringify!($variant) => $name::$variant,)+
                    other => $name::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text: std::borrow::Cow<'de, str> = serde::Deserialize::deserialize(d)?;
                Ok($name::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": $name::KNOWN })
            }
        }
    };
}
pub(super) use string_enum;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use crate::api::collaset::{CollaSet, PodUpgradePolicy};
    use crate::api::operationjob::{Action, OperationJob};
    use crate::api::poddecoration::PodDecoration;
    use crate::api::podtransitionrule::{PodTransitionRule, Stage};
    use crate::api::resourcecontext::ResourceContext;

    fn read<K: serde::de::DeserializeOwned>(object: Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn object_without_spec_reads_as_empty_one() {
        for object in [
            json!({ "metadata": {} }),
            json!({ "metadata": {}, "spec": null, "status": null }),
        ] {
            assert_eq!(read::<CollaSet>(object.clone()), CollaSet::default());
            assert_eq!(
                read::<OperationJob>(object.clone()),
                OperationJob::default()
            );
            assert_eq!(
                read::<PodDecoration>(object.clone()),
                PodDecoration::default()
            );
            assert_eq!(
                read::<PodTransitionRule>(object.clone()),
                PodTransitionRule::default()
            );
            assert_eq!(read::<ResourceContext>(object), ResourceContext::default());
        }
    }

    #[test]
    fn unknown_words_numbers_and_times_are_read() {
        let rule: PodTransitionRule = read(json!({
            "metadata": { "name": "a", "creationTimestamp": null },
            "spec": { "newer": 1, "rules": [{
                "stage": "Later",
                "availablePolicy": { "maxUnavailableValue": 5_000_000_000_i64, "minAvailableValue": null },
                "webhook": { "failurePolicy": "", "clientConfig": {}, "parameters": null },
            }] },
            "status": {
                "updateTime": "yesterday",
                "targets": null,
                "ledger": { "claims": [{ "podUID": "u", "operation": "Newer", "since": null, "until": "?" }] },
            },
        }));
        assert_eq!(
            rule.spec.rules[0].effective_stage(),
            Stage::Other("Later".into())
        );
        let claim = &rule.status.unwrap().ledger.unwrap().claims[0];
        assert_eq!(claim.operation, "Newer");
        assert_eq!(
            claim.until.0,
            jiff::Timestamp::MAX,
            "a deadline that can't be read does not pass"
        );

        let set: CollaSet = read(json!({
            "metadata": {},
            "spec": { "updateStrategy": { "podUpgradePolicy": "" }, "volumeClaimTemplates": null },
            "status": { "conditions": [{ "lastTransitionTime": null }, {}] },
        }));
        let policy = set.spec.update_strategy.unwrap().pod_upgrade_policy;
        assert_eq!(policy, Some(PodUpgradePolicy::Other(String::new())));

        let job: OperationJob =
            read(json!({ "metadata": {}, "spec": { "action": "Paint", "targets": [{}] } }));
        assert_eq!(job.spec.action, Some(Action("Paint".into())));
    }

    #[test]
    fn malformed_informational_status_is_read_partially() {
        let good = json!({
            "type": "Enforced", "status": "True", "reason": "Enforced", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = |text: &str| {
            let stored =
                json!({ "metadata": {}, "status": serde_json::from_str::<Value>(text).unwrap() });
            serde_json::from_str::<PodTransitionRule>(&stored.to_string())
                .unwrap()
                .status
                .unwrap()
        };
        let read = status(&format!(
            r#"{{
                "observedGeneration": "two", "updateTime": 1, "expectedPods": 3, "availablePods": 5000000000,
                "unavailableLimit": {{}}, "disruptionsAllowed": 2, "targets": ["a", 1],
                "conditions": [1, {{ "type": "Odd", "lastTransitionTime": 7 }}, {good}],
                "details": "many", "ruleStates": [{{ "name": {{}} }}, {{ "name": "ask" }}],
                "ledger": {{ "watermark": "5", "claims": [{{ "podUID": "u" }}] }}
            }}"#
        ));
        assert_eq!(read.expected_pods, 3);
        assert_eq!(read.disruptions_allowed, Some(2));
        assert_eq!((read.observed_generation, read.available_pods), (0, 0));
        assert_eq!((read.update_time, read.unavailable_limit), (None, None));
        assert_eq!(read.targets, ["a"]);
        assert_eq!(
            serde_json::to_value(&read.conditions).unwrap(),
            json!([good])
        );
        assert_eq!((read.details.len(), read.rule_states.len()), (0, 1));
        let ledger = read.ledger.unwrap();
        assert_eq!((ledger.unreadable, ledger.claims.len()), (None, 1));

        let ledger = status(r#"{ "conditions": {}, "ledger": { "claims": 1 } }"#).ledger;
        assert!(ledger.unwrap().unreadable.is_some());
    }

    #[test]
    fn unknown_and_invalid_fields_of_collaset_are_written_back() {
        let written = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1",
            "kind": "CollaSet",
            "metadata": { "name": "a" },
            "spec": {
                "replicas": 1,
                "template": { "spec": { "containers": [{ "name": "a", "newer": { "deep": [1] } }] } },
                "volumeClaimTemplates": [{ "spec": { "newer": true } }],
                "updateStrategy": { "podUpgradePolicy": "Sideways", "rollingUpdate": { "byLabel": {} } },
            },
        });
        assert_eq!(
            serde_json::to_value(read::<CollaSet>(written.clone())).unwrap(),
            written
        );
    }

    #[test]
    fn emptied_ledger_is_written_with_all_fields() {
        let status = crate::api::podtransitionrule::Ledger::default();
        assert_eq!(
            serde_json::to_value(status).unwrap(),
            json!({ "formatVersion": 0, "watermark": "", "attempts": 0, "claims": [] })
        );
    }
}
