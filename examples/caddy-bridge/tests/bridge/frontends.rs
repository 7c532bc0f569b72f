//! A bridge that was started with other frontends than the bridge before it: what still serves is never called absent.

use traffic::{Adapter, AdapterError, Applied, Presence};

use crate::site::{Bridge, Mode, Server, Site, all, employer, member};

in_both_modes!(
    group_that_lost_its_frontend_is_not_released,
    empty_group_without_frontend_is_absent,
);

/// The only group that can't be read, and why. Nothing is read of other groups.
async fn unreadable(bridge: &Bridge) -> (String, String) {
    let observed = bridge.adapter.observe(&employer(), &[]).await.unwrap();
    assert_eq!(observed.registrations, []);
    let [(group, AdapterError::Permanent(text))] = &observed.unreadable_groups[..] else {
        panic!("{observed:?}");
    };
    (group.clone(), text.clone())
}

fn all_refused(applied: &Applied, expected: &str) {
    assert!(!applied.is_empty());
    for result in applied.values() {
        let Err(AdapterError::Permanent(text)) = result else {
            panic!("{result:?}");
        };
        assert!(text.contains(expected), "{text}");
    }
}

async fn group_that_lost_its_frontend_is_not_released(site: Site) {
    let one = Server::start(141).await;
    let members = std::slice::from_ref(&one.member);
    site.bridge.register(members).await;
    // Another group of the Service, and another Service.
    for group in ["demo/web/web", "demo/other/http"] {
        let other = site.bridge_of(group).await;
        let (group, text) = unreadable(&other).await;
        let remedy = "--frontend demo/web/http=ADDRESS";
        assert!(group == "http" && text.contains(remedy), "{group}: {text}");
        all_refused(&other.drain(members).await, remedy);
        all_refused(&other.deregister(members).await, remedy);
        all_refused(&other.register(members).await, remedy);
    }
    assert_eq!(site.answers(2).await, [(one.name.clone(), 2)].into());

    let restarted = site.another_bridge().await;
    assert_eq!(restarted.observe().await[0].member, one.member);
    all(&restarted.deregister(members).await, &Presence::Absent);
}

async fn empty_group_without_frontend_is_absent(site: Site) {
    let members = [member(151, 80)];
    site.bridge.register(&members).await;
    site.bridge.deregister(&members).await;
    let other = site.bridge_of("demo/web/web").await;
    assert_eq!(other.observe().await, []);
    all(&other.drain(&members).await, &Presence::Absent);
    all(&other.deregister(&members).await, &Presence::Absent);
}

/// Members stay in Caddy's configuration if the bridge is started again with `--members-module`.
#[tokio::test]
async fn members_outside_the_module_are_not_released() {
    let site = Site::start(Mode::Config).await;
    let one = Server::start(161).await;
    let members = std::slice::from_ref(&one.member);
    site.bridge.register(members).await;
    for group in ["demo/web/http", "demo/web/web"] {
        let other = Bridge::of(&site.caddy, group, &["--members-module"]).await;
        let (group, _) = unreadable(&other).await;
        assert_eq!(group, "http");
        all_refused(&other.drain(members).await, "operating.demo.web.http");
        all_refused(&other.deregister(members).await, "operating.demo.web.http");
        all_refused(&other.register(members).await, "operating.demo.web.http");
    }
    assert_eq!(site.answers(2).await, [(one.name.clone(), 2)].into());
}

/// The other way around.
#[tokio::test]
async fn members_of_the_module_are_not_released() {
    let site = Site::start(Mode::Module).await;
    let one = Server::start(171).await;
    let members = std::slice::from_ref(&one.member);
    site.bridge.register(members).await;
    for group in ["demo/web/http", "demo/web/web"] {
        let other = Bridge::of(&site.caddy, group, &[]).await;
        let (group, _) = unreadable(&other).await;
        assert_eq!(group, "http");
        all_refused(&other.deregister(members).await, "operating.demo.web.http");
    }
    assert_eq!(site.answers(2).await, [(one.name.clone(), 2)].into());
}

/// A Service has nothing to do with the members of an object of another kind.
#[tokio::test]
async fn employer_of_another_kind_has_no_members() {
    let site = Site::start(Mode::Config).await;
    site.bridge.register(&[member(181, 80)]).await;
    let mut route = employer();
    route.kind = "Route".into();
    let observed = site.bridge.adapter.observe(&route, &[]).await.unwrap();
    assert_eq!(observed.registrations, []);
    assert_eq!(observed.unreadable_groups, []);
}

/// A Caddy that answers, but lacks the module.
#[tokio::test]
async fn missing_module_is_named() {
    let router = axum::Router::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = format!("http://{}", listener.local_addr().unwrap());
    let serve = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let bridge = Bridge::at(&admin, "demo/web/http=:80", &["--members-module"]).await;
    let error = bridge.adapter.observe(&employer(), &[]).await.unwrap_err();
    serve.abort();
    let AdapterError::Transient(text) = &error else {
        panic!("{error:?}");
    };
    assert!(text.contains("without `--members-module`"), "{text}");
}
