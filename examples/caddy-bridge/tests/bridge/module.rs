//! A Caddy with the module `operating_members`, whose members change without a new configuration.

use testbed::wait;
use traffic::{AdapterError, Presence};

use crate::site::{Bridge, Server, Site, all, client, member};

#[tokio::test]
async fn all_requests_succeed_during_changes() {
    let site = Site::with_module().await;
    let (one, two) = (Server::start(81).await, Server::start(82).await);
    let changing = std::slice::from_ref(&one.member);
    site.bridge
        .register(&[one.member.clone(), two.member.clone()])
        .await;
    let changes = async {
        for _ in 0..20 {
            all(
                &site.bridge.drain(changing).await,
                &Presence::Draining { until: None },
            );
            all(&site.bridge.deregister(changing).await, &Presence::Absent);
            all(&site.bridge.register(changing).await, &Presence::Serving);
        }
    };
    let on_new_connections = async {
        loop {
            assert_eq!(site.get("/").await.unwrap().0, 200);
        }
    };
    let on_one_connection = async {
        let _ = client();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{}/", site.front);
        loop {
            let answer = client.get(&url).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
        }
    };
    tokio::select! {
        () = changes => {}
        () = on_new_connections => {}
        () = on_one_connection => {}
    }
}

#[tokio::test]
async fn drained_member_ends_its_requests_and_gets_no_new_ones() {
    let site = Site::with_module().await;
    let (one, two) = (Server::start(91).await, Server::start(92).await);
    let leaving = std::slice::from_ref(&one.member);
    site.bridge.register(leaving).await;
    let story = async {
        wait::until("the request", async || one.slow_requests() == 1).await;
        site.bridge
            .register(std::slice::from_ref(&two.member))
            .await;
        all(
            &site.bridge.drain(leaving).await,
            &Presence::Draining { until: None },
        );
        assert_eq!(site.answers(9).await, [(two.name.clone(), 9)].into());
        let connections = async || site.bridge.observe().await[0].connections;
        let counted = wait::value("a count", async || connections().await).await;
        assert_eq!(counted, 1);
        one.slow.add_permits(1);
        wait::until("no request", async || connections().await == Some(0)).await;
        all(&site.bridge.deregister(leaving).await, &Presence::Absent);
    };
    let (answer, ()) = tokio::join!(site.get("/slow"), story);
    assert_eq!(answer.unwrap(), (200, one.name.clone()));
    assert_eq!(site.bridge.observe().await.len(), 1);
}

#[tokio::test]
async fn weights_share_the_requests_and_another_bridge_continues() {
    let mut site = Site::with_module().await;
    let (one, two) = (Server::start(101).await, Server::start(102).await);
    let mut heavy = one.member.clone();
    heavy.weight = 300;
    site.bridge
        .register(&[heavy.clone(), two.member.clone()])
        .await;
    // 25 expected of 100. The binomial distribution has less than 1 in 10^9 outside.
    let share = site.answers(100).await[&two.name];
    assert!((2..60).contains(&share), "{share}");

    site.bridge = Bridge::start(&site.caddy, &["--members-module"]).await;
    let found = site.bridge.observe().await;
    assert_eq!([&found[0].member, &found[1].member], [&heavy, &two.member]);
}

#[tokio::test]
async fn caddy_that_lost_its_members_has_none() {
    let mut site = Site::with_module().await;
    let one = Server::start(111).await;
    let members = std::slice::from_ref(&one.member);
    site.bridge.register(members).await;
    site.caddy.restart_empty().await.unwrap();
    assert_eq!(site.bridge.observe().await, []);
    all(&site.bridge.register(members).await, &Presence::Serving);
    assert_eq!(site.answers(1).await, [(one.name.clone(), 1)].into());
}

#[tokio::test]
async fn members_without_their_server_are_absent() {
    let site = Site::with_module().await;
    site.bridge.register(&[member(121, 80)]).await;
    assert_eq!(site.bridge.observe().await.len(), 1);
    let config = format!("{}/config/", site.caddy.admin());
    let answer = client()
        .post(config)
        .header("content-type", "application/json")
        .body("{}");
    assert_eq!(answer.send().await.unwrap().status(), 200);
    assert_eq!(site.bridge.observe().await, []);
    all(
        &site.bridge.register(&[member(121, 80)]).await,
        &Presence::Serving,
    );
    assert_eq!(site.bridge.observe().await.len(), 1);
}

#[tokio::test]
async fn wrong_member_is_refused_and_others_are_kept() {
    let site = Site::with_module().await;
    site.bridge.register(&[member(131, 80)]).await;
    let mut wrong = member(132, 80);
    wrong.weight = 0;
    let applied = site.bridge.register(std::slice::from_ref(&wrong)).await;
    assert!(matches!(
        applied[&wrong.key],
        Err(AdapterError::Permanent(_))
    ));
    let url = format!("{}/operating/members", site.caddy.admin());
    for (version, body, status) in [("\"1\"", "{}", 412), ("\"1\"", "[]", 400)] {
        let request = client().post(&url).header("if-match", version).body(body);
        assert_eq!(request.send().await.unwrap().status(), status);
    }
    assert_eq!(site.bridge.observe().await.len(), 1);
}
