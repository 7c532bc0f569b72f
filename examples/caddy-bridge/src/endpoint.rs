//! The two calls, and who may make them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use traffic_http::wire::{
    ApplyAnswer, ApplyRequest, ChangeResult, EmployerInfo, Failure, MemberInfo, MemberState,
    ObserveAnswer, ObserveRequest, PresenceInfo, UnreadableGroup,
};
use traffic_http::{SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed};

use crate::label::Entry;
use crate::members::{Change, dial};
use crate::options::{Frontend, Options};
use crate::store::{Store, Unchanged};

/// Maximum length of a request, in bytes.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// How far the time of a signed request may be away from the clock of the bridge, in seconds.
const MAX_AGE: i64 = 300;

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
            Some(key.trim_ascii().to_vec())
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
    answer(match bridge.accept(&headers, "observe", &body) {
        Ok(request) => bridge.observe(request).await,
        Err(refused) => Err(refused),
    })
}

async fn apply(State(bridge): Shared, headers: HeaderMap, body: Bytes) -> Response {
    answer(match bridge.accept(&headers, "apply", &body) {
        Ok(request) => bridge.apply(request).await,
        Err(refused) => Err(refused),
    })
}

fn answer<A: Serialize>(result: Result<A, Response>) -> Response {
    match result.map(|answer| serde_json::to_vec(&answer)) {
        Ok(Ok(body)) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Ok(Err(error)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(refused) => refused,
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let body = json!({ "message": message }).to_string();
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Nothing has changed, and the call should be repeated.
fn later(message: &str) -> Response {
    let mut refused = refuse(StatusCode::SERVICE_UNAVAILABLE, message);
    refused.headers_mut().insert(RETRY_AFTER, 1.into());
    refused
}

fn unchanged(reason: Unchanged) -> Response {
    match reason {
        Unchanged::Later(text) => later(&text),
        Unchanged::Refused(text) => refuse(StatusCode::UNPROCESSABLE_ENTITY, &text),
        Unchanged::Unknown(text) => refuse(StatusCode::BAD_GATEWAY, &text),
    }
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map(|now| i64::try_from(now.as_millis()));
    now.ok().and_then(Result::ok).unwrap_or_default()
}

impl Bridge {
    /// Checks who calls, and reads the request.
    #[allow(clippy::result_large_err)] // the error is the answer
    fn accept<R: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        call: &str,
        body: &[u8],
    ) -> Result<R, Response> {
        if let Some(key) = &self.hmac_key {
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let time = text(TIMESTAMP_HEADER).and_then(|time| time.parse().ok());
            let (id, signature) = (text("x-request-id"), text(SIGNATURE_HEADER));
            let is_valid = match (time, id, signature) {
                (Some(time), Some(id), Some(signature)) => {
                    let age = (now() / 1000).abs_diff(time);
                    age <= MAX_AGE.unsigned_abs() && is_signed(key, time, id, call, body, signature)
                }
                _ => false,
            };
            if !is_valid {
                let message = "the signature is missing, wrong or too old";
                return Err(refuse(StatusCode::UNAUTHORIZED, message));
            }
        }
        let read = serde_json::from_slice(body);
        read.map_err(|error| refuse(StatusCode::BAD_REQUEST, &format!("the request: {error}")))
    }

    fn frontends(&self, employer: &EmployerInfo) -> Vec<&Frontend> {
        let all = self.options.frontends.iter();
        let of_employer = all.filter(|frontend| {
            employer.kind == "Service"
                && frontend.namespace == employer.namespace
                && frontend.service == employer.name
        });
        of_employer.collect()
    }

    async fn observe(&self, request: ObserveRequest) -> Result<ObserveAnswer, Response> {
        let unreachable = |error: anyhow::Error| later(&format!("no answer of Caddy: {error}"));
        let frontends = self.frontends(&request.employer);
        let read = self.store.read(&frontends).await.map_err(unreachable)?;
        // Counted after the members are read, so that each drain is older than the count.
        let now = now();
        let requests = self.store.caddy.requests().await.map_err(unreachable)?;
        let mut answer = ObserveAnswer::default();
        for (frontend, members) in read {
            let group = frontend.group.clone();
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

    async fn apply(&self, request: ApplyRequest) -> Result<ApplyAnswer, Response> {
        let _one_at_a_time = self.changing.lock().await;
        let mut frontends = self.frontends(&request.employer);
        frontends.retain(|f| {
            request
                .register
                .iter()
                .any(|member| member.group == f.group)
        });
        self.store
            .add_servers(&frontends)
            .await
            .map_err(unchanged)?;
        let change = |content: &mut Value| self.change(content, &request);
        self.store.change(change).await.map_err(unchanged)
    }

    /// Makes the changes in the document of the members.
    fn change(&self, content: &mut Value, request: &ApplyRequest) -> ApplyAnswer {
        let mut answer = ApplyAnswer::default();
        let lists = [
            (Change::Register, &request.register),
            (Change::Drain, &request.drain),
            (Change::Deregister, &request.deregister),
        ];
        let frontends = self.frontends(&request.employer);
        for (change, members) in lists {
            for member in members {
                let frontend = frontends
                    .iter()
                    .find(|frontend| frontend.group == member.group);
                let outcome = match frontend {
                    Some(frontend) => self.change_one(content, frontend, change, member),
                    None if change == Change::Register => Err(Failure {
                        message: format!(
                            "no frontend for group {:?}; start the bridge with `--frontend {}/{}/{}=ADDRESS`",
                            member.group,
                            request.employer.namespace,
                            request.employer.name,
                            member.group
                        ),
                        retryable: false,
                    }),
                    None => Ok(PresenceInfo::Absent),
                };
                answer.results.push(result(member, outcome));
            }
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
