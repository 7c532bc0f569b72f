//! Checks the ledgers of rules while replicas of several builds write them: no build drops a field that
//! another build has stored, and no watermark or format goes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt, pin_mut};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Map, Value};
use testbed::fleet;

/// Fields that may disappear from a claim. All other fields stay as long as the claim.
const PASSING: [&str; 7] = [
    "opened",
    "closing",
    "target",
    "containers",
    "containerID",
    "imageHash",
    "byResources",
];

/// The observations of the ledgers.
#[derive(Debug, Default)]
pub struct Seen {
    /// The last ledger of each rule, by UID.
    last: BTreeMap<String, Value>,
    /// Number of ledgers that replaced another one.
    pub writes: usize,
    /// Number of writes that preserved a field, by name of the field.
    pub stayed: BTreeMap<String, usize>,
    /// Violations.
    pub faults: Vec<String>,
}

/// Follows the rules of a namespace until the future is dropped.
pub async fn follow(client: Client, namespace: String, seen: Arc<Mutex<Seen>>) {
    let rules = fleet::rules(client, &namespace);
    let events = watcher(rules, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        // The watcher restarts after an error.
        if let Ok(watcher::Event::Apply(rule) | watcher::Event::InitApply(rule)) = event {
            let uid = rule.uid().unwrap_or_default();
            let ledger = rule.data["status"]["ledger"].clone();
            lock(&seen).note(uid, &rule.name_any(), ledger);
        }
    }
}

/// Locks the observations.
pub fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn note(&mut self, uid: String, rule: &str, ledger: Value) {
        let Some(last) = self.last.insert(uid, ledger.clone()) else {
            return;
        };
        if last.is_null() || last == ledger {
            return;
        }
        self.writes += 1;
        let number = |ledger: &Value, field| match &ledger[field] {
            Value::String(text) => text.parse::<u64>().ok(),
            other => other.as_u64(),
        };
        for field in ["watermark", "formatVersion"] {
            let (before, now) = (number(&last, field), number(&ledger, field));
            if now.is_none() || now < before {
                let (before, now) = (&last[field], &ledger[field]);
                self.fault(rule, format!("{field} went from {before} to {now}"));
            }
        }
        self.compare(rule, "the ledger", &last, &ledger);
        for claim in claims(&last) {
            let (pod, operation) = (&claim["podName"], &claim["operation"]);
            let subject = format!("the claim {operation} of {pod}");
            let Some(now) = claims(&ledger).find(|now| is_same(claim, now)) else {
                continue;
            };
            self.compare(rule, &subject, claim, now);
            for container in items(claim, "containers") {
                let mut all = items(now, "containers");
                if let Some(now) = all.find(|now| now["name"] == container["name"]) {
                    let subject = format!("{subject}, container {}", container["name"]);
                    self.compare(rule, &subject, container, now);
                }
            }
        }
    }

    /// Checks that every field still exists.
    fn compare(&mut self, rule: &str, subject: &str, before: &Value, now: &Value) {
        for name in fields(before).filter(|name| !PASSING.contains(&name.as_str())) {
            if now.get(name).is_some() {
                *self.stayed.entry(name.clone()).or_default() += 1;
            } else {
                self.fault(rule, format!("{subject} lost the field {name}"));
            }
        }
    }

    fn fault(&mut self, rule: &str, description: String) {
        self.faults.push(format!("rule {rule}: {description}"));
    }
}

/// Whether both are the same claim, which a later attempt may have renewed.
fn is_same(claim: &Value, other: &Value) -> bool {
    let opened = |claim: &Value| match &claim["opened"] {
        Value::Null => claim["attempt"].clone(),
        opened => opened.clone(),
    };
    ["podUID", "operation"].iter().all(|f| claim[f] == other[f]) && opened(claim) == opened(other)
}

fn claims(ledger: &Value) -> impl Iterator<Item = &Value> {
    items(ledger, "claims")
}

fn items<'a>(of: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    of[field].as_array().into_iter().flatten()
}

fn fields(of: &Value) -> impl Iterator<Item = &String> {
    of.as_object().into_iter().flat_map(Map::keys)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A ledger of a build that knows more fields, with a claim of these attempts.
    fn ledger(attempt: u64, opened: Value) -> Value {
        json!({
            "formatVersion": 1, "watermark": "10", "attempts": 5, "epoch": "a",
            "claims": [{
                "podName": "web-1", "podUID": "uid-1", "operation": "InPlace", "attempt": attempt, "opened": opened,
                "target": "digest", "shard": 1,
                "containers": [{ "name": "app", "containerID": "run-1", "sidecar": true }],
            }],
        })
    }

    fn seen(ledgers: &[Value]) -> Seen {
        let mut seen = Seen::default();
        for ledger in ledgers {
            seen.note("uid".into(), "web", ledger.clone());
        }
        seen
    }

    #[test]
    fn renewed_and_released_claims_are_no_faults() {
        let mut renewed = ledger(5, json!(3));
        renewed["claims"][0]["target"].take();
        renewed["watermark"] = json!("11");
        let mut released = renewed.clone();
        released["claims"] = json!([]);
        let all = seen(&[Value::Null, ledger(3, Value::Null), renewed, released]);
        assert!(all.faults.is_empty(), "{:?}", all.faults);
        assert_eq!(all.writes, 2);
        let stayed = ["epoch", "shard", "sidecar"].map(|field| all.stayed[field]);
        assert_eq!(stayed, [2, 1, 1]);
        assert!(!all.stayed.contains_key("target"));
    }

    #[test]
    fn new_claim_of_pod_has_no_fields_of_former() {
        let mut renewed_claim = ledger(4, Value::Null);
        let claim = renewed_claim["claims"][0].as_object_mut();
        claim
            .into_iter()
            .for_each(|claim| _ = claim.remove("shard"));
        let all = seen(&[ledger(3, Value::Null), renewed_claim]);
        assert!(all.faults.is_empty(), "{:?}", all.faults);
    }

    #[test]
    fn dropped_fields_are_faults() {
        for (at, field) in [
            ("", "epoch"),
            ("/claims/0", "shard"),
            ("/claims/0/containers/0", "sidecar"),
        ] {
            let mut now = ledger(5, json!(3));
            let holder = now.pointer_mut(at).and_then(Value::as_object_mut);
            holder
                .into_iter()
                .for_each(|holder| _ = holder.remove(field));
            let all = seen(&[ledger(3, Value::Null), now]);
            assert_eq!(all.faults.len(), 1, "{:?}", all.faults);
            assert!(all.faults[0].ends_with(&format!("lost the field {field}")));
        }
    }

    #[test]
    fn watermarks_and_formats_that_go_back_are_faults() {
        for (field, value) in [
            ("watermark", json!("9")),
            ("watermark", json!("soon")),
            ("formatVersion", json!(0)),
        ] {
            let mut now = ledger(3, Value::Null);
            now[field] = value;
            let all = seen(&[ledger(3, Value::Null), now]);
            assert_eq!(all.faults.len(), 1, "{:?}", all.faults);
            assert!(all.faults[0].contains(field));
        }
        let emptied = seen(&[ledger(3, Value::Null), Value::Null]);
        assert!(!emptied.faults.is_empty());
    }
}
