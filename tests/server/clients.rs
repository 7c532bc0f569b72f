//! Client certificates: only API servers may call.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use operating::server::Limits;
use operating::tls::client_authorities::ClientAuthorities;
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::rig::{Authority, Rig, Sender, call, pair, review, rig_for, text};

const NAME: &str = "kube-apiserver";

async fn rig(file: &Path) -> Rig {
    let clients = ClientAuthorities::from_file(file.to_owned(), vec![NAME.to_owned()]).unwrap();
    let period = Duration::from_millis(20);
    tokio::spawn(Arc::clone(&clients).reload_periodically(period, CancellationToken::new()));
    let rig = rig_for(Limits::default(), Some(clients)).await;
    rig.resolver
        .serve_pair(pair(&rig.authority), vec![rig.authority.der()]);
    rig
}

fn with(rig: &Rig, authority: &Authority, name: &str) -> ClientConfig {
    let mut config = rig.client_config(rustls::ALL_VERSIONS, &[b"http/1.1"]);
    let (leaf, key) = authority.client(name);
    let provider = operating::tls::crypto_provider();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![leaf], key);
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    config
}

/// The answer to a review over a connection with `config`, or the error of the handshake or the call.
async fn answer(rig: &Rig, config: ClientConfig) -> Result<(u16, String), String> {
    let mut sender = connect(rig, config).await?;
    answer_on(&mut sender).await
}

async fn connect(rig: &Rig, config: ClientConfig) -> Result<Sender, String> {
    let stream = rig.handshake(config).await.map_err(|e| e.to_string())?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection): (Sender, _) = shaken.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn answer_on(sender: &mut Sender) -> Result<(u16, String), String> {
    let sent = sender.send_request(call("/pods", review("allow"))).await;
    Ok(text(sent.map_err(|e| e.to_string())?).await)
}

/// Returns once the server accepts certificates of this authority.
async fn until_taken(rig: &Rig, authority: &Authority) {
    for _ in 0..500 {
        let answer = answer(rig, with(rig, authority, NAME)).await;
        if answer.is_ok_and(|(code, _)| code == 200) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the new authority is not taken");
}

#[tokio::test]
async fn caller_needs_certificate_of_the_authority_with_the_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let (ours, foreign) = (Authority::new(), Authority::new());
    fs::write(&file, ours.pem()).unwrap();
    let rig = rig(&file).await;

    let (code, body) = answer(&rig, with(&rig, &ours, NAME)).await.unwrap();
    assert_eq!(code, 200, "{body}");
    let nobody = rig.client_config(rustls::ALL_VERSIONS, &[b"http/1.1"]);
    for config in [nobody, with(&rig, &ours, "ann")] {
        let (code, body) = answer(&rig, config).await.unwrap();
        assert_eq!(code, 403);
        assert!(body.contains("--client-ca-file"), "{body}");
    }
    answer(&rig, with(&rig, &foreign, NAME)).await.unwrap_err();
    let series = r#"operating_reviews_total{route="/pods",verdict="unauthenticated",code="4xx"}"#;
    assert_eq!(rig.metric(series).await, 2.0);
}

#[tokio::test]
async fn body_of_an_unknown_caller_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    fs::write(&file, Authority::new().pem()).unwrap();
    let rig = rig(&file).await;
    let mut stream = rig.tls().await;
    let head = "POST /pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[tokio::test]
async fn authorities_are_exchanged_and_a_broken_file_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let (old, new) = (Authority::new(), Authority::new());
    fs::write(&file, old.pem()).unwrap();
    let rig = rig(&file).await;
    fs::write(&file, "nothing").unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let good = answer(&rig, with(&rig, &old, NAME)).await.unwrap();
    assert_eq!(good.0, 200);
    fs::write(&file, new.pem()).unwrap();
    until_taken(&rig, &new).await;
    answer(&rig, with(&rig, &old, NAME)).await.unwrap_err();
}

#[tokio::test]
async fn open_connection_is_refused_once_its_authority_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let (old, new) = (Authority::new(), Authority::new());
    fs::write(&file, old.pem()).unwrap();
    let rig = rig(&file).await;
    let mut open = connect(&rig, with(&rig, &old, NAME)).await.unwrap();
    assert_eq!(answer_on(&mut open).await.unwrap().0, 200);

    fs::write(&file, old.pem() + &new.pem()).unwrap();
    until_taken(&rig, &new).await;
    assert_eq!(answer_on(&mut open).await.unwrap().0, 200);

    // A third authority, which shows the test that the server has read the file.
    let third = Authority::new();
    fs::write(&file, new.pem() + &third.pem()).unwrap();
    until_taken(&rig, &third).await;
    let (code, body) = answer_on(&mut open).await.unwrap();
    assert_eq!(code, 403, "{body}");
    open.ready().await.unwrap_err();
}

#[test]
fn file_without_an_authority_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.crt");
    let error = |file: &Path| {
        format!(
            "{:#}",
            ClientAuthorities::from_file(file.to_owned(), Vec::new()).unwrap_err()
        )
    };
    assert!(error(&file).contains("ca.crt"), "{}", error(&file));
    fs::write(&file, "").unwrap();
    assert!(
        error(&file).contains("no PEM block CERTIFICATE"),
        "{}",
        error(&file)
    );
}
