//! The adapter against a double of the runtime API, which knows one backend.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use adapter_haproxy::HaProxy;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use traffic::{Adapter, AdapterError, Changes, Employer, Member, Pod, PodId, Presence};

const BACKEND: &str = "demo_web";

#[derive(Clone, Default)]
struct Server {
    state: String,
    weight: String,
    sessions: u32,
}

type Servers = Arc<Mutex<BTreeMap<String, Server>>>;

/// Answers as HAProxy does.
fn answer(line: &str, servers: &Servers) -> String {
    let mut servers = servers.lock().unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    if line == "show stat" {
        let mut table = "# pxname,svname,qcur,qmax,scur,status,weight,\n".to_owned();
        table += "stats,FRONTEND,,,1,OPEN,,\n";
        for (name, server) in servers.iter() {
            let Server {
                state,
                weight,
                sessions,
            } = server;
            table += &format!("{BACKEND},{name},0,0,{sessions},{state},{weight},\n");
        }
        return table + "demo_web,BACKEND,0,0,0,UP,100,\n\n";
    }
    let (backend, name) = words[2].split_once('/').unwrap();
    if backend != BACKEND {
        return "No such backend.\n\n".to_owned();
    }
    let known = servers.get_mut(name);
    match (words[0], known) {
        ("add", Some(_)) => "Already exists a server with the same name in backend.\n\n".into(),
        ("add", None) => {
            let (state, weight) = ("MAINT".to_owned(), words[5].to_owned());
            servers.insert(
                name.to_owned(),
                Server {
                    state,
                    weight,
                    sessions: 0,
                },
            );
            "New server registered.\n\n".into()
        }
        (_, None) => "No such server.\n\n".into(),
        ("del", Some(server)) if server.state != "MAINT" => {
            "Only servers in maintenance mode can be deleted.\n\n".into()
        }
        ("del", Some(server)) if server.sessions > 0 => {
            "Server still has connections attached to it, cannot remove it.\n\n".into()
        }
        ("del", Some(_)) => {
            servers.remove(name);
            "Server deleted.\n\n".into()
        }
        (_, Some(server)) => {
            let state = match words[4] {
                "ready" => "no check",
                "drain" => "DRAIN",
                _ => "MAINT",
            };
            server.state = state.to_owned();
            "\n".into()
        }
    }
}

async fn haproxy() -> (HaProxy, Servers) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let servers = Servers::default();
    let shared = servers.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            let answer = answer(line.trim(), &shared);
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (HaProxy(address), servers)
}

fn employer(port: u16) -> Employer {
    Employer {
        namespace: "demo".into(),
        name: "web".into(),
        spec: json!({"ports": [{"port": port, "targetPort": 8080}]}),
        ..Employer::default()
    }
}

fn member(adapter: &HaProxy, port: u16) -> Member {
    let pod = Pod {
        id: PodId {
            uid: "u".into(),
            name: "web-1".into(),
        },
        addresses: vec!["fd00::1".parse().unwrap(), "10.0.0.1".parse().unwrap()],
        ..Pod::default()
    };
    adapter.members(&employer(port), &pod).unwrap().remove(0)
}

fn register(member: &Member) -> Changes {
    Changes {
        register: vec![member.clone()],
        ..Changes::default()
    }
}

fn drain(member: &Member) -> Changes {
    Changes {
        drain: vec![member.clone()],
        ..Changes::default()
    }
}

fn deregister(member: &Member) -> Changes {
    Changes {
        deregister: vec![member.clone()],
        ..Changes::default()
    }
}

#[tokio::test]
async fn member_is_registered_drained_and_removed() {
    let (adapter, servers) = haproxy().await;
    let member = member(&adapter, 80);
    let drained = Presence::Draining { until: None };
    let steps = [
        (register(&member), Presence::Serving),
        (register(&member), Presence::Serving),
        (drain(&member), drained.clone()),
        (register(&member), Presence::Serving),
        (drain(&member), drained),
        (deregister(&member), Presence::Absent),
        (deregister(&member), Presence::Absent),
    ];
    for (changes, expected) in steps {
        let applied = adapter.apply(&employer(80), &changes).await;
        assert_eq!(applied, [(member.key.clone(), Ok(expected.clone()))].into());
        let observed = adapter.observe(&employer(80), &[]).await.unwrap();
        let found = observed.registrations.first();
        let presence = found.map_or(Presence::Absent, |found| found.presence.clone());
        assert_eq!(presence, expected);
        assert!(
            found.is_none_or(|found| found.member.key == member.key && found.member.weight == 100)
        );
    }
    assert!(servers.lock().unwrap().is_empty());
}

#[tokio::test]
async fn member_with_connections_is_not_removed() {
    let (adapter, servers) = haproxy().await;
    let member = member(&adapter, 80);
    adapter.apply(&employer(80), &register(&member)).await;
    servers
        .lock()
        .unwrap()
        .get_mut("10.0.0.1:8080")
        .unwrap()
        .sessions = 2;
    let applied = adapter.apply(&employer(80), &deregister(&member)).await;
    let Err(AdapterError::Transient(text)) = &applied[&member.key] else {
        unreachable!("{applied:?}");
    };
    assert!(text.contains("still has connections"), "{text}");
    let observed = adapter.observe(&employer(80), &[]).await.unwrap();
    assert_eq!(observed.registrations[0].connections, Some(2));
}

#[tokio::test]
async fn unknown_backend_is_an_error() {
    let (adapter, _servers) = haproxy().await;
    let mut member = member(&adapter, 80);
    member.key.group = "demo_api".into();
    let applied = adapter.apply(&employer(80), &register(&member)).await;
    let error = applied[&member.key].as_ref().unwrap_err().to_string();
    assert!(error.contains("No such backend"), "{error}");
}

#[tokio::test]
async fn lost_answer_says_nothing_of_the_member() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let adapter = HaProxy(listener.local_addr().unwrap());
    let member = member(&adapter, 80);
    drop(listener);
    assert!(
        adapter
            .apply(&employer(80), &drain(&member))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn unreachable_haproxy_has_no_observation() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let adapter = HaProxy(listener.local_addr().unwrap());
    drop(listener);
    let error = adapter.observe(&employer(80), &[]).await.unwrap_err();
    assert!(matches!(error, AdapterError::Transient(_)), "{error}");
}
