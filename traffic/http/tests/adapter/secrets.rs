//! Credentials: sent as configured, read again when they change, and never in a text.

use std::fs;

use serde_json::json;
use traffic::{Adapter, AdapterError};
use traffic_http::signature;

use crate::double::{Double, Reply, changes, employer};

const TOKEN: &str = "token-of-the-test";
const KEY: &str = "signing-key-of-the-test";

#[tokio::test]
async fn changed_token_is_sent_with_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let double = Double::start().await;
    let adapter = double.adapter(json!({"tokenFile": file}));
    for token in ["first", "second"] {
        fs::write(&file, format!("{token}\n")).unwrap();
        double.reply(Reply::json(&json!({"members": []})));
        adapter.observe(&employer(), &[]).await.unwrap();
        assert_eq!(
            double.last().headers["authorization"],
            format!("Bearer {token}")
        );
    }
}

#[tokio::test]
async fn signature_covers_what_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    let double = Double::start().await;
    let adapter = double.adapter(json!({"hmacKeyFile": file}));
    adapter.apply(&employer(), &changes()).await;
    let asked = double.last();
    let time = asked.headers["x-operating-timestamp"].parse().unwrap();
    let id = &asked.headers["x-request-id"];
    let expected = signature(KEY.as_bytes(), time, id, "apply", asked.body.as_bytes());
    assert_eq!(asked.headers["x-operating-signature"], expected);
}

#[tokio::test]
async fn call_without_credentials_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let double = Double::start().await;
    let path = dir.path().join("private-name");
    for (content, expected) in [
        (None, "can't be read"),
        (Some(""), "is empty"),
        (Some("two\nlines"), "more than a token"),
    ] {
        if let Some(content) = content {
            fs::write(&path, content).unwrap();
        }
        let adapter = double.adapter(json!({"tokenFile": path}));
        let error = adapter.observe(&employer(), &[]).await.unwrap_err();
        let AdapterError::Unavailable { text, wait: None } = error else {
            panic!("another kind of error");
        };
        assert!(
            text.contains("`tokenFile`") && text.contains(expected),
            "{text}"
        );
        assert!(!text.contains("private-name"), "{text}");
        let changes = changes();
        let applied = adapter.apply(&employer(), &changes).await;
        let error = AdapterError::Unavailable { text, wait: None };
        assert_eq!(applied, changes.all_failed(&error));
    }
    assert!(double.asked().is_empty());
}

#[tokio::test]
async fn short_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    fs::write(&file, "123456789012345\n").unwrap();
    let double = Double::start().await;
    let adapter = double.adapter(json!({"hmacKeyFile": file}));
    let error = adapter.observe(&employer(), &[]).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`hmacKeyFile` has less than 16 bytes"),
        "{error}"
    );
    assert!(double.asked().is_empty());
}

#[tokio::test]
async fn secrets_that_the_endpoint_repeats_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (token, key) = (dir.path().join("token"), dir.path().join("key"));
    fs::write(&token, TOKEN).unwrap();
    fs::write(&key, KEY).unwrap();
    let double = Double::start().await;
    let adapter = double.adapter(json!({"tokenFile": token, "hmacKeyFile": key}));
    let echo = format!("Bearer {TOKEN} is wrong, and so is {KEY}");
    let result = json!({"results": [{"group": "http", "address": "10.0.0.1", "port": 8080,
        "error": {"message": echo}}]});
    double.reply(Reply::status(403, &echo));
    double.reply(Reply::json(&json!({ "members": echo })));
    double.reply(Reply::json(&result));
    let mut texts = vec![format!("{adapter:?}")];
    texts.push(format!("{:?}", adapter.observe(&employer(), &[]).await));
    texts.push(format!("{:?}", adapter.observe(&employer(), &[]).await));
    texts.push(format!(
        "{:?}",
        adapter.apply(&employer(), &changes()).await
    ));
    assert!(double.last().headers["authorization"].contains(TOKEN));
    for text in texts {
        assert!(!text.contains(TOKEN) && !text.contains(KEY), "{text}");
    }
}

/// The text as JSON with each character escaped.
fn escaped(text: &str) -> String {
    let digits = text.chars().map(|c| format!("\\u{:04x}", u32::from(c)));
    digits.collect()
}

#[tokio::test]
async fn disguised_secrets_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, TOKEN).unwrap();
    let double = Double::start().await;
    let adapter = double.adapter(json!({"tokenFile": file}));
    let token = escaped(TOKEN);
    let divided = TOKEN.replace("-of-", "-of\u{200b}-");
    let key = "\"group\": \"http\", \"address\": \"10.0.0.1\", \"port\": 8080";
    for body in [
        format!("{{\"message\": \"wrong: {token}\"}}"),
        format!("{{\"error\": \"wrong: {token}\"}}"),
        format!("wrong: {divided}"),
        // The token begins before the end of the longest text.
        format!("{}{TOKEN}", "x ".repeat(145)),
        format!("{{\"message\": \"{}", token.repeat(1000)),
    ] {
        double.reply(Reply::status(403, &body));
        let text = format!("{:?}", adapter.observe(&employer(), &[]).await);
        for part in [TOKEN, "token-of", "\\u00"] {
            assert!(!text.contains(part), "{text}");
        }
        assert!(text.contains("answered 403"), "{text}");
    }
    for body in [
        format!("{{\"members\": \"{token}\"}}"),
        format!(
            "{{\"members\": [], \"unreadableGroups\": [{{\"group\": \"g\", \"error\": {{\"message\": \"{token}\"}}}}]}}"
        ),
        format!("{{\"members\": [{{{key}, \"weight\": 1, \"presence\": \"{token}\"}}]}}"),
        format!(
            "{{\"members\": [{{\"group\": \"{token}\", \"address\": \"::1\", \"port\": 1, \"weight\": 1, \"presence\": \"Serving\"}}]}}"
        ),
    ] {
        double.reply(Reply::status(200, &body));
        let text = format!("{:?}", adapter.observe(&employer(), &[]).await);
        assert!(!text.contains(TOKEN), "{text}");
    }
    let body = format!("{{\"results\": [{{{key}, \"error\": {{\"message\": \"{token}\"}}}}]}}");
    double.reply(Reply::status(200, &body));
    let applied = adapter.apply(&employer(), &changes()).await;
    let hidden = AdapterError::Permanent("[secret]".to_owned());
    assert_eq!(applied.into_values().collect::<Vec<_>>(), [Err(hidden)]);
}

#[tokio::test]
async fn other_labels_and_annotations_are_not_sent() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({}));
    let _ = adapter.observe(&employer(), &[crate::double::pod(1)]).await;
    adapter.apply(&employer(), &changes()).await;
    for asked in double.asked() {
        for hidden in ["private", "blue", "front", "team"] {
            assert!(!asked.body.contains(hidden), "{hidden}: {}", asked.body);
        }
        assert!(asked.body.contains("drain-seconds"), "{}", asked.body);
    }
}
