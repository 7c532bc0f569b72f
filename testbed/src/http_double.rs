//! An endpoint of the HTTP adapter that keeps members in memory, counts the calls, and has faults on request. No load
//! balancer is behind it.

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

/// Largest request. A request has up to 1,000 members in each list.
const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Number of calls since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads.
    pub observe: usize,
    /// Calls that change members.
    pub apply: usize,
    /// Calls without the right token.
    pub refused: usize,
}

impl Calls {
    /// All calls.
    #[must_use]
    pub fn all(self) -> usize {
        self.observe + self.apply + self.refused
    }

    /// The calls since an earlier count.
    #[must_use]
    pub fn since(self, earlier: Calls) -> Calls {
        Calls {
            observe: self.observe - earlier.observe,
            apply: self.apply - earlier.apply,
            refused: self.refused - earlier.refused,
        }
    }
}

/// Whose member: namespace and name of the Service, group, address and port.
type Key = (String, String, String, IpAddr, u16);

/// What the double knows, and which faults it has.
#[derive(Debug, Default)]
pub struct HttpState {
    /// Registered members.
    pub members: BTreeMap<Key, MemberState>,
    /// Calls so far, of all Services.
    pub calls: Calls,
    /// Every call fails with 500.
    pub down: bool,
    /// No call is answered.
    pub hangs: bool,
    /// Calls that are not answered yet.
    pub under_way: usize,
    /// The most calls that were under way at a time since the faults ended.
    pub most_under_way: usize,
    /// So many calls are answered with 429.
    pub throttled: usize,
    /// So many `apply` calls are made, and answered with 500.
    pub lost_replies: usize,
    /// The next `apply` is made after this time, and never answered.
    pub late: Option<std::time::Duration>,
    /// Number of `observe` calls about employers of each namespace.
    pub observes: BTreeMap<String, usize>,
    /// Number of `apply` calls about employers of each namespace.
    pub applies: BTreeMap<String, usize>,
    /// Whether that call has been made.
    pub late_made: bool,
    /// `register` is answered with `Pending`, and nothing is stored.
    pub forgets: bool,
    /// `drain` is answered with `Draining`, and nothing is stored.
    pub ignores_drains: bool,
    /// Changes of members of these Pods are refused.
    pub refused_pods: BTreeSet<String>,
    /// Members of these groups do not get healthy.
    pub pending_groups: BTreeSet<String>,
    /// Open connections of every draining member.
    pub connections: u64,
    /// The bearer token of every call; other calls are answered with 401. `None`: any call is answered.
    pub token: Option<String>,
    /// Members that were removed while they served or had connections: the Pod of each.
    pub cut: Vec<String>,
}

impl HttpState {
    /// What the load balancer says of a member.
    fn presence(&self, member: &MemberState) -> PresenceInfo {
        match member.presence {
            PresenceInfo::Serving if self.pending_groups.contains(&member.group) => {
                PresenceInfo::Pending
            }
            other => other,
        }
    }
}

type State = Arc<Mutex<HttpState>>;

/// A running double. It ends when it is dropped.
#[derive(Debug)]
pub struct HttpDouble {
    state: State,
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl HttpDouble {
    /// Starts a double on a free port of loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = State::default();
        let router = Router::new()
            .route("/v1/observe", post(observe))
            .route("/v1/apply", post(apply))
            .route_layer(from_fn_with_state(Arc::clone(&state), authenticate))
            .layer(axum::extract::DefaultBodyLimit::max(MAX_REQUEST))
            .with_state(Arc::clone(&state));
        let serve = async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the double of an HTTP endpoint ended: {error}");
            }
        };
        Ok(Self {
            state,
            address,
            _task: AbortOnDropHandle::new(tokio::spawn(serve)),
        })
    }

    /// The `url` of the configuration of the adapter.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the double knows. A test may read and change it.
    pub fn state(&self) -> MutexGuard<'_, HttpState> {
        self.state.lock()
    }

    /// Ends all faults, and forgets which members were cut off. The token stays.
    pub fn end_faults(&self) {
        let mut state = self.state();
        *state = HttpState {
            members: std::mem::take(&mut state.members),
            calls: state.calls,
            under_way: state.under_way,
            token: state.token.take(),
            ..HttpState::default()
        };
    }

    /// The Pods of a namespace whose members get requests, in order.
    #[must_use]
    pub fn serving(&self, namespace: &str) -> Vec<String> {
        let state = self.state();
        let members = state.members.iter();
        let serving = members.filter(|(key, member)| {
            key.0 == namespace && state.presence(member) == PresenceInfo::Serving
        });
        let mut pods: Vec<_> = serving.map(|(_, member)| member.pod_name.clone()).collect();
        pods.sort();
        pods
    }

    /// Number of all calls since the start.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls_by_name().all()
    }

    /// Number of calls of each name since the start.
    #[must_use]
    pub fn calls_by_name(&self) -> Calls {
        self.state().calls
    }
}

/// A call that is under way until this is dropped, because it is answered or the caller has gone.
struct UnderWay(State);

impl UnderWay {
    fn new(state: &State) -> UnderWay {
        let mut locked = state.lock();
        locked.under_way += 1;
        locked.most_under_way = locked.most_under_way.max(locked.under_way);
        UnderWay(Arc::clone(state))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

/// Refuses the calls without the token, and keeps those that are not answered.
async fn authenticate(Shared(state): Shared<State>, request: Request, next: Next) -> Response {
    let _under_way = UnderWay::new(&state);
    if state.lock().hangs {
        std::future::pending::<()>().await;
    }
    let given = request.headers().get("authorization").cloned();
    let is_known = {
        let mut state = state.lock();
        let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
        let is_known = wanted.is_none_or(|wanted| given.is_some_and(|given| given == wanted));
        state.calls.refused += usize::from(!is_known);
        is_known
    };
    match is_known {
        true => next.run(request).await,
        false => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// The answer to a call, if a fault decides it.
fn fault(state: &mut HttpState) -> Option<Response> {
    if state.down {
        return Some(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    }
    if state.throttled > 0 {
        state.throttled -= 1;
        return Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response());
    }
    None
}

async fn observe(Shared(state): Shared<State>, Json(request): Json<ObserveRequest>) -> Response {
    let mut state = state.lock();
    state.calls.observe += 1;
    let namespace = request.employer.namespace.clone();
    *state.observes.entry(namespace).or_default() += 1;
    if let Some(fault) = fault(&mut state) {
        return fault;
    }
    let EmployerInfo {
        namespace, name, ..
    } = request.employer;
    let unspecified = IpAddr::from([0, 0, 0, 0]);
    let first = (namespace, name, String::new(), unspecified, 0);
    let from_first = state.members.range(&first..);
    let own = from_first.take_while(|(key, _)| (&key.0, &key.1) == (&first.0, &first.1));
    let members = own.map(|(_, member)| MemberState {
        connections: match member.presence {
            PresenceInfo::Draining => Some(state.connections),
            _ => None,
        },
        presence: state.presence(member),
        ..member.clone()
    });
    let answer = ObserveAnswer {
        members: members.collect(),
        unreadable_groups: Vec::new(),
    };
    Json(answer).into_response()
}

async fn apply(Shared(state): Shared<State>, Json(request): Json<ApplyRequest>) -> Response {
    let late = {
        let mut state = state.lock();
        state.calls.apply += 1;
        let namespace = request.employer.namespace.clone();
        *state.applies.entry(namespace).or_default() += 1;
        if let Some(fault) = fault(&mut state) {
            return fault;
        }
        match state.late.take() {
            Some(late) => late,
            None => return make_changes(&mut state, &request),
        }
    };
    tokio::spawn(async move {
        tokio::time::sleep(late).await;
        let mut state = state.lock();
        drop(make_changes(&mut state, &request));
        state.late_made = true;
    });
    std::future::pending().await
}

fn make_changes(state: &mut HttpState, request: &ApplyRequest) -> Response {
    let mut results = Vec::new();
    let lists = [
        (&request.register, PresenceInfo::Serving),
        (&request.drain, PresenceInfo::Draining),
        (&request.deregister, PresenceInfo::Absent),
    ];
    for (members, wanted) in lists {
        for member in members {
            let outcome = match state.refused_pods.contains(&member.pod_name) {
                true => Err(Failure {
                    message: "the quota of this member is used up".to_owned(),
                    retryable: false,
                }),
                false => Ok(change(state, &request.employer, member, wanted)),
            };
            results.push(ChangeResult {
                group: member.group.clone(),
                address: member.address,
                port: member.port,
                presence: outcome.as_ref().ok().copied(),
                drain_until: None,
                error: outcome.err(),
            });
        }
    }
    if state.lost_replies > 0 {
        state.lost_replies -= 1;
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    Json(ApplyAnswer { results }).into_response()
}

/// Makes a change. Returns what has become of the member.
fn change(
    state: &mut HttpState,
    employer: &EmployerInfo,
    member: &MemberInfo,
    wanted: PresenceInfo,
) -> PresenceInfo {
    match wanted {
        PresenceInfo::Serving if state.forgets => return PresenceInfo::Pending,
        PresenceInfo::Draining if state.ignores_drains => return wanted,
        _ => {}
    }
    let (namespace, name) = (employer.namespace.clone(), employer.name.clone());
    let group = member.group.clone();
    let key = (namespace, name, group, member.address, member.port);
    match wanted {
        PresenceInfo::Absent => {
            let removed = state.members.remove(&key);
            let connections = state.connections;
            let cut = removed.filter(|m| m.presence == PresenceInfo::Serving || connections > 0);
            state.cut.extend(cut.map(|member| member.pod_name));
            return wanted;
        }
        PresenceInfo::Draining if !state.members.contains_key(&key) => return PresenceInfo::Absent,
        _ => {}
    }
    let registered = MemberState {
        group: member.group.clone(),
        address: member.address,
        port: member.port,
        weight: member.weight,
        pod_uid: member.pod_uid.clone(),
        pod_name: member.pod_name.clone(),
        presence: wanted,
        drain_until: None,
        connections: None,
    };
    let presence = state.presence(&registered);
    state.members.insert(key, registered);
    presence
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;
    use traffic::{Adapter, Changes, Employer, Member, MemberKey, PodId, Presence};
    use traffic_http::HttpAdapter;

    fn member() -> Member {
        Member {
            key: MemberKey {
                group: "80".to_owned(),
                address: [10, 0, 0, 1].into(),
                port: 8080,
            },
            pod: PodId {
                uid: "u".to_owned(),
                name: "web".to_owned(),
            },
            weight: 100,
        }
    }

    fn employer(name: &str) -> Employer {
        Employer {
            name: name.to_owned(),
            ..Employer::default()
        }
    }

    async fn double_and_adapter() -> (HttpDouble, HttpAdapter) {
        let double = HttpDouble::start().await.unwrap();
        let config = serde_json::from_value(json!({ "url": double.url() })).unwrap();
        (double, HttpAdapter::new(config).unwrap())
    }

    #[tokio::test]
    async fn double_keeps_members_and_counts_calls() {
        let (double, adapter) = double_and_adapter().await;
        let before = double.calls_by_name();
        let changes = Changes {
            register: vec![member()],
            ..Changes::default()
        };
        adapter.apply(&employer("web"), &changes).await;
        let observed = adapter.observe(&employer("web"), &[]).await.unwrap();
        assert_eq!(observed.registrations.len(), 1);
        assert_eq!(observed.registrations[0].presence, Presence::Serving);
        for other in ["we", "web2", "a"] {
            let observed = adapter.observe(&employer(other), &[]).await.unwrap();
            assert!(observed.registrations.is_empty(), "{other}");
        }
        let changes = Changes {
            deregister: vec![member()],
            ..Changes::default()
        };
        adapter.apply(&employer("web"), &changes).await;
        let observed = adapter.observe(&employer("web"), &[]).await.unwrap();
        assert!(observed.registrations.is_empty());
        let calls = double.calls_by_name().since(before);
        assert_eq!((calls.observe, calls.apply, calls.all()), (5, 2, 7));
    }

    #[tokio::test]
    async fn drained_member_that_is_not_there_is_absent() {
        let (double, adapter) = double_and_adapter().await;
        let changes = Changes {
            drain: vec![member()],
            ..Changes::default()
        };
        let applied = adapter.apply(&employer("web"), &changes).await;
        assert_eq!(applied[&member().key], Ok(Presence::Absent));
        assert!(double.state().members.is_empty());
    }
}
