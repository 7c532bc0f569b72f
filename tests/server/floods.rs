//! Floods: silent connections, bodies that never end, calls without an accepted client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use operating::server::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::rig::{Rig, Sender, call, review, rig, text, verdict};

const STRANGER: &str = "127.0.0.2";
const API_SERVER: &str = "127.0.0.1";

/// Few connection slots, and no client is disconnected because it is slow.
fn patient() -> Limits {
    let long = Duration::from_secs(600);
    Limits {
        connections: 8,
        unproven: 16,
        unproven_per_address: 12,
        handshake: long,
        unproven_idle: long,
        body: long,
        ..Limits::default()
    }
}

async fn tcp(rig: &Rig, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = SocketAddr::new(from.parse().unwrap(), 0);
    socket.bind(from).unwrap();
    socket.connect(rig.address).await.unwrap()
}

async fn tls(rig: &Rig, from: &str) -> TlsStream<TcpStream> {
    let config = rig.client_config(rustls::ALL_VERSIONS, &[b"http/1.1"]);
    let name = "localhost".try_into().unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, tcp(rig, from).await).await.unwrap()
}

async fn h1(rig: &Rig, from: &str) -> Sender {
    let stream = TokioIo::new(tls(rig, from).await);
    let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Waits until the other side has closed the connection.
async fn ended(mut stream: TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
}

/// A request whose body begins and never ends.
async fn held_open(stream: &mut TlsStream<TcpStream>, begun: usize) {
    let head = "POST /pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; begun]).await.unwrap();
    stream.flush().await.unwrap();
}

async fn shed(rig: &Rig, reason: &str) -> f64 {
    let series = "operating_connections_shed_total";
    rig.metric(&format!(
        r#"{series}{{listener="webhook",reason="{reason}"}}"#
    ))
    .await
}

async fn open(rig: &Rig, standing: &str) -> f64 {
    let series = "operating_connections_by_standing";
    rig.metric(&format!(
        r#"{series}{{listener="webhook",standing="{standing}"}}"#
    ))
    .await
}

#[tokio::test]
async fn silent_connections_of_unproven_address_block_no_client() {
    let rig = rig(patient()).await;
    let mut proven = h1(&rig, API_SERVER).await;
    let answer = proven.send_request(call("/pods", review("allow"))).await;
    assert_eq!(verdict(answer.unwrap()).await["allowed"], true);

    let mut flood = Vec::new();
    for round in 0..10 {
        for _ in 0..10 {
            flood.push(tcp(&rig, STRANGER).await);
        }
        assert_eq!(rig.review("allow").await["allowed"], true, "{round}");
        let (code, text) = rig.probe("/readyz").await;
        assert_eq!(code, 200, "{text}");
    }
    let answer = proven.send_request(call("/pods", review("allow"))).await;
    assert_eq!(verdict(answer.unwrap()).await["allowed"], true);
    assert!(shed(&rig, "address").await >= 80.0);
    assert!(open(&rig, "unproven").await <= 16.0);
}

#[tokio::test]
async fn silent_connections_of_the_same_address_give_way() {
    let rig = rig(patient()).await;
    let mut flood = Vec::new();
    for _ in 0..40 {
        flood.push(tcp(&rig, API_SERVER).await);
        assert_eq!(rig.review("allow").await["allowed"], true);
        assert_eq!(rig.probe("/readyz").await.0, 200);
    }
    ended(flood.swap_remove(0)).await;
}

#[tokio::test]
async fn strangers_of_many_addresses_give_way() {
    let rig = rig(Limits {
        unproven: 8,
        ..patient()
    })
    .await;
    let mut flood = Vec::new();
    for round in 0..8 {
        for last in 2..6 {
            flood.push(tcp(&rig, &format!("127.0.0.{last}")).await);
        }
        assert_eq!(rig.review("allow").await["allowed"], true, "{round}");
    }
    assert!(shed(&rig, "crowded").await >= 20.0);
}

/// A review in flight already limits its connection.
#[tokio::test]
async fn review_being_decided_keeps_its_connection_in_flood() {
    let rig = Arc::new(rig(patient()).await);
    let mut sender = h1(&rig, STRANGER).await;
    let hanging = tokio::spawn(async move {
        sender
            .send_request(call("/pods?timeout=30s", review("hang")))
            .await
    });
    rig.handler.entered.notified().await;
    let mut flood = Vec::new();
    for _ in 0..40 {
        flood.push(tcp(&rig, STRANGER).await);
    }
    ended(flood.swap_remove(0)).await;
    rig.handler.release.notify_one();
    let answer = hanging.await.unwrap().unwrap();
    assert_eq!(verdict(answer).await["allowed"], true);
}

/// A connection without an accepted call ends after seconds; with an accepted call it lasts as long as API servers keep
/// connections.
#[tokio::test]
async fn connection_idles_long_only_after_accepted_call() {
    let rig = rig(Limits {
        unproven_idle: Duration::from_millis(20),
        unproven_calm: 0,
        ..Limits::default()
    })
    .await;
    let mut proven = h1(&rig, API_SERVER).await;
    let answer = proven.send_request(call("/pods", review("allow"))).await;
    assert_eq!(verdict(answer.unwrap()).await["allowed"], true);

    for (path, body) in [("/nothing", "{}"), ("/pods", "{}")] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = tls(&rig, STRANGER).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
    }
    let config = rig.client_config(rustls::ALL_VERSIONS, &[b"h2"]);
    let stream = TokioIo::new(rig.handshake(config).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(call("https://localhost/nothing", "{}"));
    assert_eq!(answer.await.unwrap().status(), 404);
    let _ = connection.await.unwrap();

    let answer = proven.send_request(call("/pods", review("allow"))).await;
    assert_eq!(verdict(answer.unwrap()).await["allowed"], true);
    assert_eq!(shed(&rig, "silent").await, 3.0);
    assert_eq!(open(&rig, "proven").await, 1.0);
}

#[tokio::test]
async fn bodies_held_open_deny_nobody() {
    let rig = rig(Limits {
        unproven_bytes: 100_000,
        proven_bytes: 100_000,
        ..patient()
    })
    .await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = tls(&rig, STRANGER).await;
        held_open(&mut stream, 30_000).await;
        streams.push(stream);
    }
    let mut large = review("allow");
    large["request"]["oldObject"]["data"] = json!("x".repeat(60_000));
    let mut sender = h1(&rig, API_SERVER).await;
    for _ in 0..3 {
        // The first round uses an unproven connection, the second round a proven one.
        let answer = sender.send_request(call("/pods", &large)).await.unwrap();
        assert_eq!(verdict(answer).await["allowed"], true);
    }
    // A client with an earlier verdict may hold bodies open as well.
    let mut open_streams = Vec::new();
    for _ in 0..6 {
        let mut stream = tls(&rig, STRANGER).await;
        let good = review("allow").to_string();
        let head = format!(
            "POST /pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{good}",
            good.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
        held_open(&mut stream, 30_000).await;
        open_streams.push(stream);
        let answer = sender.send_request(call("/pods", &large)).await.unwrap();
        assert_eq!(verdict(answer).await["allowed"], true);
    }
    for standing in ["unproven", "proven"] {
        let series = format!(r#"operating_bodies_shed_total{{standing="{standing}"}}"#);
        while rig.metric(&series).await < 1.0 {
            let answer = sender.send_request(call("/pods", &large)).await.unwrap();
            assert_eq!(verdict(answer).await["allowed"], true);
        }
    }
}

#[tokio::test]
async fn two_objects_of_the_api_servers_limit_get_a_verdict() {
    let rig = rig(Limits::default()).await;
    let mut large = review("deny");
    for field in ["object", "oldObject"] {
        let annotations: serde_json::Map<_, _> = (0..31_000)
            .map(|n| (format!("key-{n}"), json!("x".repeat(90))))
            .collect();
        large["request"][field] = json!({"metadata": {"annotations": annotations}});
    }
    assert!(large.to_string().len() > 6_000_000);
    let mut sender = rig.h1().await;
    let answer = sender.send_request(call("/pods", large)).await.unwrap();
    assert_eq!(verdict(answer).await["status"]["message"], "3 of 3 in use");
}

#[tokio::test]
async fn review_with_too_many_values_is_denied_with_reason() {
    let rig = rig(Limits::default()).await;
    let mut dense = review("allow");
    dense["request"]["object"] = json!({"list": vec![0; 1 << 20]});
    let mut sender = rig.h1().await;
    let answer = sender.send_request(call("/pods", dense)).await.unwrap();
    let answer = verdict(answer).await;
    assert_eq!(answer["allowed"], false);
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(message.contains("bytes of memory"), "{message}");
}

#[tokio::test]
async fn malformed_calls_are_logged_a_few_times_and_counted() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    for _ in 0..30 {
        let answer = sender.send_request(call("/pods", "{}")).await.unwrap();
        assert_eq!(text(answer).await.0, 400);
    }
    let suppressed = rig.metric("operating_log_lines_suppressed_total").await;
    assert_eq!(suppressed, 10.0);
}
