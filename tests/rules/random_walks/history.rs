//! The record of a walk for the judge: everything that the watches showed of Pods and rules, and all calls and answers
//! of the endpoints.

use std::collections::BTreeMap;

use serde_json::Value;

/// Margin around an operation during which a rule must have been unchanged to be judged: a replica decides by its own
/// watch, and the walk sees edits by another watch.
pub const BEFORE: u64 = 3_000_000_000;
pub const AFTER: u64 = 2_000_000_000;

/// A version of a Pod, or its end.
#[derive(Clone, Debug)]
pub struct PodVersion {
    pub uid: String,
    pub name: String,
    /// `None` if the Pod is gone.
    pub labels: Option<BTreeMap<String, String>>,
    pub at: u64,
}

/// A version of a rule object, or its end.
#[derive(Clone, Debug)]
pub struct ObjectVersion {
    pub uid: String,
    pub name: String,
    /// `None` if the rule object is gone.
    pub rules: Option<Vec<Value>>,
    pub at: u64,
}

/// The answer of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Approves everything that the call was about.
    Yes,
    /// Approves only these Pods.
    Named(Vec<String>),
    /// Says that a task continues, and approves these Pods.
    Task(String, Vec<String>),
    /// No valid answer of the protocol.
    Error,
}

/// A call of an endpoint.
#[derive(Clone, Debug)]
pub struct Call {
    /// URL without the query.
    pub url: String,
    /// For a POST: name and stage of the rule, and the Pods.
    pub rule: String,
    pub stage: String,
    pub pods: Vec<String>,
    /// For a GET: the task.
    pub task: Option<String>,
    pub at: u64,
    /// When the answer was sent, or when the caller gave up.
    pub answered_at: u64,
    pub answer: Answer,
}

/// An operation that the walk undid.
#[derive(Clone, Debug)]
pub struct Undone {
    pub pod: String,
    pub id: String,
    pub at: u64,
}

/// The whole record of a walk.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub pods: Vec<PodVersion>,
    pub objects: Vec<ObjectVersion>,
    pub calls: Vec<Call>,
    /// Connections that were closed before a request arrived: the address as `https://host:port`, and the time.
    pub turned_away: Vec<(String, u64)>,
    pub undone: Vec<Undone>,
    /// The actions of the walk, for the report of a failure.
    pub acts: Vec<(u64, String)>,
}

impl History {
    /// The rules of each object that existed unchanged during all of `from..=until` and the margin around it, in their
    /// order. A rule that was changed while an operation waited is left out, because either version of it may count.
    pub fn in_force(&self, from: u64, until: u64) -> Vec<(String, Vec<Value>)> {
        let (from, until) = (from.saturating_sub(BEFORE), until + AFTER);
        let mut by_uid: BTreeMap<&str, Vec<&ObjectVersion>> = BTreeMap::new();
        for version in &self.objects {
            by_uid.entry(&version.uid).or_default().push(version);
        }
        let mut found = Vec::new();
        for versions in by_uid.values() {
            let first = versions.iter().rposition(|v| v.at <= from);
            let Some(first) = first else { continue };
            let all: Vec<_> = versions[first..]
                .iter()
                .filter(|v| v.at <= until)
                .map(|v| v.rules.as_deref().unwrap_or_default())
                .collect();
            let is_in_all = |rule: &&Value| all.iter().all(|rules| rules.contains(rule));
            let stored_throughout: Vec<_> = all[0].iter().filter(is_in_all).cloned().collect();
            found.push((versions[first].name.clone(), stored_throughout));
        }
        found
    }

    /// Everything that happened to a Pod and around it in a period, in order.
    pub fn story(&self, pod: &str, from: u64, until: u64) -> String {
        let mut lines: Vec<(u64, String)> = self.acts.clone();
        for version in self.pods.iter().filter(|v| v.name == pod) {
            let labels = version.labels.iter().flatten();
            let labels: Vec<_> = labels
                .filter(|(key, _)| key.contains("podopslifecycle") || !key.contains('.'))
                .map(|(key, value)| {
                    format!(
                        "{}={value}",
                        key.replace("podopslifecycle.kusionstack.io", "")
                    )
                })
                .collect();
            let line = match version.labels {
                Some(_) => format!("{pod} {}: {}", version.uid, labels.join(" ")),
                None => format!("{pod} {} is gone", version.uid),
            };
            lines.push((version.at, line));
        }
        let mut before: BTreeMap<&str, &Option<Vec<Value>>> = BTreeMap::new();
        for object in &self.objects {
            if before.insert(&object.uid, &object.rules) != Some(&object.rules) {
                let rules = serde_json::json!(object.rules).to_string();
                lines.push((object.at, format!("rules {}: {}", object.name, cut(rules))));
            }
        }
        for call in &self.calls {
            if call.task.is_some() || call.pods.iter().any(|p| p == pod) {
                let answered_at = call.answered_at / 1_000_000;
                lines.push((call.at, format!("{call:?} answered at {answered_at} ms")));
            }
        }
        for (whence, at) in &self.turned_away {
            lines.push((*at, format!("{whence} is down, and was called")));
        }
        lines.retain(|(at, _)| (from..=until).contains(at));
        lines.sort();
        let lines = lines
            .iter()
            .map(|(at, line)| format!("{} ms {line}\n", at / 1_000_000));
        lines.collect()
    }
}

/// Rules without their CA bundles.
fn cut(rules: String) -> String {
    let mut parts = rules.split("\"caBundle\":\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        all + part.split_once('"').map_or("", |(_, rest)| rest)
    })
}
