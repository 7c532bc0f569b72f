//! Shutdown of a server under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::header;
use operating::server::Limits;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::logs::{collect_logs, take_logs};
use super::rig::{Rig, call, review, rig, verdict};

/// Sends reviews one after another over persistent connections, as an API server does, and opens a new connection when
/// an answer closed the last one, until the server is not ready any more. Returns the number of verdicts; panics on any
/// failure.
async fn client(rig: Arc<Rig>, done: Arc<AtomicUsize>) {
    while !rig.shutdown.is_draining() {
        let mut sender = rig.h1().await;
        loop {
            let response = sender
                .send_request(call("/pods", review("allow")))
                .await
                .unwrap();
            let last = response
                .headers()
                .get(header::CONNECTION)
                .is_some_and(|value| value == "close");
            assert_eq!(verdict(response).await["allowed"], true);
            done.fetch_add(1, Ordering::Relaxed);
            if last {
                break;
            }
        }
    }
}

#[tokio::test]
async fn draining_under_load_fails_no_review() {
    let limits = Limits {
        last_request: Duration::from_secs(60),
        ..Limits::default()
    };
    let rig = Arc::new(rig(limits).await);
    let done = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(client(rig.clone(), done.clone()));
    }
    let mut hanging = rig.h1().await;
    let hanging = tokio::spawn(async move {
        hanging
            .send_request(call("/pods?timeout=30s", review("hang")))
            .await
    });
    rig.handler.entered.notified().await;
    while done.load(Ordering::Relaxed) < 200 {
        tokio::task::yield_now().await;
    }

    rig.shutdown.drain();
    assert_eq!(rig.probe("/readyz").await.0, 503);
    assert_eq!(rig.probe("/livez").await.0, 200);
    // A client that has not noticed the shutdown yet is still served.
    assert_eq!(rig.review("allow-late").await["allowed"], true);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    // Connections open at the shutdown: a new one, an idle one, and one with a review in flight.
    let mut fresh = rig.h1().await;
    rig.shutdown.stop();
    let answer = fresh
        .send_request(call("/pods", review("allow-fresh")))
        .await
        .unwrap();
    assert_eq!(verdict(answer).await["allowed"], true);
    rig.handler.release.notify_one();
    let answer = hanging.await.unwrap().unwrap();
    assert_eq!(verdict(answer).await["allowed"], true);

    let rig = Arc::into_inner(rig).unwrap();
    rig.webhook.await.unwrap();
    assert!(TcpStream::connect(rig.address).await.is_err());
}

#[tokio::test]
async fn idle_connection_ends_at_stop() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    let answer = sender
        .send_request(call("/pods", review("allow")))
        .await
        .unwrap();
    assert_eq!(verdict(answer).await["allowed"], true);
    rig.shutdown.stop();
    rig.webhook.await.unwrap();
}

#[tokio::test]
async fn drain_deadline_cuts_what_hangs() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    let hanging = tokio::spawn(async move {
        sender
            .send_request(call("/pods?timeout=30s", review("hang")))
            .await
    });
    rig.handler.entered.notified().await;
    collect_logs();
    rig.shutdown.abort();
    rig.webhook.await.unwrap();
    assert!(hanging.await.unwrap().is_err());
    let logs = take_logs();
    let warning = logs.lines().find(|line| line.contains(" WARN ")).unwrap();
    assert!(warning.contains("cutting connections"), "{warning}");
    assert!(warning.contains("open=1 requests=1"), "{warning}");
}

#[tokio::test]
async fn idle_connections_are_cut_without_a_warning() {
    let rig = rig(Limits::default()).await;
    let _unused = rig.h1().await;
    collect_logs();
    rig.shutdown.abort();
    rig.webhook.await.unwrap();
    let logs = take_logs();
    assert!(logs.contains("closing idle connections"), "{logs}");
    assert!(!logs.contains(" WARN "), "{logs}");
}
