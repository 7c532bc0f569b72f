//! Requests between two moments, by who sent them.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::plane::Plane;
use crate::plane::audit::Event;

/// User agent of the server's client.
pub const SERVER: &str = "operating";

/// Where in the audit log a measurement began.
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

/// The present end of the audit log.
pub async fn mark(plane: &Plane) -> Result<Mark> {
    Ok(Mark(plane.audit_events().await?.len()))
}

/// What was asked in a namespace since, without watches.
pub async fn since(plane: &Plane, mark: Mark, namespace: &str) -> Result<Traffic> {
    let events = plane.audit_events().await?;
    let ours = |e: &Event| {
        let object = e.object_ref.as_ref();
        e.verb != "watch" && object.is_some_and(|o| o.namespace == namespace)
    };
    Ok(Traffic(
        events.into_iter().skip(mark.0).filter(ours).collect(),
    ))
}

/// Number of requests of the server since, in all namespaces, without watches and its lease.
pub async fn of_server_since(plane: &Plane, mark: Mark) -> Result<usize> {
    let lease = |e: &Event| {
        e.object_ref
            .as_ref()
            .is_some_and(|o| o.resource == "leases")
    };
    let events = plane.audit_events().await?.into_iter().skip(mark.0);
    let ours = events.filter(|e| e.user_agent.starts_with(SERVER));
    Ok(ours.filter(|e| e.verb != "watch" && !lease(e)).count())
}

/// Requests.
#[derive(Debug)]
pub struct Traffic(Vec<Event>);

impl Traffic {
    /// Requests of the server.
    pub fn of_server(&self) -> usize {
        self.count(|e| e.user_agent.starts_with(SERVER))
    }

    /// Requests of the server about one resource.
    pub fn of_server_about(&self, resource: &str) -> usize {
        let about = |e: &Event| {
            e.object_ref
                .as_ref()
                .is_some_and(|o| o.resource == resource)
        };
        self.count(|e| e.user_agent.starts_with(SERVER) && about(e))
    }

    fn count(&self, which: impl Fn(&Event) -> bool) -> usize {
        self.0.iter().filter(|e| which(e)).count()
    }

    /// Number of requests by user agent, up to its version.
    pub fn by_agent(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for event in &self.0 {
            let agent = event
                .user_agent
                .split(['/', ' '])
                .next()
                .unwrap_or_default();
            *all.entry(agent.to_owned()).or_default() += 1;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_counted_by_agent_and_resource() {
        let event = |agent: &str, resource: &str| {
            serde_json::from_value(json!({
                "verb": "patch", "requestURI": "/", "userAgent": agent,
                "objectRef": {"resource": resource, "namespace": "n"},
            }))
            .unwrap()
        };
        let traffic = Traffic(vec![
            event("operating/1.0 (linux)", "pods"),
            event("operating/1.0 (linux)", "podtransitionrules"),
            event("kwok/v1", "pods"),
        ]);
        assert_eq!(
            (traffic.of_server(), traffic.of_server_about("pods")),
            (2, 1)
        );
        let expected = [("kwok".to_owned(), 1), ("operating".to_owned(), 2)];
        assert_eq!(traffic.by_agent(), BTreeMap::from(expected));
    }
}
