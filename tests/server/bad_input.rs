//! Bodies that are no review, too large or too slow; and which part of a body the logs contain.

use std::time::Duration;

use operating::server::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::logs::{collect_logs, take_logs};
use super::rig::{Rig, call, review, rig, text, verdict};

async fn post(rig: &Rig, body: impl ToString) -> (u16, Value) {
    let (code, body) = text(
        rig.h1()
            .await
            .send_request(call("/pods", body))
            .await
            .unwrap(),
    )
    .await;
    (code, serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn body_that_is_not_json_gets_400() {
    let rig = rig(Limits::default()).await;
    for body in ["", "hello", "[]", "{\"request\":"] {
        let (code, status) = post(&rig, body).await;
        assert_eq!(code, 400, "{body}");
        assert_eq!(status["kind"], "Status");
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .starts_with("malformed AdmissionReview: the body"),
            "{status}"
        );
    }
}

#[tokio::test]
async fn another_version_is_denied_under_its_uid() {
    let rig = rig(Limits::default()).await;
    let mut old = review("allow");
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let answer = verdict(
        rig.h1()
            .await
            .send_request(call("/pods", old))
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(answer["uid"], "uid-allow");
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["status"]["code"], 400);
    let message = "malformed AdmissionReview: apiVersion: must be admission.k8s.io/v1";
    assert_eq!(answer["status"]["message"], message);
}

#[tokio::test]
async fn truncated_body_is_denied_under_its_uid() {
    let rig = rig(Limits::default()).await;
    let whole = review("allow").to_string();
    let answer = verdict(
        rig.h1()
            .await
            .send_request(call("/pods", &whole[..whole.len() - 9]))
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        (&answer["uid"], &answer["status"]["code"]),
        (&json!("uid-allow"), &json!(400))
    );
}

#[tokio::test]
async fn oversized_body_gets_a_complete_response() {
    let rig = rig(Limits::default()).await;
    let mut huge = review("allow");
    huge["request"]["object"] = json!({"data": "x".repeat(9 << 20)});
    let (code, status) = post(&rig, huge).await;
    assert_eq!(code, 413);
    assert_eq!(
        status["message"],
        "the review is larger than 8388608 bytes, the limit of --max-review-bytes"
    );
    let series = r#"operating_reviews_total{route="/pods",verdict="oversized",code="4xx"}"#;
    assert_eq!(rig.metric(series).await, 1.0);
}

fn impatient() -> Limits {
    let short = Duration::from_millis(50);
    Limits {
        handshake: short,
        unproven_idle: short,
        unproven_calm: 0,
        body: short,
        ..Limits::default()
    }
}

#[tokio::test]
async fn client_without_tls_handshake_is_disconnected() {
    let rig = rig(impatient()).await;
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 0);
    assert_eq!(
        rig.metric("operating_tls_handshakes_failed_total").await,
        1.0
    );
}

#[tokio::test]
async fn client_with_endless_head_is_disconnected() {
    let rig = rig(impatient()).await;
    let mut stream = rig.tls().await;
    stream
        .write_all(b"POST /pods HTTP/1.1\r\nHost: local")
        .await
        .unwrap();
    let mut answer = Vec::new();
    // The connection may end without a TLS close_notify; only its end counts.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty());
}

#[tokio::test]
async fn client_that_never_ends_its_body_gets_408() {
    let rig = rig(impatient()).await;
    let mut stream = rig.tls().await;
    let head = "POST /pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"request\":";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(
        answer.contains("the body did not arrive in time"),
        "{answer}"
    );
}

#[tokio::test]
async fn log_has_a_line_per_denial_and_no_body() {
    collect_logs();
    let rig = rig(Limits::default()).await;
    rig.review("allow-1").await;
    rig.review("deny-1").await;
    rig.review("panic-1").await;
    let mut bad = review("allow");
    bad["request"]["dryRun"] = json!("s3cret");
    bad["request"]["operation"] = json!("s3cret\nlevel=forged");
    post(&rig, bad).await;
    post(&rig, "{\"s3cret\": s3cret").await;

    let logs = take_logs();
    assert!(!logs.contains("s3cret"), "{logs}");
    assert!(!logs.contains("allow-1"), "{logs}");
    let denials: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains(" denied "))
        .collect();
    let [denied, panicked] = denials[..] else {
        panic!("{logs}")
    };
    for part in [
        r#"object="shop/deny-1""#,
        r#"operation="DELETE""#,
        r#"user="ann""#,
        "code=429",
        r#"reason="TooManyRequests""#,
        r#"why="3 of 3 in use""#,
    ] {
        assert!(denied.contains(part), "{part} in {denied}");
    }
    assert!(panicked.contains("internal error"), "{panicked}");
    assert_eq!(
        logs.lines()
            .filter(|line| line.contains("no review: malformed"))
            .count(),
        2,
        "{logs}"
    );
}
