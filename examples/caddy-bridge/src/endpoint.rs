//! The two calls, and who may make them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tracing::warn;
use traffic_http::wire::{
    ApplyAnswer, ApplyRequest, ChangeResult, Failure, MemberInfo, MemberState, ObserveAnswer,
    ObserveRequest, PresenceInfo, UnreadableGroup,
};
use traffic_http::{SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed};

use crate::label::Entry;
use crate::members::{Change, dial};
use crate::options::{Frontend, Options};
use crate::refused::Refused;
use crate::service::Service;
use crate::store::{Closed, Store, no_answer};

/// Maximum length of a request, in bytes.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// How far the time of a signed request may be away from the clock of the bridge, in seconds.
const MAX_AGE: i64 = 300;

/// Shortest key, in bytes: a shorter one can be guessed from a signature. The adapter refuses the same keys.
const SHORTEST_KEY: usize = 16;

struct Bridge {
    options: Options,
    store: Store,
    hmac_key: Option<Vec<u8>>,
    /// One change at a time: two of the same bridge would only refuse each other.
    changing: Mutex<()>,
}

/// The routes of the bridge.
///
/// # Errors
/// If the URL of Caddy or the file of the key can't be used.
pub fn router(options: Options) -> Result<Router> {
    let hmac_key = match &options.hmac_key_file {
        Some(path) => {
            let key = std::fs::read(path).context("reading `--hmac-key-file`")?;
            let key = key.trim_ascii().to_vec();
            if key.len() < SHORTEST_KEY {
                bail!(
                    "the file of `--hmac-key-file` has less than {SHORTEST_KEY} bytes; write a random key into it"
                );
            }
            Some(key)
        }
        None => None,
    };
    let bridge = Bridge {
        store: Store::new(&options)?,
        hmac_key,
        changing: Mutex::new(()),
        options,
    };
    Ok(Router::new()
        .route("/v1/observe", post(observe))
        .route("/v1/apply", post(apply))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Arc::new(bridge)))
}

type Shared = State<Arc<Bridge>>;

async fn observe(State(bridge): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let result = match bridge.accept(&headers, "observe", &body) {
        Ok(request) => bridge.observe(request).await,
        Err(refused) => Err(refused),
    };
    answer("observe", &headers, result)
}

async fn apply(State(bridge): Shared, headers: HeaderMap, body: Bytes) -> Response {
    let result = match bridge.accept(&headers, "apply", &body) {
        Ok(request) => bridge.apply(request).await,
        Err(refused) => Err(refused),
    };
    if let Ok(answer) = &result {
        let mut refused = answer.results.iter().filter_map(|r| r.error.as_ref());
        if let Some(first) = refused.next() {
            let (id, message) = (id(&headers), &first.message);
            let count = 1 + refused.count();
            warn!(call = "apply", ?id, count, reason = ?message, "refused changes");
        }
    }
    answer("apply", &headers, result)
}

fn answer<A: Serialize>(call: &str, headers: &HeaderMap, result: Result<A, Refused>) -> Response {
    let body = result.and_then(|answer| {
        let unwritable = |error: serde_json::Error| {
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
        };
        serde_json::to_vec(&answer).map_err(unwritable)
    });
    match body {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(refused) => refused.answer(call, id(headers)),
    }
}

/// The identifier of a call, which is also in its signature.
fn id(headers: &HeaderMap) -> &str {
    text(headers, "x-request-id").unwrap_or_default()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map(|now| i64::try_from(now.as_millis()));
    now.ok().and_then(Result::ok).unwrap_or_default()
}

impl Bridge {
    /// Checks who calls, and reads the request.
    fn accept<R: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        call: &str,
        body: &[u8],
    ) -> Result<R, Refused> {
        if let Some(key) = &self.hmac_key {
            let time = text(headers, TIMESTAMP_HEADER).and_then(|time| time.parse().ok());
            let id = text(headers, "x-request-id");
            let signature = text(headers, SIGNATURE_HEADER);
            let is_valid = match (time, id, signature) {
                (Some(time), Some(id), Some(signature)) => {
                    let age = (now() / 1000).abs_diff(time);
                    age <= MAX_AGE.unsigned_abs() && is_signed(key, time, id, call, body, signature)
                }
                _ => false,
            };
            if !is_valid {
                let message = "the signature is missing, wrong or too old".to_owned();
                return Err(Refused::new(StatusCode::UNAUTHORIZED, message));
            }
        }
        let read = serde_json::from_slice(body);
        read.map_err(|error| Refused::new(StatusCode::BAD_REQUEST, format!("the request: {error}")))
    }

    async fn observe(&self, request: ObserveRequest) -> Result<ObserveAnswer, Refused> {
        let Some(service) = Service::of(&request.employer, &self.options) else {
            return Ok(ObserveAnswer::default());
        };
        let read = self.store.read(&service).await;
        let read = read.map_err(|error| no_answer(&error))?;
        // Counted after the members are read, so that each drain is older than the count.
        let now = now();
        let requests = self.store.caddy.requests().await;
        let requests = requests.map_err(|error| no_answer(&error))?;
        let mut answer = ObserveAnswer::default();
        for (group, members) in read {
            match members {
                Err(error) => answer
                    .unreadable_groups
                    .push(UnreadableGroup { group, error }),
                Ok(members) => answer
                    .members
                    .extend(members.entries.into_iter().map(|entry| {
                        let dial = dial(&entry, &self.options.mappings);
                        let count = requests.get(&dial).copied().unwrap_or_default();
                        self.state(&group, entry, count, now)
                    })),
            }
        }
        Ok(answer)
    }

    fn state(&self, group: &str, entry: Entry, requests: u64, now: i64) -> MemberState {
        let settle = i64::try_from(self.options.settle_milliseconds).unwrap_or(i64::MAX);
        let is_settled = entry
            .drained_at
            .is_none_or(|at| now.saturating_sub(at) >= settle);
        MemberState {
            group: group.to_owned(),
            address: entry.address,
            port: entry.port,
            weight: entry.weight,
            pod_uid: entry.pod_uid,
            pod_name: entry.pod_name,
            presence: match entry.drained_at {
                Some(_) => PresenceInfo::Draining,
                None => PresenceInfo::Serving,
            },
            drain_until: None,
            connections: is_settled.then_some(requests),
        }
    }

    async fn apply(&self, request: ApplyRequest) -> Result<ApplyAnswer, Refused> {
        let Some(service) = Service::of(&request.employer, &self.options) else {
            return Ok(of_another_kind(&request));
        };
        let _one_at_a_time = self.changing.lock().await;
        let mut registers = service.frontends.clone();
        registers.retain(|f| request.register.iter().any(|m| m.group == f.group));
        let change =
            |content: &mut Value, closed: &Closed| self.change(content, &service, closed, &request);
        Ok(self.store.change(&service, &registers, change).await?)
    }

    /// Makes the changes in the document of the members.
    fn change(
        &self,
        content: &mut Value,
        service: &Service<'_>,
        closed: &Closed,
        request: &ApplyRequest,
    ) -> ApplyAnswer {
        let mut answer = ApplyAnswer::default();
        for (change, member) in changes(request) {
            let group = &member.group;
            let outcome = match (closed.get(group), service.frontend(group)) {
                (Some(failure), _) => Err(failure.clone()),
                (None, Some(frontend)) => self.change_one(content, frontend, change, member),
                (None, None) if change == Change::Register => Err(service.no_frontend(group)),
                (None, None) => Ok(PresenceInfo::Absent),
            };
            answer.results.push(result(member, outcome));
        }
        answer
    }

    fn change_one(
        &self,
        content: &mut Value,
        frontend: &Frontend,
        change: Change,
        member: &MemberInfo,
    ) -> Result<PresenceInfo, Failure> {
        let refused = |message| Failure {
            message,
            retryable: false,
        };
        let mut members = self.store.members(content, frontend)?;
        let before = members.clone();
        let presence = members.change(change, member, now()).map_err(refused)?;
        if members != before {
            let written = self.store.write(content, frontend, &members);
            written.map_err(refused)?;
        }
        Ok(presence)
    }
}

/// The changes of a call, in the order in which they are made.
fn changes<'r>(request: &'r ApplyRequest) -> impl Iterator<Item = (Change, &'r MemberInfo)> {
    let lists = [
        (Change::Register, &request.register),
        (Change::Drain, &request.drain),
        (Change::Deregister, &request.deregister),
    ];
    let pairs = |(change, members): (Change, &'r Vec<MemberInfo>)| {
        members.iter().map(move |member| (change, member))
    };
    lists.into_iter().flat_map(pairs)
}

/// The answer to an employer that is no Service: it has no members in Caddy.
fn of_another_kind(request: &ApplyRequest) -> ApplyAnswer {
    let outcome = |change| match change {
        Change::Register => Err(Failure {
            message: format!(
                "this bridge has members of Services only, and none of kind {:?}",
                request.employer.kind
            ),
            retryable: false,
        }),
        Change::Drain | Change::Deregister => Ok(PresenceInfo::Absent),
    };
    let results = changes(request).map(|(change, member)| result(member, outcome(change)));
    ApplyAnswer {
        results: results.collect(),
    }
}

fn result(member: &MemberInfo, outcome: Result<PresenceInfo, Failure>) -> ChangeResult {
    let (presence, error) = match outcome {
        Ok(presence) => (Some(presence), None),
        Err(error) => (None, Some(error)),
    };
    ChangeResult {
        group: member.group.clone(),
        address: member.address,
        port: member.port,
        presence,
        drain_until: None,
        error,
    }
}
