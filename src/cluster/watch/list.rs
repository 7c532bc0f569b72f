//! Lists objects in pages of bounded size. When the next page is read, only the fields that the cache keeps are left of
//! the former page.
//!
//! A list of whole objects can need several times the memory of a replica: 5,000 Deployments with their old ReplicaSets
//! are about 440 MB. One page of 500 objects can be as large if tenants store objects of the maximum size.

use std::collections::HashSet;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt};
use kube::Client;
use kube::core::Request;
use kube::core::params::ListParams;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::{PageMeta, Source, WatchSink, parse};

/// The largest number of objects in a page.
const MAX_PAGE_OBJECTS: u32 = 500;
/// The number of bytes that a page should have.
const TARGET_PAGE_BYTES: usize = 2 << 20;
/// The most bytes of a page that are read. A longer page is dropped and requested again with fewer objects. A page with
/// a single object may have any length, because the API server limits the size of an object.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// The time limit for each page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Page<'a> {
    metadata: PageMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// Lists all objects of a source. Returns the objects and the version of the list.
pub(super) async fn list_pages<T, S: WatchSink<T>>(
    client: &Client,
    source: &Source,
    sink: &S,
) -> anyhow::Result<(Vec<T>, u64)> {
    let (mut objects, mut unread) = (Vec::new(), HashSet::new());
    let mut params = ListParams {
        limit: Some(MAX_PAGE_OBJECTS),
        label_selector: source.labels.map(Into::into),
        field_selector: source.fields.clone(),
        ..ListParams::default()
    };
    loop {
        let limit = params.limit.unwrap_or(MAX_PAGE_OBJECTS);
        let request = Request::new(source.path).list(&params)?;
        let most = (limit > 1).then_some(MAX_PAGE_BYTES);
        let read = async { read_body(client.request_stream(request).await?, most).await };
        let Some(text) = timeout(PAGE_TIMEOUT, read).await?? else {
            params.limit = Some((limit / 8).max(1));
            continue;
        };
        let page: Page<'_> = serde_json::from_slice(&text)?;
        let items = page.items.unwrap_or_default();
        params.limit = Some(fitting_page_size(items.len(), text.len()));
        for raw in items {
            let (object, id) = parse(source, sink, raw);
            objects.extend(object);
            unread.extend(id);
        }
        match page.metadata.r#continue.filter(|c| !c.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => {
                if let Some(known) = sink.unreadable_objects() {
                    known.retain_listed(source, &unread);
                }
                return Ok((objects, page.metadata.resource_version.parse()?));
            }
        }
    }
}

/// Reads the whole response. `None` if it has more than `most` bytes.
async fn read_body(
    stream: impl AsyncBufRead,
    most: Option<usize>,
) -> anyhow::Result<Option<Vec<u8>>> {
    let mut stream = Box::pin(stream);
    let mut text = Vec::new();
    loop {
        let chunk = stream.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(Some(text));
        }
        let length = chunk.len();
        if most.is_some_and(|most| text.len() + length > most) {
            return Ok(None);
        }
        text.extend_from_slice(chunk);
        stream.consume_unpin(length);
    }
}

/// How many objects to request next, if they have the same size as those of the last page.
fn fitting_page_size(objects: usize, bytes: usize) -> u32 {
    let each = (bytes / objects.max(1)).max(1);
    let fitting = u32::try_from(TARGET_PAGE_BYTES / each).unwrap_or(MAX_PAGE_OBJECTS);
    fitting.clamp(1, MAX_PAGE_OBJECTS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::cluster::caches::Caches;
    use crate::cluster::watches::RuleSink;

    struct Names;

    impl WatchSink<String> for Names {
        fn parse(&self, raw: &str) -> serde_json::Result<String> {
            let object: serde_json::Value = serde_json::from_str(raw)?;
            serde_json::from_value(object["name"].clone())
        }
        fn replace(&self, _: Vec<String>, _: u64) {}
        fn apply(&self, _: String) {}
        fn delete(&self, _: String) {}
        fn bookmark(&self, _: u64) {}
        fn parse_unreadable(&self, _: &str) -> Option<String> {
            None
        }
    }

    fn parameter(request: &Request<Body>, name: &str) -> usize {
        let query = request.uri().query().unwrap_or_default();
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.map_or(0, |(_, value)| value.parse().unwrap())
    }

    /// Lists objects of these sizes. Returns the names in the order of the response, and the limits of the requests.
    async fn list_in_pages(sizes: Vec<usize>) -> (Vec<String>, Vec<usize>) {
        let limits = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&limits);
        let service = tower::service_fn(move |request: Request<Body>| {
            let limit = parameter(&request, "limit");
            let from = parameter(&request, "continue");
            asked.lock().push(limit);
            let to = (from + limit).min(sizes.len());
            let items: Vec<_> = (from..to)
                .map(|n| json!({ "name": n.to_string(), "bulk": "x".repeat(sizes[n]) }))
                .collect();
            let next = (to < sizes.len()).then(|| to.to_string());
            let metadata = json!({ "resourceVersion": "7", "continue": next });
            let page = json!({ "metadata": metadata, "items": items }).to_string();
            async move { Ok::<_, Infallible>(Response::new(Body::from(page.into_bytes()))) }
        });
        let client = Client::new(service, "default");
        let source = Source::from_path("/api/v1/things");
        let (names, version) = list_pages(&client, &source, &Names).await.unwrap();
        assert_eq!(version, 7);
        let limits = limits.lock().clone();
        (names, limits)
    }

    fn numbers(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[tokio::test]
    async fn unreadable_rules_are_listed_and_hold_their_pods() {
        let service = tower::service_fn(|request: Request<Body>| {
            let from = parameter(&request, "continue");
            let metadata = |n: usize| json!({ "namespace": "n", "name": format!("r{n}"), "uid": format!("u{n}"), "resourceVersion": "5" });
            let rules = json!([{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }]);
            let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
            let item = match from {
                0 => json!({ "metadata": metadata(0), "spec": { "selector": {}, "rules": rules } })
                    .to_string(),
                1 => {
                    json!({ "metadata": metadata(1), "spec": { "selector": {}, "rules": "none" } })
                        .to_string()
                }
                n => format!(r#"{{ "metadata": {}, "spec": {deep} }}"#, metadata(n)),
            };
            let next = if from < 2 {
                (from + 1).to_string()
            } else {
                String::new()
            };
            let page = format!(
                r#"{{ "metadata": {{ "resourceVersion": "7", "continue": "{next}" }}, "items": [{item}] }}"#
            );
            async move { Ok::<_, Infallible>(Response::new(Body::from(page.into_bytes()))) }
        });
        let source = Source::from_path("/apis/apps.kusionstack.io/v1alpha1/podtransitionrules");
        let caches = Caches::default();
        let sink = RuleSink(caches.clone());
        for _ in 0..2 {
            let (rules, version) = list_pages(&Client::new(service, "default"), &source, &sink)
                .await
                .unwrap();
            sink.replace(rules, version);
            let state = caches.index.read_state();
            let why = |name| {
                state
                    .rule("n", name)
                    .unwrap()
                    .snapshot
                    .rules
                    .selector
                    .clone()
            };
            assert!(why("r0").is_ok());
            assert!(why("r1").unwrap_err().starts_with("spec.rules: "));
            assert!(why("r2").unwrap_err().starts_with("spec: "));
        }
        assert_eq!(caches.unreadable.count(), 2);
    }

    #[tokio::test]
    async fn small_objects_come_in_large_pages() {
        let (names, limits) = list_in_pages(vec![100; 1_200]).await;
        assert_eq!(names, numbers(1_200));
        assert_eq!(limits, [500, 500, 500]);
    }

    #[tokio::test]
    async fn page_that_is_too_long_is_read_in_smaller_ones() {
        let (names, limits) = list_in_pages(vec![100_000; 100]).await;
        assert_eq!(names, numbers(100));
        assert_eq!(limits[..2], [500, 62], "given up");
        assert!(limits[2..].iter().all(|n| *n <= 20), "{limits:?}");
    }

    #[tokio::test]
    async fn object_longer_than_a_page_is_read_alone() {
        let (names, _) =
            list_in_pages(vec![100, MAX_PAGE_BYTES + 1, 100, MAX_PAGE_BYTES + 1]).await;
        assert_eq!(names, numbers(4));
    }
}
