//! An API server that lists objects in pages and never sends an event.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

type Answer = UnsyncBoxBody<Bytes, Infallible>;
type Make = fn(usize) -> Value;

/// The objects on the server: their number, and a function that makes each one.
#[derive(Clone, Default)]
pub struct Api(HashMap<&'static str, (usize, Make)>);

impl Api {
    /// The same with objects of a kind.
    pub fn with(mut self, path: &'static str, count: usize, make: Make) -> Api {
        self.0.insert(path, (count, make));
        self
    }

    /// A client, and the largest result of `measure` before a page was made.
    pub fn client(self, measure: fn() -> usize) -> (Client, Arc<AtomicUsize>) {
        let most = Arc::new(AtomicUsize::new(0));
        let peak = Arc::clone(&most);
        let service = tower::service_fn(move |request: Request<Body>| {
            peak.fetch_max(measure(), Ordering::Relaxed);
            let body = self.answer(&request);
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        (Client::new(service, "default"), most)
    }

    fn answer(&self, request: &Request<Body>) -> Answer {
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        let pairs = || query.split('&').filter_map(|pair| pair.split_once('='));
        let number = |name| {
            let found = pairs().find(|(key, _)| *key == name);
            found.map_or(0, |(_, value)| value.parse().unwrap())
        };
        if pairs().any(|(key, _)| key == "watch") {
            let silent = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
            return StreamBody::new(silent).boxed_unsync();
        }
        let (count, make) = self
            .0
            .get(uri.path())
            .copied()
            .unwrap_or((0, |_| Value::Null));
        let (from, limit) = (number("continue"), number("limit"));
        let to = (from + limit).min(count);
        let next = (to < count).then(|| to.to_string());
        // Each object becomes text immediately: a page of `Value`s would need many times the memory.
        let items: Vec<_> = (from..to).map(|n| make(n).to_string()).collect();
        let metadata = json!({ "resourceVersion": "100000", "continue": next });
        let page = format!(r#"{{"metadata":{metadata},"items":[{}]}}"#, items.join(","));
        Full::from(page).boxed_unsync()
    }
}
