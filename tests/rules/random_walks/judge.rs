//! Judges a walk: no operation may continue without the approval of every endpoint that it waited for, except after a
//! failed call under a written `Ignore`.

use std::collections::{BTreeMap, BTreeSet};

use operating::api::keys::Family;
use serde_json::Value;

use super::history::{Answer, Call, History, PodVersion};

type Labels = BTreeMap<String, String>;

/// The begin of a task may be stored in whole seconds.
const SECOND: u64 = 1_000_000_000;

/// An operation that has left a stage.
#[derive(Clone, Debug)]
pub struct Grant {
    pub pod: String,
    pub uid: String,
    pub id: String,
    pub stage: &'static str,
    /// The times at which the operation began to wait and passed.
    pub since: u64,
    pub until: u64,
    /// The Pod's labels in this period.
    labels: Vec<Labels>,
}

/// The findings of the judge.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How many operations passed.
    pub grants: usize,
    /// How many times a rule applied to one of these operations.
    pub judged: usize,
    pub violations: Vec<(Grant, String)>,
}

/// Judges a whole walk.
pub fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    for grant in grants(history) {
        verdict.grants += 1;
        for (object, rules) in history.in_force(grant.since, grant.until) {
            // Within an object the server asks an endpoint only after all earlier endpoints have let the operation
            // pass.
            let mut after = grant.since;
            for rule in rules.iter().filter(|rule| applies(rule, &grant)) {
                let name = rule["name"].as_str().unwrap();
                let wrong = if let Some(asks) = rule.get("webhook") {
                    verdict.judged += 1;
                    match passes(history, rule, asks, &grant, after) {
                        Some(at) => {
                            after = at;
                            None
                        }
                        None => Some("its endpoint has not let it pass"),
                    }
                } else if let Some(check) = rule.get("labelCheck") {
                    verdict.judged += 1;
                    let labels = grant.labels.last().unwrap();
                    let fits = matches(&check["requires"], labels);
                    (!fits).then_some("its labels do not match")
                } else {
                    None // budgets are judged elsewhere
                };
                if let Some(wrong) = wrong {
                    let violation = format!("rule {name} of {object}: {wrong}");
                    verdict.violations.push((grant.clone(), violation));
                }
            }
        }
    }
    verdict
}

/// Whether a rule applied to an operation from its begin until it passed.
fn applies(rule: &Value, grant: &Grant) -> bool {
    let stage = rule["stage"].as_str().unwrap_or("PreCheck");
    let filter = &rule["filter"]["labelSelector"];
    rule["disabled"] != true
        && stage == grant.stage
        && (filter.is_null() || grant.labels.iter().all(|labels| matches(filter, labels)))
}

fn matches(selector: &Value, labels: &Labels) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    let mut wanted = wanted;
    wanted.all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
}

/// The time at which an endpoint, asked after `after`, first let an operation pass.
fn passes(history: &History, rule: &Value, asks: &Value, grant: &Grant, after: u64) -> Option<u64> {
    let config = &asks["clientConfig"];
    let url = config["url"].as_str().unwrap();
    // Admission writes the default, so an absent policy is not Ignore.
    let ignores = asks["failurePolicy"] == "Ignore";
    let is_about = |call: &&Call| {
        call.task.is_none()
            && call.url == url
            && call.rule == rule["name"].as_str().unwrap()
            && (call.stage == grant.stage || call.stage.is_empty() && grant.stage == "PreCheck")
            && call.pods.contains(&grant.pod)
            && call.at >= after
            && call.answered_at <= grant.until
    };
    let answers = history.calls.iter().filter(is_about);
    let mut moments: Vec<u64> = Vec::new();
    for call in answers {
        match &call.answer {
            Answer::Yes => moments.push(call.answered_at),
            Answer::Named(names) => {
                moments.extend(names.contains(&grant.pod).then_some(call.answered_at));
            }
            Answer::Error => moments.extend(ignores.then_some(call.answered_at)),
            Answer::Task(id, names) => {
                let poll = &config["poll"];
                if poll.is_null() {
                    continue; // the history does not show the outcome
                }
                match names.contains(&grant.pod) {
                    true => moments.push(call.answered_at),
                    false => {
                        moments.extend(finishes(history, poll, id, call, grant, ignores));
                    }
                }
            }
        }
    }
    if ignores {
        let calls = unheard(history, url, after, grant.until);
        moments.extend(calls);
    }
    moments.into_iter().min()
}

/// The time at which a task let an operation pass that an earlier answer had added to the task.
fn finishes(
    history: &History,
    poll: &Value,
    id: &str,
    answer: &Call,
    grant: &Grant,
    ignores: bool,
) -> Option<u64> {
    let url = poll["url"].as_str().unwrap();
    let is_of = |call: &&Call| {
        call.url == url
            && call.task.as_deref() == Some(id)
            && call.at >= answer.at
            && call.answered_at <= grant.until
    };
    let polls: Vec<&Call> = history.calls.iter().filter(is_of).collect();
    let passing = polls.iter().filter(|call| match &call.answer {
        Answer::Yes => true,
        Answer::Named(names) => names.contains(&grant.pod),
        Answer::Task(..) | Answer::Error => false,
    });
    let first = passing.map(|call| call.answered_at).min();
    let over = answer.answered_at + poll["timeoutSeconds"].as_u64().unwrap_or(60) * SECOND - SECOND;
    let failed = polls.iter().any(|call| call.answer == Answer::Error)
        || unheard(history, url, answer.answered_at, grant.until)
            .next()
            .is_some();
    let ignored = (ignores && failed && over <= grant.until).then_some(over);
    first.into_iter().chain(ignored).min()
}

/// Calls during which an endpoint was down.
fn unheard(history: &History, url: &str, after: u64, until: u64) -> impl Iterator<Item = u64> {
    let all = history.turned_away.iter();
    let refused_calls = all.filter(move |(whence, at)| {
        url.starts_with(&format!("{whence}/")) && (after..=until).contains(at)
    });
    refused_calls.map(|(_, at)| *at)
}

/// Every operation that has left PreCheck or PostCheck.
fn grants(history: &History) -> Vec<Grant> {
    let mut by_uid: BTreeMap<&str, Vec<&PodVersion>> = BTreeMap::new();
    for version in &history.pods {
        by_uid.entry(&version.uid).or_default().push(version);
    }
    let mut all = Vec::new();
    for versions in by_uid.values() {
        for index in 1..versions.len() {
            let (before, now) = (&versions[index - 1].labels, &versions[index].labels);
            let (Some(before), Some(now)) = (before, now) else {
                continue;
            };
            let ids: BTreeSet<&str> = before
                .keys()
                .chain(now.keys())
                .filter_map(|key| Family::parse(key))
                .filter(|(family, _)| *family != Family::OperationPermission)
                .map(|(_, id)| id)
                .collect();
            for id in ids {
                all.extend(begun(versions, index, id));
                all.extend(completed(history, versions, index, id));
            }
        }
    }
    all
}

fn value<'a>(labels: &'a Labels, family: Family, id: &str) -> Option<&'a str> {
    labels.get(&family.key(id)).map(String::as_str)
}

fn stamp(labels: &Labels, family: Family, id: &str) -> Option<u64> {
    value(labels, family, id)?.parse().ok()
}

/// The operation has left PreCheck by the write that made the version at `index`.
fn begun(versions: &[&PodVersion], index: usize, id: &str) -> Option<Grant> {
    let (before, now) = (
        versions[index - 1].labels.as_ref()?,
        versions[index].labels.as_ref()?,
    );
    let works = |labels: &Labels| {
        let goes_on = [Family::Preparing, Family::Operate];
        let goes_on = goes_on.iter().any(|f| value(labels, *f, id).is_some());
        goes_on.then(|| {
            value(labels, Family::PreChecked, id)
                .unwrap_or("")
                .to_owned()
        })
    };
    if works(now).is_none() || works(now) == works(before) {
        return None;
    }
    let until = stamp(now, Family::PreChecked, id).unwrap_or(versions[index].at);
    let same = value(before, Family::OperationType, id) == value(now, Family::OperationType, id)
        && value(before, Family::Operating, id).is_some();
    // This write begins the operation again, so the operation waits from now on.
    let since = stamp(before, Family::PreCheck, id).filter(|_| same);
    Some(grant(
        versions,
        index,
        id,
        "PreCheck",
        Family::PreCheck,
        since,
        until,
    ))
}

/// The operation has left PostCheck by that write.
fn completed(history: &History, versions: &[&PodVersion], index: usize, id: &str) -> Option<Grant> {
    let (before, now) = (
        versions[index - 1].labels.as_ref()?,
        versions[index].labels.as_ref()?,
    );
    let waited = stamp(before, Family::PostCheck, id);
    let operated = value(before, Family::Operate, id).is_some();
    let gone_on = value(now, Family::PostCheck, id).is_none()
        && value(now, Family::Operate, id).is_none()
        && value(now, Family::Operating, id).is_none();
    if waited.is_none() && !operated || !gone_on {
        return None;
    }
    let at = versions[index].at;
    let until = match value(now, Family::Completing, id) {
        Some(_) => stamp(now, Family::PostChecked, id).unwrap_or(at),
        None => {
            let pod = &versions[index].name;
            let since = waited.unwrap_or(at.saturating_sub(SECOND));
            let mut undone = history.undone.iter();
            if undone.any(|u| u.pod == *pod && u.id == id && u.at >= since && u.at <= at) {
                return None;
            }
            at
        }
    };
    Some(grant(
        versions,
        index,
        id,
        "PostCheck",
        Family::PostCheck,
        waited,
        until,
    ))
}

fn grant(
    versions: &[&PodVersion],
    index: usize,
    id: &str,
    stage: &'static str,
    family: Family,
    since: Option<u64>,
    until: u64,
) -> Grant {
    let waits = |v: &&&PodVersion| {
        let labels = v.labels.as_ref();
        since.is_some() && labels.and_then(|l| stamp(l, family, id)) == since
    };
    let waited = versions[..index].iter().rev().take_while(waits);
    let all = std::iter::once(&versions[index]).chain(waited);
    let mut labels: Vec<_> = all.filter_map(|v| v.labels.clone()).collect();
    labels.reverse();
    Grant {
        pod: versions[index].name.clone(),
        uid: versions[index].uid.clone(),
        id: id.to_owned(),
        stage,
        since: since.unwrap_or(until),
        until,
        labels,
    }
}
