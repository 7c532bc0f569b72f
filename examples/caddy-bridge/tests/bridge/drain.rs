//! Draining: requests that have begun end, and no new one arrives.

use testbed::wait;
use traffic::Presence;

use crate::site::{DRAINING, Mode, Server, Site, all};

in_both_modes!(
    drained_member_ends_its_requests_and_gets_no_new_ones,
    request_outlives_the_removal_of_its_member,
);

async fn drained_member_ends_its_requests_and_gets_no_new_ones(site: Site) {
    let (one, two) = (Server::start(51).await, Server::start(52).await);
    let leaving = std::slice::from_ref(&one.member);
    site.bridge.register(leaving).await;
    let slow = site.get("/slow");
    let story = async {
        wait::until("the request", async || one.slow_requests() == 1).await;
        site.bridge
            .register(std::slice::from_ref(&two.member))
            .await;
        all(&site.bridge.drain(leaving).await, &DRAINING);
        assert_eq!(site.answers(9).await, [(two.name.clone(), 9)].into());
        let connections = async || site.bridge.observe().await[0].connections;
        let counted = wait::value("a count", async || connections().await).await;
        assert_eq!(counted, 1);
        // The drain is repeated, as after a lost reply.
        all(&site.bridge.drain(leaving).await, &DRAINING);
        assert_eq!(connections().await, Some(1));
        one.slow.add_permits(1);
        wait::until("no request", async || connections().await == Some(0)).await;
        all(&site.bridge.deregister(leaving).await, &Presence::Absent);
    };
    let (answer, ()) = tokio::join!(slow, story);
    assert_eq!(answer.unwrap(), (200, one.name.clone()));
    assert_eq!(site.bridge.observe().await.len(), 1);
}

async fn request_outlives_the_removal_of_its_member(site: Site) {
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
    let site = Site::start(Mode::Config).await;
    let (one, two) = (Server::start(71).await, Server::start(72).await);
    site.bridge
        .register(&[one.member.clone(), two.member.clone()])
        .await;
    let requests = async {
        loop {
            if let Ok((status, text)) = site.get("/").await {
                assert_eq!(status, 200, "{text}");
            }
        }
    };
    tokio::select! {
        () = site.change_often(&one.member) => {}
        () = requests => {}
    }
}
