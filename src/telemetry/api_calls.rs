//! Counts this program's own calls to the API server by verb, code and kind of failure.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::Deserialize;
use tokio::time::Instant;
use tower::{Layer, Service};

use super::metrics::Exposition;

/// Labels of [`ApiCallMetrics`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// Verb as in RBAC: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`. Other methods are `other`.
    pub verb: &'static str,
    /// HTTP status of the answer; 0 if there was none.
    pub code: u16,
    /// The problem between this process and the API server: `no-answer`, `unauthenticated`, `no-right`, `throttled` or
    /// `server-error`. Empty for an answer that is part of normal work, such as a conflict or a denial by an admission
    /// policy.
    pub failure: &'static str,
}

/// Values of [`CallLabels::verb`].
const VERBS: [&str; 8] = [
    "get", "list", "watch", "create", "update", "patch", "delete", "other",
];
/// Codes and failures for which alerts exist.
const ALERT_FAILURES: [(u16, &str); 7] = [
    (0, "no-answer"),
    (401, "unauthenticated"),
    (403, "no-right"),
    (429, "throttled"),
    (500, "server-error"),
    (503, "server-error"),
    (504, "server-error"),
];

/// The code itself if HTTP defines it, or else the first code of its class. Webhooks and aggregated API servers choose
/// the codes of their denials, and each code creates a time series.
fn known_code(code: u16) -> u16 {
    let status = StatusCode::from_u16(code).ok();
    match status.and_then(|status| status.canonical_reason()) {
        None => code.min(999) / 100 * 100,
        Some(_) => code,
    }
}

/// Counts the calls of a client. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct ApiCallMetrics(Family<CallLabels, Counter>);

impl ApiCallMetrics {
    /// Creates the counters and adds them to `exposition`.
    pub fn register(exposition: &Exposition) -> ApiCallMetrics {
        let calls = ApiCallMetrics::default();
        // `increase()` misses the event that creates a time series, so create the series at 0.
        for verb in VERBS {
            for (code, failure) in ALERT_FAILURES {
                let labels = CallLabels {
                    verb,
                    code,
                    failure,
                };
                drop(calls.0.get_or_create(&labels));
            }
        }
        exposition.register(|r| {
            r.register(
                "api_calls",
                "Calls to the API server by verb, HTTP status (0 stands for no answer) and what has failed",
                calls.0.clone(),
            );
        });
        calls
    }

    /// Counts a call that has not failed.
    pub fn count_success(&self, verb: &'static str, code: u16) {
        self.count_call(verb, code, "");
    }

    fn count_call(&self, verb: &'static str, code: u16, failure: &'static str) {
        let code = known_code(code);
        let labels = CallLabels {
            verb,
            code,
            failure,
        };
        self.0.get_or_create(&labels).inc();
    }
}

impl<S> Layer<S> for ApiCallMetrics {
    type Service = CountedService<S>;

    fn layer(&self, inner: S) -> CountedService<S> {
        CountedService {
            inner,
            calls: self.clone(),
        }
    }
}

/// The service of a client, with its calls counted.
#[derive(Clone, Debug)]
pub struct CountedService<S> {
    inner: S,
    calls: ApiCallMetrics,
}

impl<S, A, B> Service<Request<A>> for CountedService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let verb = request_verb(request.method(), request.uri());
        let is_probe = verb == "get" && is_metadata_request(&request);
        let (calls, answer) = (self.calls.clone(), self.inner.call(request));
        let waiting = PendingCall::new(&calls, verb);
        Box::pin(async move {
            let answer = match answer.await {
                Ok(answer) => {
                    waiting.finish_call();
                    answer
                }
                Err(e) => {
                    waiting.finish_call();
                    calls.count_call(verb, 0, "no-answer");
                    return Err(e);
                }
            };
            let code = answer.status().as_u16();
            if !matches!(code, 403 | 500) {
                let is_told_to_wait = answer.headers().contains_key(RETRY_AFTER);
                calls.count_call(verb, code, failure_label(code, is_told_to_wait));
                return Ok(answer.map(Either::Left));
            }
            let (head, body) = answer.into_parts();
            // A body that ends early counts as empty. The code alone is enough.
            let body = body
                .collect()
                .await
                .map_or_else(|_| Bytes::new(), |b| b.to_bytes());
            let failure = match code {
                403 if !is_probe && ErrorStatus::from_body(&body).is_rbac_denial() => "no-right",
                500 if !ErrorStatus::from_body(&body).is_missing_replicas_field() => "server-error",
                _ => "",
            };
            calls.count_call(verb, code, failure);
            Ok(Response::from_parts(head, Either::Right(Full::new(body))))
        })
    }
}

/// A call that its caller drops after this time counts as a call without an answer. A caller that drops it earlier no
/// longer needed it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// A call that has no answer yet. Callers have deadlines of their own, and drop the call when a deadline passes.
struct PendingCall {
    calls: ApiCallMetrics,
    verb: &'static str,
    since: Instant,
    is_over: bool,
}

impl PendingCall {
    fn new(calls: &ApiCallMetrics, verb: &'static str) -> PendingCall {
        PendingCall {
            calls: calls.clone(),
            verb,
            since: Instant::now(),
            is_over: false,
        }
    }

    fn finish_call(mut self) {
        self.is_over = true;
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_over && self.since.elapsed() >= ANSWER_PATIENCE {
            self.calls.count_call(self.verb, 0, "no-answer");
        }
    }
}

/// The failure that the head of an answer shows. Rules also deny with 429, but without a `Retry-After`.
fn failure_label(code: u16, is_told_to_wait: bool) -> &'static str {
    match code {
        401 => "unauthenticated",
        429 if is_told_to_wait => "throttled",
        500.. => "server-error",
        _ => "",
    }
}

/// Whether the request asks for the metadata of one object. The server tries to read owners of kinds for which it may
/// have no right, and works without the answer: see docs/rights.md.
fn is_metadata_request<A>(request: &Request<A>) -> bool {
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("as=PartialObjectMetadata"))
}

/// The fields of a failed answer that tell its cause.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
    reason: String,
    message: String,
    details: Option<ErrorDetails>,
}

/// The object of the failed request.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorDetails {
    name: String,
    group: String,
    kind: String,
}

impl ErrorStatus {
    /// Parses an answer. An answer that is not a `Status` gives an empty value.
    fn from_body(body: &[u8]) -> ErrorStatus {
        serde_json::from_slice(body).unwrap_or_default()
    }

    /// Whether a 403 comes from authorization and not from admission:
    /// `pods is forbidden: User "x" cannot list resource …`.
    ///
    /// Tenants can write the texts of admission denials by their webhooks, policies and names of quotas. Such a text
    /// follows words of the API server, `admission webhook "x" denied the request: ` or
    /// `pods "web" is forbidden: exceeded quota: `. Therefore this function compares the beginning of the message,
    /// which it builds from the details of the answer.
    fn is_rbac_denial(&self) -> bool {
        if self.reason != "Forbidden" {
            return false;
        }
        let about = self.details.as_ref();
        let about = about
            .map(ErrorDetails::forbidden_prefix)
            .unwrap_or_default();
        let refused = self.message.strip_prefix(&about);
        let refused = refused.and_then(|rest| rest.strip_prefix("forbidden: User \""));
        refused.is_some_and(|rest| rest.contains("\" cannot "))
    }

    /// Whether a 500 reports that an object whose `scale` was read lacks a field. The author of the object has left out
    /// the field, and the rule reports it.
    fn is_missing_replicas_field(&self) -> bool {
        let message = self.message.strip_prefix("Internal error occurred: ");
        let message = message.unwrap_or(&self.message);
        message.starts_with("the spec replicas field ")
    }
}

impl ErrorDetails {
    /// The beginning of the API server's message that a request for this object is forbidden. Empty for a path that is
    /// not a resource.
    fn forbidden_prefix(&self) -> String {
        let ErrorDetails { name, group, kind } = self;
        let kind = match (kind.as_str(), group.as_str()) {
            ("", _) => return String::new(),
            (kind, "") => kind.to_owned(),
            (kind, group) => format!("{kind}.{group}"),
        };
        match name.as_str() {
            "" => format!("{kind} is "),
            name => format!("{kind} \"{name}\" is "),
        }
    }
}

fn request_verb(method: &Method, uri: &http::Uri) -> &'static str {
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

/// Whether the path names a kind of objects and no single object: `/api/v1/pods`,
/// `/apis/apps/v1/namespaces/shop/replicasets`.
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
        request_verb(&method, &uri.parse().unwrap())
    }

    #[test]
    fn unknown_status_codes_create_few_series() {
        let calls = ApiCallMetrics::default();
        for code in 0..=u16::MAX {
            calls.count_success("get", code);
        }
        let mut codes: Vec<_> = (0..=u16::MAX).map(known_code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert!(codes.len() < 80, "{}", codes.len());
        for (code, shown) in [(0, 0), (200, 200), (429, 429), (499, 400), (599, 500)] {
            assert_eq!(known_code(code), shown);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_abandoned_after_patience_counts_as_no_answer() {
        let service = tower::service_fn(|_: Request<Full<Bytes>>| {
            futures::future::pending::<Result<Response<Full<Bytes>>, std::convert::Infallible>>()
        });
        let calls = ApiCallMetrics::default();
        for (seconds, unanswered) in [(1, 0), (5, 1), (3, 2)] {
            let request = Request::get("/api/v1/pods").body(Full::default()).unwrap();
            let call = calls.layer(service).oneshot(request);
            let patience = Duration::from_secs(seconds);
            tokio::time::timeout(patience, call).await.unwrap_err();
            let labels = CallLabels {
                verb: "list",
                code: 0,
                failure: "no-answer",
            };
            assert_eq!(calls.0.get_or_create(&labels).get(), unanswered);
        }
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

    const FORBIDDEN: &str = r#"{"kind":"Status","reason":"Forbidden","details":{"kind":"pods"},"message":"pods is forbidden: User \"operating\" cannot list resource \"pods\" in API group \"\" at the cluster scope"}"#;
    const FORBIDDEN_BY_NAME: &str = r#"{"reason":"Forbidden","details":{"name":"web","group":"apps","kind":"deployments"},"message":"deployments.apps \"web\" is forbidden: User \"operating\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"shop\": RBAC: clusterrole \"x\" not found"}"#;
    const FORBIDDEN_PATH: &str = r#"{"reason":"Forbidden","details":{},"message":"forbidden: User \"operating\" cannot get path \"/apis\""}"#;
    const REFUSED: &str = r#"{"reason":"Forbidden","details":{"name":"web","kind":"pods"},"message":"pods \"web\" is forbidden: exceeded quota: small"}"#;
    const REFUSED_IN_THE_WORDS_OF_RBAC: &str = r#"{"reason":"Forbidden","details":{"name":"web","kind":"pods"},"message":"admission webhook \"x\" denied the request: pods \"web\" is forbidden: User \"operating\" cannot list resource \"pods\""}"#;
    const REFUSED_BY_A_POLICY: &str = r#"{"reason":"Forbidden","details":{"name":"web","kind":"pods"},"message":"pods \"web\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: pods is forbidden: User \"operating\" cannot list"}"#;
    const UNSET: &str = r#"{"message":"Internal error occurred: the spec replicas field \".spec.replicas\" does not exist"}"#;
    const FAILED_IN_THE_WORDS_OF_A_SCALE: &str = r#"{"message":"Internal error occurred: failed calling webhook \"x\": the spec replicas field is down"}"#;

    /// Makes a call whose path is the answer: a code, a `/`, and `wait` for the header `Retry-After`. Returns the
    /// metric line that was counted.
    async fn counted(method: Method, accept: &str, answer: &str, body: &'static str) -> String {
        let exposition = Exposition::default();
        let calls = ApiCallMetrics::register(&exposition);
        let service = calls.layer(tower::service_fn(|request: Request<()>| async move {
            let path = request.uri().path().trim_start_matches('/').to_owned();
            let (code, rest) = path.split_once('/').unwrap_or((&path, ""));
            let mut answer = match code {
                "0" => return Err("connection refused"),
                code => Response::builder().status(code),
            };
            if rest == "wait" {
                answer = answer.header(RETRY_AFTER, "1");
            }
            Ok(answer
                .body(Full::new(Bytes::from_static(body.as_bytes())))
                .unwrap())
        }));
        let request = Request::builder()
            .method(method)
            .uri(format!("/{answer}"))
            .header(ACCEPT, accept)
            .body(())
            .unwrap();
        if let Ok(answer) = service.oneshot(request).await {
            let read = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(read, body, "what was looked at is passed on");
        }
        let text = exposition.encode().unwrap();
        let mut lines = text.lines().filter(|line| !line.ends_with(" 0"));
        let line = lines.find_map(|line| line.strip_prefix("operating_api_calls_total"));
        line.unwrap().to_owned()
    }

    #[tokio::test]
    async fn api_failures_differ_from_expected_errors() {
        for (answer, body, failure) in [
            ("0", "", "no-answer"),
            ("401", "", "unauthenticated"),
            ("403", FORBIDDEN, "no-right"),
            ("403", FORBIDDEN_BY_NAME, "no-right"),
            ("403", FORBIDDEN_PATH, "no-right"),
            ("403", REFUSED, ""),
            ("403", REFUSED_IN_THE_WORDS_OF_RBAC, ""),
            ("403", REFUSED_BY_A_POLICY, ""),
            ("403", "pods is forbidden: User \"x\" cannot list", ""),
            ("404", "", ""),
            ("409", "", ""),
            ("422", "", ""),
            ("429", "held by rule availability", ""),
            ("429/wait", "", "throttled"),
            ("500", "failed calling webhook", "server-error"),
            ("500", UNSET, ""),
            ("500", FAILED_IN_THE_WORDS_OF_A_SCALE, "server-error"),
            ("503/wait", "", "server-error"),
            ("200", "", ""),
        ] {
            let line = counted(Method::PATCH, "application/json", answer, body).await;
            let code = answer.split('/').next().unwrap();
            let want = format!(r#"{{verb="patch",code="{code}",failure="{failure}"}} 1"#);
            assert_eq!(line, want);
        }
    }

    #[tokio::test]
    async fn forbidden_owner_metadata_is_not_a_failure() {
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (method, accept, failure) in [
            (Method::GET, metadata, ""),
            (Method::GET, "application/json", "no-right"),
            (Method::PATCH, metadata, "no-right"),
        ] {
            let line = counted(method, accept, "403", FORBIDDEN).await;
            assert!(line.contains(&format!(r#"failure="{failure}""#)), "{line}");
        }
    }
}
