//! Members in Caddy's configuration.
#![allow(clippy::unwrap_used)]

use traffic_http::wire::MemberInfo;

use super::*;
use crate::members::Change;

fn frontend() -> Frontend {
    "demo/web/http=127.0.0.1:8000".parse().unwrap()
}

fn member(number: u8, weight: u32) -> MemberInfo {
    MemberInfo {
        group: "http".into(),
        address: [10, 0, 0, number].into(),
        port: 80,
        weight,
        pod_uid: format!("u-{number}"),
        pod_name: format!("web-{number}"),
    }
}

fn with(changes: &[(Change, MemberInfo)]) -> Members {
    let mut members = Members::default();
    for (change, member) in changes {
        members.change(*change, member, 7).unwrap();
    }
    members
}

#[test]
fn written_members_are_read_again() {
    let members = with(&[
        (Change::Register, member(1, 3)),
        (Change::Register, member(2, 1)),
        (Change::Drain, member(2, 1)),
    ]);
    let mut config =
        json!({"admin": {"listen": "x"}, "apps": {"pki": {}, "http": {"servers": {"other": {}}}}});
    write(&mut config, &frontend(), &members, &[]).unwrap();
    let mut read = read(&config, &frontend()).unwrap();
    read.entries.sort_by_key(|entry| entry.address);
    assert_eq!(read, members);
    assert_eq!(config["admin"]["listen"], "x");
    assert_eq!(config["apps"]["pki"], json!({}));
    assert_eq!(config["apps"]["http"]["servers"]["other"], json!({}));
}

#[test]
fn empty_configuration_gets_a_server() {
    for mut config in [json!(null), json!({}), json!({"apps": null})] {
        assert_eq!(read(&config, &frontend()).unwrap(), Members::default());
        write(&mut config, &frontend(), &Members::default(), &[]).unwrap();
        let server = &config["apps"]["http"]["servers"]["operating.demo.web.http"];
        assert_eq!(server["listen"], json!(["127.0.0.1:8000"]));
    }
    for mut config in [
        json!([]),
        json!({"apps": 1}),
        json!({"apps": {"http": {"servers": []}}}),
    ] {
        write(&mut config, &frontend(), &Members::default(), &[]).unwrap_err();
    }
}

#[test]
fn server_of_somebody_else_is_not_read() {
    let members = with(&[(Change::Register, member(1, 1))]);
    let mut config = Value::Null;
    write(&mut config, &frontend(), &members, &[]).unwrap();
    let upstream = "/apps/http/servers/operating.demo.web.http/routes/1/handle/0/upstreams/0";
    for (pointer, value) in [
        (upstream, json!({"dial": "10.0.0.1:80"})),
        (upstream, json!({"@id": "mine", "dial": "10.0.0.1:80"})),
        ("/apps/http/servers/operating.demo.web.http", json!({})),
    ] {
        let mut changed = config.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        let failure = read(&changed, &frontend()).unwrap_err();
        assert!(failure.message.contains("remove it") && !failure.retryable);
    }
}

#[test]
fn weights_are_as_small_as_they_can_be() {
    let policy = |weights: &[u32]| {
        let numbered = weights.iter().zip(1..);
        let changes: Vec<_> = numbered
            .map(|(weight, number)| (Change::Register, member(number, *weight)))
            .collect();
        let entries = with(&changes).entries;
        selection(&entries.iter().collect::<Vec<_>>())
    };
    assert_eq!(policy(&[]), json!({"policy": "round_robin"}));
    assert_eq!(policy(&[100, 100]), json!({"policy": "round_robin"}));
    assert_eq!(policy(&[100, 50])["weights"], json!([2, 1]));
}
