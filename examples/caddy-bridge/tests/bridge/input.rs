//! Calls that the bridge refuses.

use caddy_bridge::{Options, router};
use clap::Parser;
use serde_json::json;
use traffic::{Adapter, AdapterError, Changes};
use traffic_http::HttpAdapter;

use crate::site::{Bridge, Mode, Site, client, employer, member};

in_both_modes!(
    bad_input_is_refused_and_changes_nothing,
    service_without_frontend_has_no_members,
);

/// The status and the text of the answer to a call.
async fn post(bridge: &Bridge, call: &str, body: &str) -> (u16, String) {
    let url = format!("{}/v1/{call}", bridge.url);
    let answer = client()
        .post(url)
        .body(body.to_owned())
        .send()
        .await
        .unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn bad_input_is_refused_and_changes_nothing(site: Site) {
    let (status, text) = post(&site.bridge, "apply", "{\"register\": 1}").await;
    assert_eq!(status, 400);
    assert!(text.starts_with("{\"message\":\"the request: "), "{text}");
    assert_eq!(post(&site.bridge, "observe", "").await.0, 400);
    assert_eq!(post(&site.bridge, "delete", "{}").await.0, 404);

    let (mut unknown, mut quote, mut weight) = (member(1, 80), member(2, 80), member(3, 80));
    unknown.key.group = "admin".into();
    quote.pod.uid = "\"@id\"".into();
    weight.weight = 0;
    let good = member(4, 80);
    let register = vec![unknown.clone(), quote.clone(), weight.clone(), good.clone()];
    let applied = site
        .bridge
        .apply(Changes {
            register,
            ..Changes::default()
        })
        .await;
    for (wrong, expected) in [
        (unknown, "--frontend demo/web/admin=ADDRESS"),
        (quote, "`podUid`"),
        (weight, "`weight`"),
    ] {
        let Err(AdapterError::Permanent(text)) = &applied[&wrong.key] else {
            panic!("{applied:?}");
        };
        assert!(text.contains(expected), "{text}");
    }
    assert!(applied[&good.key].is_ok(), "the other changes are made");
    let found = site.bridge.observe().await;
    assert_eq!(found.iter().map(|r| &r.member).collect::<Vec<_>>(), [&good]);
}

async fn service_without_frontend_has_no_members(site: Site) {
    site.bridge.register(&[member(1, 80)]).await;
    let mut other = employer();
    other.namespace = "prod".into();
    let observed = site.bridge.adapter.observe(&other, &[]).await.unwrap();
    assert_eq!(observed.registrations, []);
    let deregister = vec![member(1, 80)];
    let changes = Changes {
        deregister,
        ..Changes::default()
    };
    site.bridge.adapter.apply(&other, &changes).await;
    assert_eq!(
        site.bridge.observe().await.len(),
        1,
        "the member of another Service"
    );
}

#[tokio::test]
async fn configuration_of_somebody_else_is_left_alone() {
    let site = Site::start(Mode::Config).await;
    site.bridge.register(&[member(1, 80)]).await;
    let server = "config/apps/http/servers/operating.demo.web.http";
    let path = format!(
        "{}/{server}/routes/1/handle/0/upstreams",
        site.caddy.admin()
    );
    let foreign = client()
        .patch(path)
        .header("content-type", "application/json");
    let answer = foreign
        .body("[{\"dial\": \"127.0.0.1:1\"}]")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    let observed = site.bridge.adapter.observe(&employer(), &[]).await.unwrap();
    assert_eq!(observed.registrations, []);
    let [(group, AdapterError::Permanent(text))] = &observed.unreadable_groups[..] else {
        panic!("{observed:?}");
    };
    assert!(group == "http" && text.contains("remove it"), "{text}");
    let applied = site.bridge.deregister(&[member(1, 80)]).await;
    assert!(applied.values().all(Result::is_err), "{applied:?}");
}

#[test]
fn key_that_can_be_guessed_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let key = file.path().to_str().unwrap();
    let args = ["bridge", "--frontend", "demo/web/http=:80"];
    let start = |content: &str| {
        std::fs::write(file.path(), content).unwrap();
        let args = args.into_iter().chain(["--hmac-key-file", key]);
        router(Options::try_parse_from(args).unwrap())
    };
    for short in ["", "fifteen-bytes-x\n"] {
        let error = start(short).unwrap_err().to_string();
        assert!(error.contains("less than 16 bytes"), "{error}");
    }
    assert!(start("sixteen-bytes-xx\n").is_ok());
}

#[tokio::test]
async fn unsigned_calls_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, wrong) = (dir.path().join("key"), dir.path().join("wrong"));
    std::fs::write(&file, "signing-key-of-the-test\n").unwrap();
    std::fs::write(&wrong, "another-signing-key\n").unwrap();
    let site = Site::start(Mode::Config).await;
    let flags = ["--hmac-key-file", file.to_str().unwrap()];
    let bridge = Bridge::start(&site.caddy, &flags).await;
    let with_key = |key| {
        let config = json!({"url": bridge.url, "hmacKeyFile": key});
        HttpAdapter::new(serde_json::from_value(config).unwrap()).unwrap()
    };
    with_key(&file).observe(&employer(), &[]).await.unwrap();
    for adapter in [&bridge.adapter, &with_key(&wrong)] {
        let error = adapter.observe(&employer(), &[]).await.unwrap_err();
        assert!(
            error.to_string().contains("401: the signature is missing"),
            "{error}"
        );
    }
}
