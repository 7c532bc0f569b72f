//! Checks the two webhook configurations: they exist, call this version's webhooks, and nothing else is in them.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::Value;

use super::authority;
use super::finding::Finding;
use super::reads::{self, Read};
use crate::admission::routes::{
    ConfigurationSettings, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, WEBHOOK_REVISION,
    webhook_configurations, webhook_revision,
};
use crate::cli::serve::webhook_upkeep::correction::{Comparison, compare};
use crate::tls::selfmanaged::client_config::split_target;

const CHECK: &str = "webhooks";
const PATH: &str = "/apis/admissionregistration.k8s.io/v1";
const APPLY: &str = "The leader corrects this if it runs without --fixed-webhooks; otherwise apply the webhook configurations \
                     of this version (operating install, kubectl apply -k or helm upgrade)";

/// The leader corrects neither another revision nor the webhooks of other feature gates.
const APPLY_YOURSELF: &str = "Apply the webhook configurations of this version with the feature gates of the servers (operating \
                              install, kubectl apply -k or helm upgrade), and give this command the same --feature-gates";

/// Reads and judges both configurations, and the authorities in them.
pub async fn check(
    client: &Client,
    settings: &ConfigurationSettings,
    now: jiff::Timestamp,
) -> Vec<Finding> {
    let (mutating, validating) = webhook_configurations(settings);
    let needed = [
        (
            "mutatingwebhookconfigurations",
            MUTATING_CONFIGURATION,
            serde_json::to_value(mutating),
        ),
        (
            "validatingwebhookconfigurations",
            VALIDATING_CONFIGURATION,
            serde_json::to_value(validating),
        ),
    ];
    let mut findings = Vec::new();
    let mut addresses = BTreeSet::new();
    let mut authorities = BTreeSet::new();
    for (plural, name, needed) in needed {
        let needed = match needed {
            Ok(needed) => needed,
            Err(error) => {
                findings.push(Finding::unknown(CHECK, error.to_string()));
                continue;
            }
        };
        let listed = reads::list(client, &format!("{PATH}/{plural}"), None).await;
        findings.extend(judge_others(name, &listed));
        let read = match listed {
            Read::Found(all) => {
                let found = all.into_iter().find(|one| one["metadata"]["name"] == name);
                found.map_or(Read::Missing, Read::Found)
            }
            // A user may have the right to read one object only.
            _ => reads::get(client, &format!("{PATH}/{plural}/{name}")).await,
        };
        findings.push(judge(name, &needed, &read));
        if let Read::Found(stored) = &read {
            addresses.extend(clients(stored).map(address));
            authorities.extend(clients(stored).map(|client| client["caBundle"].to_string()));
            findings.push(authority::judge(name, stored, now));
        }
    }
    findings.extend(judge_agreement(&addresses, &authorities));
    findings
}

/// All webhooks have the address and the authority of one server. The dry run of a rule calls only two of them.
fn judge_agreement(
    addresses: &BTreeSet<String>,
    authorities: &BTreeSet<String>,
) -> Option<Finding> {
    let message = match (addresses.len(), authorities.len()) {
        (2.., _) => format!(
            "the webhooks have different addresses: {}",
            join(addresses.iter().map(String::as_str))
        ),
        (_, 2..) => "the webhooks trust different authorities (caBundle)".to_owned(),
        _ => return None,
    };
    Some(Finding::problem(
        CHECK,
        message,
        "Run this again in a minute, because certificates may be changing; then apply the webhook configurations again",
    ))
}

fn clients(configuration: &Value) -> impl Iterator<Item = &Value> {
    let hooks = configuration["webhooks"].as_array();
    hooks
        .into_iter()
        .flatten()
        .map(|hook| &hook["clientConfig"])
}

/// The host of a URL, or the Service.
fn address(client: &Value) -> String {
    match split_target(client).0 {
        Some(host) => host.to_owned(),
        None => {
            let service = &client["service"];
            let text = |field: &str| service[field].as_str().unwrap_or_default();
            let port = service["port"].as_u64().unwrap_or(443);
            format!("Service {}/{}:{port}", text("namespace"), text("name"))
        }
    }
}

fn judge(name: &str, needed: &Value, read: &Read) -> Finding {
    let stored = match read.clone().or_finding(CHECK) {
        Ok(Some(stored)) => stored,
        Ok(None) => {
            return Finding::problem(
                CHECK,
                format!("{name} does not exist: no rule holds anything"),
                "Apply the webhook configurations (operating install, kubectl apply -k or helm upgrade)",
            );
        }
        Err(finding) => return finding,
    };
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(stored["metadata"]["annotations"].clone()).unwrap_or_default();
    let revision = webhook_revision(&annotations);
    if revision > WEBHOOK_REVISION {
        return Finding::warning(
            CHECK,
            format!("{name} has revision {revision}, this program only knows {WEBHOOK_REVISION}"),
            "Check with the newer version, and run it on all replicas",
        );
    }
    if !hook_names(&stored).any(|hook| hook_names(needed).any(|needed| needed == hook)) {
        return Finding::problem(
            CHECK,
            format!(
                "{name} has no webhook of Operating; it has {}",
                join(hook_names(&stored))
            ),
            "It is Kuperator's: replace it as the page Coming from Kuperator says (operating install)",
        );
    }
    match compare(&stored, needed) {
        Comparison::Right => {}
        Comparison::Other(reason) => {
            return Finding::problem(CHECK, format!("{name}: {reason}"), APPLY_YOURSELF);
        }
        Comparison::Differs(correction) => {
            let differences = correction.differences.join("; ");
            return Finding::problem(CHECK, format!("{name}: {differences}"), APPLY);
        }
    }
    match revision < WEBHOOK_REVISION {
        true => Finding::problem(
            CHECK,
            format!("{name} has revision {revision}, this version has {WEBHOOK_REVISION}"),
            APPLY_YOURSELF,
        ),
        false => Finding::ok(CHECK, format!("{name} has revision {revision}")),
    }
}

/// Configurations of other names with webhooks for the same kinds: requests would wait for two servers.
fn judge_others(name: &str, listed: &Read<Vec<Value>>) -> Option<Finding> {
    let all = match listed.clone().or_finding(CHECK) {
        Ok(all) => all.unwrap_or_default(),
        // Without the list, configurations of other names are not seen.
        Err(finding) => return Some(finding),
    };
    let is_foreign = |one: &&Value| {
        one["metadata"]["name"] != name
            && hook_names(one).any(|hook| hook.ends_with(".kusionstack.io"))
    };
    let names = all.iter().filter(is_foreign);
    let names = join(names.filter_map(|one| one["metadata"]["name"].as_str()));
    (!names.is_empty()).then(|| {
        Finding::problem(
            CHECK,
            format!("another configuration has webhooks of kusionstack.io: {names}"),
            "Delete it if it is left over from Kuperator or from an earlier installation",
        )
    })
}

fn hook_names(configuration: &Value) -> impl Iterator<Item = &str> {
    let hooks = configuration["webhooks"].as_array();
    hooks
        .into_iter()
        .flatten()
        .filter_map(|hook| hook["name"].as_str())
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::admission::routes::ClientConfig;
    use crate::api::keys;
    use crate::cli::check::finding::State;

    fn needed() -> Value {
        let (_, validating) = webhook_configurations(&ConfigurationSettings {
            client: ClientConfig::Url("https://here:1".to_owned()),
            namespace: "home".to_owned(),
            ca_bundle: None,
            grace_delete: false,
            collasets: true,
            cert_manager: None,
            segment: None,
        });
        serde_json::to_value(validating).unwrap()
    }

    fn judged(change: impl FnOnce(&mut Value)) -> Finding {
        let mut stored = needed();
        change(&mut stored);
        judge("v", &needed(), &Read::Found(stored))
    }

    #[test]
    fn every_difference_of_a_configuration_is_a_problem() {
        let same = judged(|_| ());
        assert_eq!(same.state, State::Ok, "{same:?}");
        let revision = |stored: &mut Value, revision: Value| {
            stored["metadata"]["annotations"][keys::WEBHOOK_REVISION] = revision;
        };
        let foreign = json!({ "name": "validating-generic.apps.kusionstack.io" });
        let older = judged(|stored| revision(stored, json!("0")));
        let newer = judged(|stored| revision(stored, json!("99")));
        let changed = judged(|stored| stored["webhooks"][0]["failurePolicy"] = json!("Ignore"));
        let added = judged(|stored| {
            stored["webhooks"]
                .as_array_mut()
                .unwrap()
                .push(foreign.clone())
        });
        let replaced = judged(|stored| stored["webhooks"] = json!([foreign]));
        for (finding, state, part) in [
            (older, State::Problem, "revision 0"),
            (newer, State::Warning, "revision 99"),
            (changed, State::Problem, "failurePolicy"),
            (added, State::Problem, "validating-generic"),
            (replaced, State::Problem, "no webhook of Operating"),
            (
                judge("v", &needed(), &Read::Missing),
                State::Problem,
                "does not exist",
            ),
        ] {
            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.message.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn configuration_of_another_name_is_found_by_its_webhooks() {
        let one = |name: &str, hook: &str| json!({ "metadata": { "name": name }, "webhooks": [{ "name": hook }] });
        let others = |all| judge_others("v", &Read::Found(all));
        assert_eq!(
            others(vec![
                one("v", "a.kusionstack.io"),
                one("x", "a.example.com")
            ]),
            None
        );
        let found = others(vec![one("old", "pods.apps.kusionstack.io")]).unwrap();
        assert!(found.message.ends_with(": old"), "{found:?}");
    }

    #[test]
    fn webhooks_of_two_servers_are_a_problem() {
        let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(judge_agreement(&all(&["https://a"]), &all(&["x"])), None);
        let found = judge_agreement(&all(&["https://a", "https://b"]), &all(&["x"])).unwrap();
        assert!(found.message.contains("https://a, https://b"), "{found:?}");
        let found = judge_agreement(&all(&["https://a"]), &all(&["x", "y"])).unwrap();
        assert!(found.message.contains("authorities"), "{found:?}");
        let service = json!({ "service": { "namespace": "home", "name": "s", "path": "/a" } });
        assert_eq!(address(&service), "Service home/s:443");
        assert_eq!(address(&json!({ "url": "https://h:1/a" })), "https://h:1");
    }

    #[test]
    fn configurations_that_may_not_be_listed_are_not_well() {
        let hidden = judge_others("v", &Read::Forbidden("no".to_owned())).unwrap();
        assert_eq!(hidden.state, State::Forbidden, "{hidden:?}");
    }
}
