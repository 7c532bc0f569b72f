//! Draining: requests that have begun end, and no new one arrives.

use testbed::wait;
use traffic::Presence;

use crate::site::{Server, Site, all};

#[tokio::test]
async fn drained_member_ends_its_requests_and_gets_no_new_ones() {
    let site = Site::start().await;
    let (one, two) = (Server::start(51).await, Server::start(52).await);
    let leaving = std::slice::from_ref(&one.member);
    site.bridge.register(leaving).await;
    let slow = site.get("/slow");
    let story = async {
        wait::until("the request", async || one.slow_requests() == 1).await;
        site.bridge
            .register(std::slice::from_ref(&two.member))
            .await;
        all(
            &site.bridge.drain(leaving).await,
            &Presence::Draining { until: None },
        );
        assert_eq!(site.answers(6).await, [(two.name.clone(), 6)].into());
        let connections = async || site.bridge.observe().await[0].connections;
        let counted = wait::value("a count", async || connections().await).await;
        assert_eq!(counted, 1);
        // The drain is repeated, as after a lost reply.
        all(
            &site.bridge.drain(leaving).await,
            &Presence::Draining { until: None },
        );
        assert_eq!(connections().await, Some(1));
        one.slow.add_permits(1);
        wait::until("no request", async || connections().await == Some(0)).await;
        all(&site.bridge.deregister(leaving).await, &Presence::Absent);
    };
    let (answer, ()) = tokio::join!(slow, story);
    assert_eq!(answer.unwrap(), (200, one.name.clone()));
    assert_eq!(site.bridge.observe().await.len(), 1);
}

#[tokio::test]
async fn request_outlives_the_removal_of_its_member() {
    let site = Site::start().await;
    let one = Server::start(61).await;
    let leaving = std::slice::from_ref(&one.member);
    site.bridge.register(leaving).await;
    let story = async {
        wait::until("the request", async || one.slow_requests() == 1).await;
        all(&site.bridge.deregister(leaving).await, &Presence::Absent);
        assert_eq!(site.get("/").await.unwrap().0, 503);
        one.slow.add_permits(1);
    };
    let (answer, ()) = tokio::join!(site.get("/slow"), story);
    assert_eq!(answer.unwrap(), (200, one.name.clone()));
}

/// Caddy cuts a connection whose request it is just reading when its configuration changes. Therefore a client without
/// an answer asks again here.
#[tokio::test]
async fn no_request_is_answered_with_an_error_during_changes() {
    let site = Site::start().await;
    let (one, two) = (Server::start(71).await, Server::start(72).await);
    let changing = std::slice::from_ref(&one.member);
    site.bridge
        .register(&[one.member.clone(), two.member.clone()])
        .await;
    let changes = async {
        for _ in 0..10 {
            all(
                &site.bridge.drain(changing).await,
                &Presence::Draining { until: None },
            );
            all(&site.bridge.deregister(changing).await, &Presence::Absent);
            all(&site.bridge.register(changing).await, &Presence::Serving);
        }
    };
    let requests = async {
        loop {
            if let Ok((status, text)) = site.get("/").await {
                assert_eq!(status, 200, "{text}");
            }
        }
    };
    tokio::select! {
        () = changes => {}
        () = requests => {}
    }
}
