//! The own calls to the API server, counted by verb and code.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tower::{Layer, Service};

use super::metrics::Exposition;

/// Labels of [`Calls`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// As in RBAC: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`; other methods are `other`.
    pub verb: &'static str,
    /// HTTP status of the answer; 0 where there was none.
    pub code: u16,
}

/// Counts the calls of a client. Cloning shares the counters.
#[derive(Clone, Debug, Default)]
pub struct Calls(Family<CallLabels, Counter>);

impl Calls {
    /// Creates the counters and adds them to `exposition`.
    pub fn register(exposition: &Exposition) -> Calls {
        let calls = Calls::default();
        exposition.register(|r| {
            r.register(
                "api_calls",
                "Calls to the API server by verb and HTTP status; status 0 stands for no answer",
                calls.0.clone(),
            );
        });
        calls
    }

    /// Counts a call.
    pub fn count(&self, verb: &'static str, code: u16) {
        self.0.get_or_create(&CallLabels { verb, code }).inc();
    }
}

impl<S> Layer<S> for Calls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            calls: self.clone(),
        }
    }
}

/// A client's service with its calls counted.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    calls: Calls,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = verb(request.method(), request.uri());
        let (calls, answer) = (self.calls.clone(), self.inner.call(request));
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            calls.count(verb, code);
            answer
        })
    }
}

fn verb(method: &Method, uri: &http::Uri) -> &'static str {
    match *method {
        Method::GET if is_watch(uri) => "watch",
        Method::GET if is_list(uri.path()) => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn is_watch(uri: &http::Uri) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// Whether the path names a kind of objects, and none of them: `/api/v1/pods`, `/apis/apps/v1/namespaces/shop/replicasets`.
fn is_list(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let of_kind = match parts[..] {
        ["api", _, ref rest @ ..] | ["apis", _, _, ref rest @ ..] => rest,
        _ => return false,
    };
    matches!(of_kind, [_] | ["namespaces", _, _])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tower::ServiceExt;

    use super::*;

    fn verb_of(method: Method, uri: &str) -> &'static str {
        verb(&method, &uri.parse().unwrap())
    }

    #[test]
    fn verbs_are_those_of_rbac() {
        for (uri, expected) in [
            ("/api/v1/pods?limit=500", "list"),
            ("/api/v1/pods?watch=true&resourceVersion=7", "watch"),
            ("/api/v1/namespaces", "list"),
            ("/api/v1/namespaces/shop", "get"),
            ("/api/v1/namespaces/shop/pods", "list"),
            ("/api/v1/namespaces/shop/pods/web-1", "get"),
            ("/apis/apps/v1/namespaces/shop/replicasets/web/scale", "get"),
            ("/apis/apps/v1/replicasets", "list"),
            ("/apis/apps/v1", "get"),
            ("/version", "get"),
        ] {
            assert_eq!(verb_of(Method::GET, uri), expected, "{uri}");
        }
        assert_eq!(verb_of(Method::PATCH, "/api/v1/pods"), "patch");
        assert_eq!(verb_of(Method::OPTIONS, "/api/v1/pods"), "other");
    }

    #[tokio::test]
    async fn answers_and_failures_are_counted() {
        let exposition = Exposition::default();
        let calls = Calls::register(&exposition);
        let service = calls.layer(tower::service_fn(|request: Request<()>| async move {
            match request.uri().path() {
                "/down" => Err("connection refused"),
                _ => Ok(Response::builder().status(409).body(()).unwrap()),
            }
        }));
        for path in ["/api/v1/pods", "/down"] {
            let request = Request::get(path).body(()).unwrap();
            let _ = service.clone().oneshot(request).await;
        }
        let text = exposition.encode().unwrap();
        for line in [
            r#"operating_api_calls_total{verb="list",code="409"} 1"#,
            r#"operating_api_calls_total{verb="get",code="0"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
