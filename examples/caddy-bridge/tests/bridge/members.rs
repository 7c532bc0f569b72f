//! Members of a real Caddy.

use serde_json::{Value, json};
use testbed::wait;
use traffic::{Adapter, AdapterError, Presence};

use crate::site::{DRAINING, Mode, Server, Site, all, client, employer};

in_both_modes!(
    registered_members_get_requests_and_others_do_not,
    weights_share_the_requests,
    another_instance_of_the_bridge_continues,
    caddy_that_lost_its_members_has_none,
);

async fn registered_members_get_requests_and_others_do_not(site: Site) {
    let (one, two) = (Server::start(1).await, Server::start(2).await);
    let members = [one.member.clone(), two.member.clone()];
    all(&site.bridge.register(&members).await, &Presence::Serving);
    // In the module, each request has a member by chance.
    assert_eq!(site.answers(40).await.len(), 2);

    let found = site.bridge.observe().await;
    let observed: Vec<_> = found.iter().map(|r| r.member.clone()).collect();
    assert_eq!(observed, members);
    assert!(found.iter().all(|r| r.presence == Presence::Serving));

    all(
        &site.bridge.deregister(&members[..1]).await,
        &Presence::Absent,
    );
    assert_eq!(site.answers(4).await, [(two.name.clone(), 4)].into());
    all(&site.bridge.deregister(&members).await, &Presence::Absent);
    assert_eq!(site.get("/").await.unwrap().0, 503);
    assert_eq!(site.bridge.observe().await, []);
}

async fn weights_share_the_requests(site: Site) {
    let (one, two) = (Server::start(11).await, Server::start(12).await);
    let mut heavy = one.member.clone();
    heavy.weight = 300;
    site.bridge
        .register(&[heavy.clone(), two.member.clone()])
        .await;
    // 25 are expected of 100. By chance, less than 1 in 10^9 are outside.
    let share = site.answers(100).await[&two.name];
    assert!((2..60).contains(&share), "{share}");
    assert_eq!(site.bridge.observe().await[0].member, heavy);
}

async fn another_instance_of_the_bridge_continues(site: Site) {
    let (one, two) = (Server::start(21).await, Server::start(22).await);
    site.bridge
        .register(&[one.member.clone(), two.member.clone()])
        .await;
    site.bridge.drain(std::slice::from_ref(&one.member)).await;
    let other = site.another_bridge().await;
    let found = other.observe().await;
    assert_eq!(found[0].member, one.member);
    assert_eq!(found[0].presence, DRAINING);
    assert_eq!(
        (&found[1].member, &found[1].presence),
        (&two.member, &Presence::Serving)
    );
    all(
        &other.register(std::slice::from_ref(&one.member)).await,
        &Presence::Serving,
    );
    assert_eq!(site.answers(40).await.len(), 2);
}

async fn caddy_that_lost_its_members_has_none(mut site: Site) {
    let one = Server::start(31).await;
    site.bridge
        .register(std::slice::from_ref(&one.member))
        .await;
    site.caddy.stop();
    let error = site
        .bridge
        .adapter
        .observe(&employer(), &[])
        .await
        .unwrap_err();
    let says_why = |error: &AdapterError| matches!(error, AdapterError::Transient(text) if text.contains("503: no answer of Caddy"));
    assert!(says_why(&error), "{error:?}");
    let failed = site
        .bridge
        .deregister(std::slice::from_ref(&one.member))
        .await;
    assert!(!failed.is_empty());
    for result in failed.values() {
        let error = result
            .as_ref()
            .expect_err("nothing is absent because Caddy does not answer");
        assert!(says_why(error), "{error:?}");
    }

    site.caddy.restart_empty().await.unwrap();
    assert_eq!(site.bridge.observe().await, []);
    all(
        &site
            .bridge
            .register(std::slice::from_ref(&one.member))
            .await,
        &Presence::Serving,
    );
    assert_eq!(site.answers(1).await, [(one.name.clone(), 1)].into());
}

#[tokio::test]
async fn changes_of_others_are_kept() {
    let site = Site::start(Mode::Config).await;
    let (_, address) = site.caddy.fronts().nth(1).unwrap();
    let client = client();
    let config = format!("{}/config/", site.caddy.admin());
    let other = json!({
        "listen": [address],
        "routes": [{"handle": [{"handler": "static_response", "body": "0"}]}],
    });
    let whole = json!({"apps": {"http": {"servers": {"other": other}}}});
    let send = async |request: reqwest::RequestBuilder, body: Value| {
        let request = request
            .header("content-type", "application/json")
            .body(body.to_string());
        // Caddy drops new connections of its admin API for a moment when its configuration changes.
        let answer = wait::value("an answer", async || {
            request.try_clone().unwrap().send().await.ok()
        });
        let answer = answer.await;
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    };
    send(client.post(&config), whole).await;
    let body = format!("{config}apps/http/servers/other/routes/0/handle/0/body");
    let changes = async {
        for number in 1..=20 {
            send(client.patch(&body), json!(number.to_string())).await;
        }
    };
    let server = Server::start(41).await;
    let members = async {
        for _ in 0..10 {
            site.bridge
                .register(std::slice::from_ref(&server.member))
                .await;
            site.bridge
                .deregister(std::slice::from_ref(&server.member))
                .await;
        }
        site.bridge
            .register(std::slice::from_ref(&server.member))
            .await
    };
    let (_, last) = tokio::join!(changes, members);
    all(&last, &Presence::Serving);
    let kept = client
        .get(&body)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(kept.trim(), "\"20\"");
    assert_eq!(site.bridge.observe().await.len(), 1);
}
