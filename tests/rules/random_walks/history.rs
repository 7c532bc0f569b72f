//! What a walk leaves behind for its judge: all that was seen of Pods and rules, and all that endpoints heard and said.

use std::collections::BTreeMap;

use serde_json::Value;

/// How long before an operation begins, and after it goes on, a rule must have been as it is to be judged by: a replica
/// decides by what its watch has brought, and the walk sees edits by a watch of its own.
pub const BEFORE: u64 = 3_000_000_000;
pub const AFTER: u64 = 2_000_000_000;

/// A version of a Pod, or its end.
#[derive(Clone, Debug)]
pub struct PodVersion {
    pub uid: String,
    pub name: String,
    /// `None`: it is gone.
    pub labels: Option<BTreeMap<String, String>>,
    pub at: u64,
}

/// A version of a rule object, or its end.
#[derive(Clone, Debug)]
pub struct ObjectVersion {
    pub uid: String,
    pub name: String,
    /// `None`: it is gone.
    pub rules: Option<Vec<Value>>,
    pub at: u64,
}

/// The answer of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes to all that the call was about.
    Yes,
    /// Yes to these alone.
    Named(Vec<String>),
    /// That a task goes on, and yes to these.
    Task(String, Vec<String>),
    /// Nothing by the protocol.
    Error,
}

/// A call of an endpoint.
#[derive(Clone, Debug)]
pub struct Call {
    /// URL without the query.
    pub url: String,
    /// Of a POST: name and stage of the rule, and the Pods.
    pub rule: String,
    pub stage: String,
    pub pods: Vec<String>,
    /// Of a GET: the task.
    pub task: Option<String>,
    pub at: u64,
    /// When the answer was sent, or when the caller no longer waited for it.
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

/// All of a walk.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub pods: Vec<PodVersion>,
    pub objects: Vec<ObjectVersion>,
    pub calls: Vec<Call>,
    /// Connections that were closed before a request could come: where, as `https://host:port`, and when.
    pub turned_away: Vec<(String, u64)>,
    pub undone: Vec<Undone>,
    /// What the walk did, for the story.
    pub acts: Vec<(u64, String)>,
}

impl History {
    /// The rules of each object that were there, and as they are, all the time around `from..=until`, in their order. A rule
    /// that was changed while an operation waited is not among them: which of its versions counts may be a race.
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

    /// All that happened in a time, to a Pod and around it, in order.
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
