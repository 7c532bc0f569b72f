//! Reads and changes the `clientConfig` of webhooks: the authority that the API server trusts, and the path that it
//! calls.

use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::segments;

pub fn webhook_entries(configuration: &DynamicObject) -> impl Iterator<Item = &Value> {
    let entries = configuration.data.get("webhooks").and_then(Value::as_array);
    entries.into_iter().flatten()
}

/// The segment in the path of a `clientConfig`.
pub fn path_segment(client: &Value) -> Option<&str> {
    segments::split_path(split_target(client).1).0
}

/// Paths of Kuperator, whose webhooks have the same configurations until they are taken over. Kuperator answers at no
/// other path.
const KUPERATOR_PATHS: [&str; 2] = ["/mutating-generic", "/validating-generic"];

/// The patch to merge into a `clientConfig` so that it has this authority (Base64, as in JSON) and this segment in its
/// path; `None` if it already has both. The path of a webhook of Kuperator stays as it is.
pub fn client_config_patch(client: &Value, bundle: &Value, segment: Option<&str>) -> Option<Value> {
    let mut change = Map::new();
    if client["caBundle"] != *bundle {
        change.insert("caBundle".to_owned(), bundle.clone());
    }
    let (host, path) = split_target(client);
    let wanted = segments::join_path(segment, path);
    if wanted != path && !KUPERATOR_PATHS.contains(&path) {
        let (key, value) = match host {
            Some(host) => ("url", json!(format!("{host}{wanted}"))),
            None => ("service", json!({ "path": wanted })),
        };
        change.insert(key.to_owned(), value);
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

/// Scheme and host of a URL, and the path. For a Service, only the path.
pub fn split_target(client: &Value) -> (Option<&str>, &str) {
    let Some(url) = client["url"].as_str() else {
        return (None, client["service"]["path"].as_str().unwrap_or_default());
    };
    let host = url.find("://").map_or(0, |at| at + 3);
    let path = url[host..].find('/').map_or(url.len(), |at| host + at);
    let (host, path) = url.split_at(path);
    (Some(host), path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SEGMENT: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn path_of_kuperator_gets_no_segment() {
        for path in ["/mutating-generic", "/validating-generic"] {
            let by_service = json!({ "caBundle": "a", "service": { "name": "s", "path": path } });
            let by_url = json!({ "caBundle": "a", "url": format!("https://h:1{path}") });
            for client in [by_service, by_url] {
                let same = client_config_patch(&client, &json!("a"), Some(SEGMENT));
                assert_eq!(same, None, "{client}");
                let patch = client_config_patch(&client, &json!("b"), Some(SEGMENT));
                assert_eq!(patch, Some(json!({ "caBundle": "b" })), "{client}");
            }
        }
    }

    #[test]
    fn only_what_differs_is_changed() {
        let client =
            json!({ "caBundle": "a", "service": { "name": "s", "path": "/validate/pods" } });
        assert_eq!(client_config_patch(&client, &json!("a"), None), None);
        assert_eq!(
            client_config_patch(&client, &json!("b"), None),
            Some(json!({ "caBundle": "b" }))
        );
        let path = format!("/{SEGMENT}/validate/pods");
        let wanted = json!({ "service": { "path": path } });
        assert_eq!(
            client_config_patch(&client, &json!("a"), Some(SEGMENT)),
            Some(wanted)
        );
        let client = json!({ "caBundle": "a", "url": format!("https://h:1{path}") });
        assert_eq!(
            client_config_patch(&client, &json!("a"), Some(SEGMENT)),
            None
        );
        let wanted = json!({ "url": "https://h:1/validate/pods" });
        assert_eq!(
            client_config_patch(&client, &json!("a"), None),
            Some(wanted)
        );
    }
}
