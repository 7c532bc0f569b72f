//! Counts requests to the API server: a cost figure without noise.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Plane, credentials};
use crate::wait;

/// User agent of the clients that a [`Plane`] hands out.
pub const TEST_USER_AGENT: &str = "plane-test";
/// Prefix of the user agent of the server.
const SERVER_USER_AGENT: &str = "operating";

/// One request that the API server has answered (audit.k8s.io/v1 Event, the fields of use here).
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// User agent of the client.
    #[serde(default)]
    pub user_agent: String,
    /// The user.
    #[serde(default)]
    pub user: User,
    /// The impersonated user, if there is one.
    pub impersonated_user: Option<User>,
    /// The object of the request; absent if the URL is not a resource.
    pub object_ref: Option<ObjectRef>,
    /// The answer.
    pub response_status: Option<ResponseStatus>,
    /// Annotations, among them those of admission webhooks (`WEBHOOK/KEY`).
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// A user in an [`Event`].
#[derive(Debug, Clone, Default, Deserialize)]
pub struct User {
    /// Name, for example `system:serviceaccount:NAMESPACE:NAME`.
    #[serde(default)]
    pub username: String,
}

/// The object of an [`Event`]; absent parts are empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Plural, for example `pods`.
    pub resource: String,
    /// For example `status`, `eviction`.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// API group; empty for the core group.
    pub api_group: String,
}

/// The answer of an [`Event`].
#[derive(Debug, Clone, Deserialize)]
pub struct ResponseStatus {
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
}

/// A filter of events. Every field that is set must match; the default matches all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Prefix of the user agent.
    pub user_agent: Option<&'a str>,
    /// User name.
    pub user: Option<&'a str>,
    /// Verb.
    pub verb: Option<&'a str>,
    /// Resource, plural.
    pub resource: Option<&'a str>,
    /// Subresource; `Some("")` for requests to the object itself.
    pub subresource: Option<&'a str>,
    /// Namespace.
    pub namespace: Option<&'a str>,
    /// Status code of the answer.
    pub code: Option<u16>,
}

impl Filter<'_> {
    /// Whether an event matches.
    #[must_use]
    pub fn fits(&self, event: &Event) -> bool {
        let object = event.object_ref.as_ref();
        let of = |part: fn(&ObjectRef) -> &String| object.map(|o| part(o).as_str());
        let same = |wanted: Option<&str>, found: Option<&str>| match wanted {
            Some(wanted) => Some(wanted) == found,
            None => true,
        };
        self.user_agent
            .is_none_or(|a| event.user_agent.starts_with(a))
            && same(self.user, Some(&event.user.username))
            && same(self.verb, Some(&event.verb))
            && same(self.resource, of(|o| &o.resource))
            && same(self.subresource, of(|o| &o.subresource))
            && same(self.namespace, of(|o| &o.namespace))
            && self
                .code
                .is_none_or(|c| event.response_status.as_ref().is_some_and(|s| s.code == c))
    }
}

/// The events of an audit log. An incomplete last line is left out.
///
/// # Errors
/// When the file cannot be read or a complete line is no audit event.
pub fn events(path: &Path) -> Result<Vec<Event>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut reader = BufReader::new(file);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 || line.last() != Some(&b'\n') {
            return Ok(all);
        }
        let event = serde_json::from_slice(&line)
            .with_context(|| format!("line {} of {}", all.len() + 1, path.display()))?;
        all.push(event);
    }
}

/// Number of matching events of an audit log.
///
/// # Errors
/// As [`events`].
pub fn count(path: &Path, filter: &Filter<'_>) -> Result<usize> {
    Ok(events(path)?.iter().filter(|e| filter.fits(e)).count())
}

impl Plane {
    /// Number of matching requests so far. First waits until the API server has written the log up to now,
    /// because it writes in batches.
    ///
    /// # Errors
    /// Without an audit log, on a cluster that this process did not start, or when the API
    /// server does not answer.
    pub async fn audit_count(&self, filter: &Filter<'_>) -> Result<usize> {
        let events = self.audit_events().await?;
        Ok(events.iter().filter(|e| filter.fits(e)).count())
    }

    /// All requests so far, as [`Plane::audit_count`].
    ///
    /// # Errors
    /// As [`Plane::audit_count`].
    pub async fn audit_events(&self) -> Result<Vec<Event>> {
        self.local()?;
        // Batches keep the order: when the log contains a request of this function, it contains all earlier
        // ones.
        let mark = format!("/version?mark={}", credentials::random_hex(8)?);
        let client = self.client()?;
        client
            .request_text(http::Request::get(&mark).body(Vec::new())?)
            .await?;
        let log = self.audit_log();
        let description = "the audit log to be written";
        wait::within(description, Duration::from_secs(180), || async {
            Ok(std::fs::read_to_string(&log)?.contains(&mark))
        })
        .await?;
        events(&log)
    }

    /// The successful writes of the server to objects of a namespace, after the first `since` requests.
    ///
    /// # Errors
    /// As [`Plane::audit_count`].
    pub async fn server_writes(&self, namespace: &str, since: usize) -> Result<Vec<Event>> {
        let mut events = self.audit_events().await?;
        events.drain(..since.min(events.len()));
        events.retain(|event| event.is_write_of_server(namespace));
        Ok(events)
    }
}

impl Event {
    /// Whether this is a successful write of the server to an object of a namespace.
    #[must_use]
    pub fn is_write_of_server(&self, namespace: &str) -> bool {
        let object = self.object_ref.as_ref();
        let code = self.response_status.as_ref().map(|status| status.code);
        self.user_agent.starts_with(SERVER_USER_AGENT)
            && !["get", "list", "watch"].contains(&&*self.verb)
            && code.is_some_and(|code| code < 300)
            && object.is_some_and(|object| object.namespace == namespace)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LOG: &str = concat!(
        r#"{"verb":"create","requestURI":"/api/v1/x","userAgent":"operating/1","user":{"username":"u"},"#,
        r#""objectRef":{"resource":"pods","subresource":"eviction","namespace":"a"},"responseStatus":{"code":429}}"#,
        "\n",
        r#"{"verb":"get","requestURI":"/version","userAgent":"curl"}"#,
        "\n",
        r#"{"verb":"get","reques"#,
    );

    #[test]
    fn events_are_counted_by_every_field_that_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, LOG).unwrap();
        let n = |filter: Filter<'_>| count(&path, &filter).unwrap();
        let all = Filter::default;
        assert_eq!(n(all()), 2, "the unfinished line is left out");
        assert_eq!(
            n(Filter {
                user_agent: Some("operating"),
                verb: Some("create"),
                resource: Some("pods"),
                subresource: Some("eviction"),
                namespace: Some("a"),
                user: Some("u"),
                code: Some(429),
            }),
            1
        );
        for none in [
            Filter {
                code: Some(201),
                ..all()
            },
            Filter {
                subresource: Some(""),
                ..all()
            },
            Filter {
                namespace: Some("b"),
                ..all()
            },
            Filter {
                verb: Some("list"),
                ..all()
            },
            Filter {
                user: Some("x"),
                ..all()
            },
        ] {
            assert_eq!(n(none), 0, "{none:?}");
        }
    }

    #[test]
    fn error_names_broken_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "{\"verb\":\n").unwrap();
        let error = events(&path).unwrap_err().to_string();
        assert!(error.starts_with("line 1 of "), "{error}");
    }
}
