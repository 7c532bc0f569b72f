//! Tests of the list-and-watch loop against fake API servers. The clock of Tokio is paused, so a wait takes no time.
#![allow(clippy::unwrap_used)]

mod deliveries;
mod trust;

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream;
use http::{Request as HttpRequest, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

use super::*;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// An API server that answers requests by their query.
trait FakeServer: Clone + Send + Sync + 'static {
    fn answer(&self, query: &str) -> impl Future<Output = Answer> + Send;

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let server = server.clone();
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move { Ok::<_, Infallible>(server.answer(&query).await) }
        });
        Client::new(service, "default")
    }
}

fn never(impossible: Infallible) -> std::io::Error {
    match impossible {}
}

fn complete(text: String) -> Answer {
    Response::new(Full::from(text).map_err(never).boxed_unsync())
}

/// The names and values of a query that needs no unescaping.
fn form_urlencoded(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}
