//! Verdicts and answer codes over both protocols and both TLS versions.

use http::{Request, header};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use operating::server::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::rig::{call, review, rig, text, verdict};

#[tokio::test]
async fn verdicts_over_http_1_and_2() {
    let rig = rig(Limits::default()).await;
    let denied = json!({
        "uid": "uid-deny-1", "allowed": false, "auditAnnotations": {"rule": "r"},
        "status": {"metadata": {}, "status": "Failure", "code": 429, "reason": "TooManyRequests",
                   "message": "3 of 3 in use"},
    });
    assert_eq!(
        rig.review("allow-1").await,
        json!({"uid": "uid-allow-1", "allowed": true})
    );
    assert_eq!(rig.review("deny-1").await, denied);

    let stream = rig
        .handshake(rig.client_config(rustls::ALL_VERSIONS, &[b"h2", b"http/1.1"]))
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = call("https://localhost/pods?timeout=5s", review("deny-1"));
    assert_eq!(
        verdict(sender.send_request(request).await.unwrap()).await,
        denied
    );

    let series = r#"operating_reviews_total{route="/pods",verdict="denied",code="4xx"}"#;
    assert_eq!(rig.metric(series).await, 2.0);
    let series = r#"operating_reviews_total{route="/pods",verdict="allowed",code="2xx"}"#;
    assert_eq!(rig.metric(series).await, 1.0);
    assert_eq!(
        rig.metric(r#"operating_review_duration_seconds_count{route="/pods"}"#)
            .await,
        3.0
    );
    assert_eq!(rig.metric("operating_reviews_in_flight").await, 0.0);
}

#[tokio::test]
async fn unknown_paths_and_methods_get_404_and_405() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    let (code, body) = text(sender.send_request(call("/nothing", "{}")).await.unwrap()).await;
    assert_eq!(code, 404);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap()["message"],
        "no webhook has this path"
    );

    let get = Request::get("/pods")
        .header(header::HOST, "localhost")
        .body(Full::default())
        .unwrap();
    let response = sender.send_request(get).await.unwrap();
    assert_eq!(response.headers()[header::ALLOW], "POST");
    let (code, body) = text(response).await;
    assert_eq!(code, 405);
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap()["reason"],
        "MethodNotAllowed"
    );

    let mut xml = call("/pods", "<a/>");
    xml.headers_mut()
        .insert(header::CONTENT_TYPE, "text/xml".parse().unwrap());
    assert_eq!(text(sender.send_request(xml).await.unwrap()).await.0, 415);
    let mut json = call("/pods", review("allow"));
    json.headers_mut().insert(
        header::CONTENT_TYPE,
        "application/json; charset=utf-8".parse().unwrap(),
    );
    assert_eq!(text(sender.send_request(json).await.unwrap()).await.0, 200);
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_spoken() {
    let rig = rig(Limits::default()).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let stream = rig
            .handshake(rig.client_config(&[version], &[b"http/1.1"]))
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
    }
}

#[tokio::test]
async fn tls_1_1_is_refused() {
    let rig = rig(Limits::default()).await;
    let mut hello = vec![3, 2];
    hello.extend([7; 32]); // random
    hello.extend([0, 0, 2, 0xc0, 0x13, 1, 0]); // no session, one cipher suite, no compression
    hello.extend([0, 8, 0, 13, 0, 4, 0, 2, 4, 3]); // signature algorithm ECDSA P-256 with SHA-256
    let length = u8::try_from(hello.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let fatal_protocol_version = [21, 3, 3, 0, 2, 2, 70];
    assert_eq!(answer, fatal_protocol_version);
    assert_eq!(
        rig.metric("operating_tls_handshakes_failed_total").await,
        1.0
    );
}
