//! Failures of calls.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use traffic::{Adapter, AdapterError};
use traffic_http::HttpAdapter;

use crate::double::{Double, Reply, changes, employer};

fn redirect(to: &Double) -> Reply {
    let target = format!("http://127.0.0.1:{}/v1/observe", to.port);
    Reply::Answer(307, vec![("location", target)], String::new())
}

async fn observe_error(reply: Reply, fields: Value) -> AdapterError {
    let double = Double::start().await;
    double.reply(reply);
    let observed = double.adapter(fields).observe(&employer(), &[]).await;
    assert_eq!(double.asked().len(), 1, "no call is repeated");
    observed.unwrap_err()
}

#[tokio::test]
async fn answers_that_cannot_be_read_name_the_place() {
    let wrong = json!({"members": [
        {"group": "g", "address": "10.0.0.300", "port": 1, "weight": 1, "presence": "Serving"},
    ]});
    let cases = [
        (Reply::status(200, "<html>"), "can't be read"),
        (Reply::status(200, ""), "can't be read"),
        (Reply::json(&json!({})), "missing field `members`"),
        (Reply::json(&wrong), "members[0].address"),
        (
            Reply::status(200, "{\"members\": []} {\"message\": \"down\"}"),
            "trailing characters",
        ),
        (
            Reply::status(200, "{\"members\": [], \"members\": []}"),
            "duplicate field",
        ),
    ];
    for (reply, expected) in cases {
        let AdapterError::Transient(text) = observe_error(reply, json!({})).await else {
            panic!("another kind of error");
        };
        assert!(text.contains(expected), "{text}");
    }
}

/// A member with this value of a field, which may be no JSON.
fn with_field(field: &str, value: &str) -> String {
    let fields = [
        ("group", "\"g\""),
        ("address", "\"10.0.0.1\""),
        ("port", "1"),
        ("weight", "1"),
        ("presence", "\"Draining\""),
        ("podUid", "\"u\""),
        ("podName", "\"p\""),
        ("connections", "0"),
        ("drainUntil", "\"2026-01-02T03:04:05Z\""),
        ("more", "0"),
    ];
    let fields = fields.map(|(name, usual)| {
        let value = if name == field { value } else { usual };
        format!("\"{name}\": {value}")
    });
    format!("{{\"members\": [{{{}}}]}}", fields.join(", "))
}

#[tokio::test]
async fn hostile_values_make_the_answer_unreadable() {
    let long = format!("\"{}\"", "g".repeat(254));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (field, value) in [
        ("weight", "-1"),
        ("weight", "4294967296"),
        ("port", "65536"),
        ("connections", "-1"),
        ("connections", "NaN"),
        ("connections", "1e400"),
        ("drainUntil", "\"99999-01-01T00:00:00Z\""),
        ("drainUntil", "\"soon\""),
        ("address", "\"lb.example\""),
        ("group", deep.as_str()),
        ("group", long.as_str()),
        ("group", "\"a\\u202eb\""),
        ("podUid", "\"a\\nb\""),
        ("podName", "\"\\u001b[2J\""),
    ] {
        let reply = Reply::status(200, &with_field(field, value));
        let error = observe_error(reply, json!({})).await;
        assert!(matches!(error, AdapterError::Transient(_)), "{field}");
        let text = error.to_string();
        assert!(text.contains(&format!("members[0].{field}")), "{text}");
        assert!(text.len() < 400, "{text}");
    }
}

#[tokio::test]
async fn unusual_values_are_read() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (field, value) in [
        ("more", deep.as_str()),
        ("weight", "4294967295"),
        ("connections", "18446744073709551615"),
        ("drainUntil", "\"9999-12-30T00:00:00Z\""),
        ("drainUntil", "\"-009999-01-03T00:00:00Z\""),
    ] {
        let double = Double::start().await;
        double.reply(Reply::status(200, &with_field(field, value)));
        let observed = double.adapter(json!({})).observe(&employer(), &[]).await;
        let observed = observed.unwrap();
        assert_eq!(observed.registrations.len(), 1, "{field}");
    }
}

/// An endpoint that sends a byte of its answer now and then, and never ends.
#[tokio::test]
async fn slow_answer_ends_with_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let drip = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            stream.read_buf(&mut request).await.unwrap();
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let config = json!({ "url": url, "timeoutSeconds": 1 });
    let adapter = HttpAdapter::new(serde_json::from_value(config).unwrap()).unwrap();
    let service = employer();
    // The endpoint stops when the adapter has closed the connection.
    let ((), observed) = tokio::join!(drip, adapter.observe(&service, &[]));
    let text = "no complete answer within 1 s".to_owned();
    assert_eq!(observed, Err(AdapterError::Transient(text)));
}

#[tokio::test]
async fn member_listed_twice_makes_the_answer_unreadable() {
    let member =
        json!({"group": "g", "address": "10.0.0.1", "port": 1, "weight": 1, "presence": "Serving"});
    let reply = Reply::json(&json!({"members": [member, member]}));
    let error = observe_error(reply, json!({})).await;
    assert!(error.to_string().contains("g/10.0.0.1:1 twice"), "{error}");
}

#[tokio::test]
async fn answer_longer_than_the_limit_is_not_kept() {
    let reply = Reply::status(200, &" ".repeat(1024 * 1024 + 1));
    let error = observe_error(reply, json!({})).await;
    assert!(
        matches!(&error, AdapterError::Transient(text) if text.contains("longer than 1 MiB")),
        "{error}"
    );
}

/// The number that the documentation names.
#[tokio::test]
async fn answer_with_4500_members_is_read() {
    let member = |number: u32| {
        json!({
            "group": "http", "address": std::net::Ipv4Addr::from(0x0af4_0000 + number), "port": 8080,
            "weight": 100, "podUid": "7f9c24e8-3b12-4a8e-9a37-0d6d1c2b3a4f",
            "podName": format!("web-frontend-production-7d4b9c6f58-{number:05}"),
            "presence": "Draining", "connections": 1000,
        })
    };
    let members: Vec<_> = (0..4500).map(member).collect();
    let double = Double::start().await;
    double.reply(Reply::json(&json!({ "members": members })));
    let observed = double.adapter(json!({})).observe(&employer(), &[]).await;
    assert_eq!(observed.unwrap().registrations.len(), 4500);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let other = Double::start().await;
    let error = observe_error(redirect(&other), json!({})).await;
    assert!(matches!(error, AdapterError::Permanent(_)), "{error}");
    assert!(error.to_string().contains("set `url`"), "{error}");
    assert!(other.asked().is_empty());
}

#[tokio::test]
async fn proxy_of_the_environment_is_ignored() {
    // The variable is set for a child that runs the next test alone.
    let test = std::env::current_exe().unwrap();
    let status = std::process::Command::new(test)
        .args(["--exact", "faults::throttling_is_told_with_its_wait"])
        .env("http_proxy", "http://127.0.0.1:9")
        .env("ALL_PROXY", "http://127.0.0.1:9")
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[tokio::test]
async fn throttling_is_told_with_its_wait() {
    let reply = Reply::Answer(429, vec![("retry-after", "3".to_owned())], String::new());
    let error = AdapterError::Throttled {
        text: "the endpoint answered 429".to_owned(),
        wait: Some(Duration::from_secs(3)),
    };
    assert_eq!(observe_error(reply.clone(), json!({})).await, error);
    let double = Double::start().await;
    double.reply(reply);
    let changes = changes();
    let applied = double.adapter(json!({})).apply(&employer(), &changes).await;
    assert_eq!(applied, changes.all_failed(&error));
}

#[tokio::test]
async fn refusal_with_a_wait_has_the_words_of_the_endpoint() {
    let wait = || vec![("retry-after", "3".to_owned())];
    for (status, expected) in [
        (
            429,
            "the load balancer asks for fewer calls, and to wait 3 s: the endpoint answered 429: pool is closed",
        ),
        (
            503,
            "the load balancer is not available, and asks to wait 3 s: the endpoint answered 503: pool is closed",
        ),
    ] {
        let reply = Reply::Answer(
            status,
            wait(),
            "{\"message\":\"pool is closed\"}".to_owned(),
        );
        let error = observe_error(reply, json!({})).await;
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn lost_reply_to_apply_fails_each_change_with_the_reason() {
    let replies = [
        (Reply::Cut, json!({}), "no complete answer"),
        (
            Reply::Hang,
            json!({"timeoutSeconds": 1}),
            "no complete answer within 1 s",
        ),
        (
            Reply::status(200, "{\"results\": ["),
            json!({}),
            "can't be read",
        ),
        (Reply::status(500, "oops"), json!({}), "500: oops"),
        (Reply::status(502, ""), json!({}), "answered 502"),
        (Reply::status(503, "busy"), json!({}), "503: busy"),
    ];
    for (reply, fields, expected) in replies {
        let double = Double::start().await;
        double.reply(reply.clone());
        let changes = changes();
        let applied = double.adapter(fields).apply(&employer(), &changes).await;
        assert_eq!(applied.len(), changes.members().count(), "{reply:?}");
        for result in applied.values() {
            // Transient: the change may have been made, so the members are read again.
            assert!(
                matches!(result, Err(AdapterError::Transient(text)) if text.contains(expected)),
                "{reply:?}: {result:?}"
            );
        }
        assert_eq!(double.asked().len(), 1, "{reply:?}");
    }
}

#[tokio::test]
async fn lost_reply_to_observe_is_transient() {
    for (reply, fields) in [
        (Reply::Cut, json!({})),
        (Reply::Hang, json!({"timeoutSeconds": 1})),
        (Reply::status(500, "oops"), json!({})),
    ] {
        let error = observe_error(reply, fields).await;
        assert!(matches!(error, AdapterError::Transient(_)), "{error}");
    }
}

#[tokio::test]
async fn refused_apply_fails_each_change_with_the_reason() {
    let double = Double::start().await;
    double.reply(Reply::status(
        422,
        "{\"message\": \"no pool for demo/web\"}",
    ));
    let changes = changes();
    let applied = double.adapter(json!({})).apply(&employer(), &changes).await;
    let reason = "the endpoint answered 422: no pool for demo/web";
    assert_eq!(
        applied,
        changes.all_failed(&AdapterError::Permanent(reason.into()))
    );
}

#[tokio::test]
async fn endpoint_that_is_down_has_changed_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let config = serde_json::from_value(json!({ "url": url })).unwrap();
    let adapter = HttpAdapter::new(config).unwrap();
    let applied = adapter.apply(&employer(), &changes()).await;
    let failed = applied.values().all(|result| match result {
        Err(AdapterError::Unavailable { text, wait: None }) => {
            text.starts_with("no connection to the endpoint")
        }
        _ => false,
    });
    assert!(failed && applied.len() == 3, "{applied:?}");
}
