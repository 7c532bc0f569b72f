//! Requests between two moments, by client.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testbed::plane::Plane;
use testbed::plane::audit::Event;

use super::workload::PATIENCE;

/// User agent of the server's client.
pub const SERVER: &str = "operating";

/// The position in the audit log at which a measurement began.
#[derive(Debug, Clone, Copy)]
pub struct AuditPosition(usize);

/// The current end of the audit log.
pub async fn audit_position(plane: &Plane) -> Result<AuditPosition> {
    Ok(AuditPosition(plane.audit_events().await?.len()))
}

/// Requests in a namespace since `position`, without watches.
pub async fn since(plane: &Plane, position: AuditPosition, namespace: &str) -> Result<Requests> {
    let events = plane.audit_events().await?;
    let ours = |e: &Event| {
        let object = e.object_ref.as_ref();
        e.verb != "watch" && object.is_some_and(|o| o.namespace == namespace)
    };
    Ok(Requests(
        events.into_iter().skip(position.0).filter(ours).collect(),
    ))
}

/// Waits until the server sends no requests about a namespace for five seconds.
pub async fn until_rest(plane: &Plane, namespace: &str) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let position = audit_position(plane).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let requests = since(plane, position, namespace).await?;
        if requests.of_server() == 0 {
            return Ok(());
        }
    }
    bail!("the server does not come to rest in namespace {namespace}")
}

/// Requests of the server since `position`, in all namespaces.
pub async fn of_server_since(plane: &Plane, position: AuditPosition) -> Result<Requests> {
    let events = plane.audit_events().await?.into_iter().skip(position.0);
    let ours = events.filter(|e| e.user_agent.starts_with(SERVER));
    Ok(Requests(ours.collect()))
}

/// Requests.
#[derive(Debug)]
pub struct Requests(Vec<Event>);

impl Requests {
    /// Requests of the server.
    pub fn of_server(&self) -> usize {
        self.count(|e| e.user_agent.starts_with(SERVER))
    }

    /// Requests of the server about one resource.
    pub fn of_server_about(&self, resource: &str) -> usize {
        let is_about = |e: &Event| {
            e.object_ref
                .as_ref()
                .is_some_and(|o| o.resource == resource)
        };
        self.count(|e| e.user_agent.starts_with(SERVER) && is_about(e))
    }

    /// Number of requests by user agent, and by verb and resource: `patch pods/status`. The most frequent come first.
    pub fn split(&self) -> BTreeMap<String, Vec<(String, usize)>> {
        let mut counts = BTreeMap::<String, BTreeMap<String, usize>>::new();
        for event in &self.0 {
            let of_agent = counts.entry(agent(event)).or_default();
            *of_agent.entry(kind(event)).or_default() += 1;
        }
        let by_count = |counts: BTreeMap<String, usize>| {
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_by_key(|(_, count)| Reverse(*count));
            counts
        };
        let split = counts.into_iter();
        split.map(|(agent, of)| (agent, by_count(of))).collect()
    }

    /// Requests other than watches and those about a lease.
    pub fn beside_lease(&self) -> usize {
        self.count(|e| e.verb != "watch" && !is_lease(e))
    }

    /// Number of requests by verb, those about a lease apart: `get 3, update 2; lease: get 30, update 30`.
    pub fn by_verb(&self) -> String {
        let verbs = |lease: bool| {
            let mut all = BTreeMap::<&str, usize>::new();
            for event in self.0.iter().filter(|e| is_lease(e) == lease) {
                *all.entry(&event.verb).or_default() += 1;
            }
            let all: Vec<_> = all.iter().map(|(verb, n)| format!("{verb} {n}")).collect();
            if all.is_empty() {
                "none".to_owned()
            } else {
                all.join(", ")
            }
        };
        format!("{}; lease: {}", verbs(false), verbs(true))
    }

    fn count(&self, which: impl Fn(&Event) -> bool) -> usize {
        self.0.iter().filter(|e| which(e)).count()
    }

    /// Number of requests by user agent, up to its version.
    pub fn by_agent(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for event in &self.0 {
            *all.entry(agent(event)).or_default() += 1;
        }
        all
    }
}

/// The user agent up to its version.
fn agent(event: &Event) -> String {
    let mut parts = event.user_agent.split(['/', ' ']);
    parts.next().unwrap_or_default().to_owned()
}

/// Verb and resource, with its subresource behind a slash.
fn kind(event: &Event) -> String {
    let verb = &event.verb;
    match event.object_ref.as_ref() {
        None => verb.clone(),
        Some(object) if object.subresource.is_empty() => format!("{verb} {}", object.resource),
        Some(object) => format!("{verb} {}/{}", object.resource, object.subresource),
    }
}

fn is_lease(event: &Event) -> bool {
    let object = event.object_ref.as_ref();
    object.is_some_and(|o| o.resource == "leases")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_counted_by_verb_and_the_lease_apart() {
        let event = |verb: &str, resource: &str| {
            serde_json::from_value(json!({
                "verb": verb, "requestURI": "/", "objectRef": {"resource": resource},
            }))
            .unwrap()
        };
        let requests = Requests(vec![
            event("watch", "pods"),
            event("patch", "pods"),
            event("patch", "podtransitionrules"),
            event("update", "leases"),
        ]);
        assert_eq!(requests.by_verb(), "patch 2, watch 1; lease: update 1");
        assert_eq!(requests.beside_lease(), 2);
        assert_eq!(Requests(Vec::new()).by_verb(), "none; lease: none");
    }

    #[test]
    fn requests_are_counted_by_agent_and_resource() {
        let event = |agent: &str, resource: &str| {
            serde_json::from_value(json!({
                "verb": "patch", "requestURI": "/", "userAgent": agent,
                "objectRef": {"resource": resource, "namespace": "n"},
            }))
            .unwrap()
        };
        let requests = Requests(vec![
            event("operating/1.0 (linux)", "pods"),
            event("operating/1.0 (linux)", "podtransitionrules"),
            event("kwok/v1", "pods"),
        ]);
        assert_eq!(
            (requests.of_server(), requests.of_server_about("pods")),
            (2, 1)
        );
        let expected = [("kwok".to_owned(), 1), ("operating".to_owned(), 2)];
        assert_eq!(requests.by_agent(), BTreeMap::from(expected));
    }

    #[test]
    fn requests_are_split_by_agent_verb_and_resource() {
        let event = |agent: &str, verb: &str, subresource: &str| {
            serde_json::from_value(json!({
                "verb": verb, "requestURI": "/", "userAgent": agent,
                "objectRef": {"resource": "pods", "subresource": subresource},
            }))
            .unwrap()
        };
        let requests = Requests(vec![
            event("operating/1.0 (linux)", "get", ""),
            event("operating/1.0 (linux)", "patch", "status"),
            event("operating/1.0 (linux)", "patch", "status"),
            event("kwok/v1", "patch", ""),
        ]);
        let split = [
            ("kwok".to_owned(), vec![("patch pods".to_owned(), 1)]),
            (
                "operating".to_owned(),
                vec![
                    ("patch pods/status".to_owned(), 2),
                    ("get pods".to_owned(), 1),
                ],
            ),
        ];
        assert_eq!(requests.split(), BTreeMap::from(split));
    }
}
