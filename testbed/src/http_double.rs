//! An endpoint of the HTTP adapter that keeps members in memory and counts the calls. No load balancer is behind it.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use traffic_http::wire::{
    ApplyAnswer, ApplyRequest, ChangeResult, EmployerInfo, MemberInfo, MemberState, ObserveAnswer,
    ObserveRequest, PresenceInfo,
};

/// Number of calls since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Reads.
    pub observe: usize,
    /// Calls that change members.
    pub apply: usize,
}

impl Calls {
    /// All calls.
    #[must_use]
    pub fn all(self) -> usize {
        self.observe + self.apply
    }

    /// The calls since an earlier count.
    #[must_use]
    pub fn since(self, earlier: Calls) -> Calls {
        Calls {
            observe: self.observe - earlier.observe,
            apply: self.apply - earlier.apply,
        }
    }
}

/// Group, address and port.
type Key = (String, IpAddr, u16);

#[derive(Debug, Default)]
struct Memory {
    calls: Calls,
    /// The members of each Service, by its UID.
    members: HashMap<String, BTreeMap<Key, MemberState>>,
}

type Shared = Arc<Mutex<Memory>>;

/// A running double. It ends when it is dropped.
#[derive(Debug)]
pub struct HttpDouble {
    address: SocketAddr,
    memory: Shared,
    _task: AbortOnDropHandle<()>,
}

impl HttpDouble {
    /// Starts a double on a free port of loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub async fn start() -> Result<Self> {
        let memory = Shared::default();
        let router = Router::new()
            .route("/v1/observe", post(observe))
            .route("/v1/apply", post(apply))
            .with_state(memory.clone());
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let serve = async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the double of an HTTP endpoint ended: {error}");
            }
        };
        Ok(Self {
            address,
            memory,
            _task: AbortOnDropHandle::new(tokio::spawn(serve)),
        })
    }

    /// The `url` of the configuration of the adapter.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of calls since the start, of all Services.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let memory = self.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner).calls
    }
}

async fn observe(State(memory): State<Shared>, body: Bytes) -> Response {
    answer(&body, |request: ObserveRequest| {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.calls.observe += 1;
        ObserveAnswer {
            members: members_of(&mut memory, &request.employer)
                .values()
                .cloned()
                .collect(),
            unreadable_groups: Vec::new(),
        }
    })
}

async fn apply(State(memory): State<Shared>, body: Bytes) -> Response {
    answer(&body, |request: ApplyRequest| {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.calls.apply += 1;
        let members = members_of(&mut memory, &request.employer);
        let changes = [
            (request.register, PresenceInfo::Serving),
            (request.drain, PresenceInfo::Draining),
            (request.deregister, PresenceInfo::Absent),
        ];
        let all = changes
            .into_iter()
            .flat_map(|(list, presence)| list.into_iter().map(move |member| (member, presence)));
        ApplyAnswer {
            results: all
                .map(|(member, presence)| change(members, member, presence))
                .collect(),
        }
    })
}

fn members_of<'a>(
    memory: &'a mut Memory,
    employer: &EmployerInfo,
) -> &'a mut BTreeMap<Key, MemberState> {
    memory.members.entry(employer.uid.clone()).or_default()
}

fn change(
    members: &mut BTreeMap<Key, MemberState>,
    member: MemberInfo,
    presence: PresenceInfo,
) -> ChangeResult {
    let key = (member.group.clone(), member.address, member.port);
    let result = ChangeResult {
        group: member.group.clone(),
        address: member.address,
        port: member.port,
        presence: Some(presence),
        drain_until: None,
        error: None,
    };
    if presence == PresenceInfo::Absent {
        members.remove(&key);
        return result;
    }
    let state = MemberState {
        group: member.group,
        address: member.address,
        port: member.port,
        weight: member.weight,
        pod_uid: member.pod_uid,
        pod_name: member.pod_name,
        presence,
        drain_until: None,
        connections: None,
    };
    members.insert(key, state);
    result
}

fn answer<Q: DeserializeOwned, A: Serialize>(body: &[u8], make: impl FnOnce(Q) -> A) -> Response {
    let answer =
        serde_json::from_slice(body).and_then(|request| serde_json::to_vec(&make(request)));
    match answer {
        Ok(answer) => answer.into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
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
            attributes: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn double_keeps_members_and_counts_calls() {
        let double = HttpDouble::start().await.unwrap();
        let config = serde_json::from_value(json!({ "url": double.url() })).unwrap();
        let adapter = HttpAdapter::new(config).unwrap();
        let employer = Employer {
            uid: "s".to_owned(),
            ..Employer::default()
        };
        let before = double.calls();
        let changes = Changes {
            register: vec![member()],
            ..Changes::default()
        };
        adapter.apply(&employer, &changes).await;
        let observed = adapter.observe(&employer, &[]).await.unwrap();
        assert_eq!(observed.registrations.len(), 1);
        assert_eq!(observed.registrations[0].presence, Presence::Serving);
        let changes = Changes {
            deregister: vec![member()],
            ..Changes::default()
        };
        adapter.apply(&employer, &changes).await;
        let observed = adapter.observe(&employer, &[]).await.unwrap();
        assert!(observed.registrations.is_empty());
        let calls = double.calls().since(before);
        assert_eq!((calls.observe, calls.apply, calls.all()), (2, 2, 4));
    }
}
