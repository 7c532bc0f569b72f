//! A Caddy with the module `operating_members`, whose members change without a new configuration.

use traffic::Presence;

use crate::site::{Mode, Server, Site, all, client, member};

#[tokio::test]
async fn all_requests_succeed_during_changes() {
    let site = Site::start(Mode::Module).await;
    let (one, two) = (Server::start(81).await, Server::start(82).await);
    site.bridge
        .register(&[one.member.clone(), two.member.clone()])
        .await;
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
        () = site.change_often(&one.member) => {}
        () = on_new_connections => {}
        () = on_one_connection => {}
    }
}

#[tokio::test]
async fn members_without_their_server_are_absent() {
    let site = Site::start(Mode::Module).await;
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
async fn module_refuses_what_it_cannot_read_or_what_is_outdated() {
    let site = Site::start(Mode::Module).await;
    site.bridge.register(&[member(131, 80)]).await;
    let url = format!("{}/operating/members", site.caddy.admin());
    for (version, body, status) in [("\"1\"", "{}", 412), ("\"1\"", "[]", 400)] {
        let request = client().post(&url).header("if-match", version).body(body);
        assert_eq!(request.send().await.unwrap().status(), status);
    }
    assert_eq!(site.bridge.observe().await.len(), 1);
}
