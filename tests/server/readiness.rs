//! `/readyz` reports the state of the webhook listener.

use operating::server::Limits;
use operating::tasks::Supervisor;
use operating::tls::{CertificatePair, CertificateResolver};
use tokio_util::sync::CancellationToken;

use super::rig::{Authority, Rig, pair, rig, rig_without_certificate};

async fn unready(rig: &Rig, why: &str) {
    let (code, text) = rig.probe("/readyz").await;
    assert_eq!(code, 503, "{text}");
    assert!(
        text.contains(why) && text.ends_with("not ready\n"),
        "{text}"
    );
}

#[tokio::test]
async fn ready_only_with_a_good_certificate() {
    let rig = rig_without_certificate(Limits::default()).await;
    unready(&rig, "[-] webhook listener: no certificate yet").await;

    rig.resolver
        .serve_pair(pair(&rig.authority), vec![rig.authority.der()]);
    let (code, text) = rig.probe("/readyz").await;
    assert_eq!(code, 200, "{text}");
    assert!(
        text.starts_with("[+] webhook listener: answers, certificate valid until "),
        "{text}"
    );

    rig.resolver
        .serve_pair(pair(&rig.authority), vec![Authority::new().der()]);
    unready(&rig, "invalid peer certificate").await;

    let (chain, key) = rig.authority.leaf(0);
    rig.resolver.serve_pair(
        CertificatePair::from_pem(chain.as_bytes(), key.as_bytes()).unwrap(),
        Vec::new(),
    );
    unready(&rig, "Expired").await;
    assert_eq!(rig.probe("/livez").await, (200, "alive\n".to_owned()));
}

#[tokio::test]
async fn fault_of_a_task_fails_livez() {
    let rig = rig(Limits::default()).await;
    let supervisor = Supervisor::new(CancellationToken::new());
    let watched = supervisor.clone();
    let why = move || watched.fault().map(|fault| fault.to_string());
    rig.health.add_liveness_check(why);
    assert_eq!(rig.probe("/livez").await, (200, "alive\n".to_owned()));

    supervisor.spawn_supervised("a watch", async { panic!("as asked") });
    supervisor.wait_for_fault().await;
    let text = "[-] a watch panicked: as asked\nnot alive\n".to_owned();
    assert_eq!(rig.probe("/livez").await, (500, text));
}

#[tokio::test]
async fn another_certificate_than_the_loaded_one_is_noticed() {
    let rig = rig(Limits::default()).await;
    let other = CertificateResolver::new(rig.metrics.clone());
    other.serve_pair(pair(&rig.authority), Vec::new());
    let error = operating::server::self_check::check_served_certificate(
        rig.address,
        other,
        Default::default(),
    )
    .await
    .unwrap_err();
    assert!(
        error.contains("another certificate is served than was loaded"),
        "{error}"
    );
}

#[tokio::test]
async fn not_ready_once_the_listener_is_gone() {
    let rig = rig(Limits::default()).await;
    assert_eq!(rig.probe("/readyz").await.0, 200);
    rig.webhook.abort();
    while rig.health.run_checks().await.ready {}
    unready(&rig, "[-] webhook listener: 127.0.0.1:").await;
}

#[tokio::test]
async fn metrics_are_openmetrics() {
    let rig = rig(Limits::default()).await;
    let (code, text) = rig.probe("/metrics").await;
    assert_eq!(code, 200);
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(!text.contains("shop"), "{text}");
    assert_eq!(rig.probe("/nothing").await.0, 404);
}
