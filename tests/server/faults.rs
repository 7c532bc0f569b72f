//! Panics, deadlines and overload: each review gets an answer, and requests that no rule covers pass.

use operating::server::Limits;
use serde_json::json;

use super::rig::{call, review, rig, verdict};

#[tokio::test]
async fn panic_answers_its_review_and_kills_nothing() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    let mut ask = async |name: &str| {
        let answer = sender.send_request(call("/pods", review(name))).await;
        verdict(answer.unwrap()).await
    };
    let denied = ask("panic-1").await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(
        denied["status"]["message"],
        "the review ended in an internal error"
    );
    let free = ask("panic-free").await;
    assert_eq!(free, json!({"uid": "uid-panic-free", "allowed": true}));
    let twice = ask("panic-badly").await;
    assert_eq!(twice["status"]["code"], 500);
    assert_eq!(
        twice["status"]["message"],
        "the review ended in an internal error; try again"
    );
    // The same connection goes on.
    let next = ask("allow").await;
    assert_eq!(next["allowed"], true);
    assert_eq!(
        rig.metric(r#"operating_review_panics_total{route="/pods"}"#)
            .await,
        4.0
    );
}

#[tokio::test]
async fn deadline_of_api_server_is_kept() {
    let rig = rig(Limits::default()).await;
    let mut sender = rig.h1().await;
    let late = sender
        .send_request(call("/pods?timeout=50ms", review("hang-1")))
        .await
        .unwrap();
    let late = verdict(late).await;
    assert_eq!(late["uid"], "uid-hang-1");
    assert_eq!(
        late["status"]["message"],
        "the decision was not ready before the API server's deadline"
    );
    let free = sender
        .send_request(call("/pods?timeout=50ms", review("hang-free")))
        .await
        .unwrap();
    assert_eq!(verdict(free).await["allowed"], true);
    assert_eq!(
        rig.metric(r#"operating_reviews_late_total{route="/pods"}"#)
            .await,
        2.0
    );
    assert_eq!(rig.metric("operating_reviews_in_flight").await, 0.0);
}

#[tokio::test]
async fn overload_is_shed_and_passes() {
    let rig = rig(Limits {
        reviews: 1,
        ..Limits::default()
    })
    .await;
    let mut first = rig.h1().await;
    let hanging = tokio::spawn(first.send_request(call("/pods?timeout=30s", review("hang-1"))));
    rig.handler.entered.notified().await;
    assert_eq!(rig.metric("operating_reviews_in_flight").await, 1.0);

    let shed = rig.review("allow-1").await;
    assert_eq!(shed["allowed"], false);
    assert_eq!(
        shed["status"]["message"],
        "the admission server is overloaded"
    );
    assert_eq!(rig.review("allow-free").await["allowed"], true);
    assert_eq!(
        rig.metric(r#"operating_reviews_shed_total{route="/pods"}"#)
            .await,
        2.0
    );

    rig.handler.release.notify_one();
    assert_eq!(
        verdict(hanging.await.unwrap().unwrap()).await["allowed"],
        true
    );
    assert_eq!(rig.review("allow-1").await["allowed"], true);
}

#[tokio::test]
async fn caller_that_hangs_up_frees_its_place() {
    let rig = rig(Limits {
        reviews: 1,
        ..Limits::default()
    })
    .await;
    let mut first = rig.h1().await;
    let hanging = tokio::spawn(async move {
        first
            .send_request(call("/pods?timeout=30s", review("hang-1")))
            .await
    });
    rig.handler.entered.notified().await;
    hanging.abort();
    while rig.review("allow-1").await["allowed"] != true {}
    assert_eq!(rig.metric("operating_reviews_in_flight").await, 0.0);
}

#[tokio::test]
async fn beyond_the_cap_an_answer_ends_its_connection() {
    let rig = rig(Limits {
        connections: 1,
        ..Limits::default()
    })
    .await;
    let (mut first, mut second) = (rig.h1().await, rig.h1().await);
    for (sender, closes) in [(&mut first, false), (&mut second, true)] {
        let request = call("/pods", review("allow"));
        let answer = sender.send_request(request).await.unwrap();
        let close = answer.headers().get(http::header::CONNECTION);
        assert_eq!(close.is_some_and(|value| value == "close"), closes);
        assert_eq!(verdict(answer).await["allowed"], true);
    }
    let series = r#"operating_connections_shed_total{listener="webhook",reason="full"}"#;
    assert_eq!(rig.metric(series).await, 1.0);
    let request = call("/pods", review("allow"));
    let answer = first.send_request(request).await.unwrap();
    assert_eq!(verdict(answer).await["allowed"], true);
}
