//! A load balancer behind the two calls of the HTTP adapter, in memory, with faults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use axum::extract::{Request, State as Shared};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use traffic_http::wire::{
    ApplyAnswer, ApplyRequest, ChangeResult, EmployerInfo, Failure, MemberInfo, MemberState,
    ObserveAnswer, ObserveRequest, PresenceInfo,
};

/// Whose member: namespace and name of the Service, group, address and port.
type Key = (String, String, String, IpAddr, u16);

/// What the double knows, and which faults it has.
#[derive(Debug, Default)]
pub struct LbState {
    /// Registered members.
    pub members: BTreeMap<Key, MemberState>,
    /// Calls so far, by name: `observe`, `apply`, `refused`.
    pub calls: BTreeMap<&'static str, usize>,
    /// Every call fails with 500.
    pub down: bool,
    /// So many calls are answered with 429.
    pub throttled: usize,
    /// So many `apply` calls are made, and answered with 500.
    pub lost_replies: usize,
    /// Changes of members of these Pods are refused.
    pub refused_pods: BTreeSet<String>,
    /// Open connections of every draining member.
    pub connections: u64,
    /// The bearer token of every call; other calls are answered with 401. `None`: any call is answered.
    pub token: Option<String>,
    /// Members that were removed while they served or had connections: the Pod of each.
    pub cut: Vec<String>,
}

/// A running double. Dropping it stops it.
#[derive(Debug)]
pub struct LbDouble {
    state: Arc<Mutex<LbState>>,
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl LbDouble {
    /// Starts a double on a loopback port.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start() -> Result<LbDouble> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<LbState>>::default();
        let router = Router::new()
            .route("/v1/observe", post(observe))
            .route("/v1/apply", post(apply))
            .route_layer(from_fn_with_state(Arc::clone(&state), authenticate))
            .with_state(Arc::clone(&state));
        let serve = async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the double of a load balancer ended: {error}");
            }
        };
        Ok(LbDouble {
            state,
            address,
            _task: AbortOnDropHandle::new(tokio::spawn(serve)),
        })
    }

    /// URL for the settings of the adapter.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the double knows.
    pub fn state(&self) -> MutexGuard<'_, LbState> {
        self.state.lock()
    }

    /// Ends all faults, and forgets which members were cut off.
    pub fn end_faults(&self) {
        let mut state = self.state();
        *state = LbState {
            members: std::mem::take(&mut state.members),
            calls: std::mem::take(&mut state.calls),
            ..LbState::default()
        };
    }

    /// The Pods of a namespace whose members get requests, in order.
    #[must_use]
    pub fn serving(&self, namespace: &str) -> Vec<String> {
        let state = self.state();
        let members = state.members.iter();
        let serving = members
            .filter(|(key, member)| key.0 == namespace && member.presence == PresenceInfo::Serving);
        let mut pods: Vec<_> = serving.map(|(_, member)| member.pod_name.clone()).collect();
        pods.sort();
        pods
    }

    /// The number of all calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state().calls.values().sum()
    }
}

/// Refuses, and counts as `refused`, the calls without the token.
async fn authenticate(
    Shared(state): Shared<Arc<Mutex<LbState>>>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get("authorization").cloned();
    let is_known = {
        let mut state = state.lock();
        let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
        let is_known = wanted.is_none_or(|wanted| given.is_some_and(|given| given == wanted));
        if !is_known {
            *state.calls.entry("refused").or_default() += 1;
        }
        is_known
    };
    match is_known {
        true => next.run(request).await,
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

fn key(employer: &EmployerInfo, member: &MemberInfo) -> Key {
    let (namespace, name) = (employer.namespace.clone(), employer.name.clone());
    (
        namespace,
        name,
        member.group.clone(),
        member.address,
        member.port,
    )
}

/// Counts a call. Returns the answer if a fault decides it.
fn begin(state: &mut LbState, call: &'static str) -> Option<Response> {
    *state.calls.entry(call).or_default() += 1;
    if state.down {
        return Some(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    }
    if state.throttled > 0 {
        state.throttled -= 1;
        return Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response());
    }
    None
}

async fn observe(
    Shared(state): Shared<Arc<Mutex<LbState>>>,
    Json(request): Json<ObserveRequest>,
) -> Response {
    let mut state = state.lock();
    if let Some(fault) = begin(&mut state, "observe") {
        return fault;
    }
    let employer = &request.employer;
    let ours = |key: &&Key| key.0 == employer.namespace && key.1 == employer.name;
    let keys: Vec<_> = state.members.keys().filter(ours).cloned().collect();
    let members = keys.iter().map(|key| {
        let mut member = state.members[key].clone();
        if member.presence == PresenceInfo::Draining {
            member.connections = Some(state.connections);
        }
        member
    });
    let answer = ObserveAnswer {
        members: members.collect(),
        unreadable_groups: Vec::new(),
    };
    Json(answer).into_response()
}

async fn apply(
    Shared(state): Shared<Arc<Mutex<LbState>>>,
    Json(request): Json<ApplyRequest>,
) -> Response {
    let mut state = state.lock();
    if let Some(fault) = begin(&mut state, "apply") {
        return fault;
    }
    let mut results = Vec::new();
    let lists = [
        (&request.register, PresenceInfo::Serving),
        (&request.drain, PresenceInfo::Draining),
        (&request.deregister, PresenceInfo::Absent),
    ];
    for (members, presence) in lists {
        for member in members {
            let refused = state.refused_pods.contains(&member.pod_name);
            if !refused {
                change(&mut state, key(&request.employer, member), member, presence);
            }
            results.push(ChangeResult {
                group: member.group.clone(),
                address: member.address,
                port: member.port,
                presence: (!refused).then_some(presence),
                drain_until: None,
                error: refused.then(|| Failure {
                    message: "the quota of this member is used up".to_owned(),
                    retryable: false,
                }),
            });
        }
    }
    if state.lost_replies > 0 {
        state.lost_replies -= 1;
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    Json(ApplyAnswer { results }).into_response()
}

fn change(state: &mut LbState, key: Key, member: &MemberInfo, presence: PresenceInfo) {
    match presence {
        PresenceInfo::Absent => {
            let removed = state.members.remove(&key);
            let connections = state.connections;
            let cut = removed.filter(|m| m.presence == PresenceInfo::Serving || connections > 0);
            state.cut.extend(cut.map(|member| member.pod_name));
        }
        PresenceInfo::Draining if !state.members.contains_key(&key) => {}
        presence => {
            let member = MemberState {
                group: member.group.clone(),
                address: member.address,
                port: member.port,
                weight: member.weight,
                pod_uid: member.pod_uid.clone(),
                pod_name: member.pod_name.clone(),
                presence,
                drain_until: None,
                connections: None,
            };
            state.members.insert(key, member);
        }
    }
}
