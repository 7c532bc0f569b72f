//! Answers webhook calls: reads the body, asks the handler, and always answers, even after an error.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use futures::FutureExt;
use http::{StatusCode, header};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::body::{self, BodyBounds, BodyError, ReceivedBody};
use super::caller::Caller;
use super::connection_slots::{ConnectionSlot, ConnectionSlots, SlotsExhausted};
use super::log_limiter::LogLimiter;
use super::review_memory::ReviewMemory;
use super::self_check::OwnConnections;
use super::status::{close_connection, failure_response, json_response};
use super::{Limits, call_timeout};
use crate::admission::review::{self, Handler, Verdict};
use crate::telemetry::metrics::{
    LoadMetrics, RefusedLabel, ReviewLabels, RouteLabel, ServerMetrics,
};

/// The webhook paths, and the handler of each.
pub type WebhookRoutes = Vec<(&'static str, Arc<dyn Handler>)>;

/// The reason that a fallback verdict gives when too many reviews are in progress.
const OVERLOADED: &str = "the admission server is overloaded";
const DEADLINE_PASSED: &str = "the decision was not ready before the API server's deadline";
const UNKNOWN_CLIENT: &str = "calls need a client certificate that --client-ca-file and --client-name of the server admit: \
     give the API server one by its AdmissionConfiguration";
const REVIEW_PANICKED: &str = "the review ended in an internal error";

/// Log lines about calls without a valid review, in ten seconds.
const MAX_LOGGED_REFUSALS: u64 = 20;
/// Log lines about denials in ten seconds, if the callers are not proven to be API servers.
const MAX_LOGGED_DENIALS: u64 = 2000;

/// The peer of a call that did not come from a listener.
const UNKNOWN_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

struct RouterState {
    limits: Limits,
    metrics: ServerMetrics,
    slots: Semaphore,
    memory: ReviewMemory,
    /// Limits the log lines about calls without a valid review.
    refusals: LogLimiter,
    /// Limits the log lines about denials, if the callers are not proven to be API servers.
    denials: LogLimiter,
    /// Slots of calls that did not come from a listener. No metric counts them.
    elsewhere: Arc<ConnectionSlots>,
}

struct WebhookRoute {
    path: &'static str,
    handler: Arc<dyn Handler>,
    shared: Arc<RouterState>,
}

/// A router for the webhook paths. Other methods than POST get 405, other paths 404.
pub fn webhook_router(routes: WebhookRoutes, limits: &Limits, metrics: &ServerMetrics) -> Router {
    let shared = Arc::new(RouterState {
        limits: limits.clone(),
        metrics: metrics.clone(),
        slots: Semaphore::new(limits.reviews),
        memory: ReviewMemory::new(limits, &metrics.load),
        refusals: LogLimiter::new(
            "calls that are no review",
            MAX_LOGGED_REFUSALS,
            metrics.load.unlogged.clone(),
        ),
        denials: LogLimiter::new("denials", MAX_LOGGED_DENIALS, metrics.load.unlogged.clone()),
        elsewhere: ConnectionSlots::new(
            "",
            limits,
            &LoadMetrics::default(),
            OwnConnections::default(),
        ),
    });
    let mut router = Router::new();
    for (path, handler) in routes {
        metrics.init_route(path);
        let route = Arc::new(WebhookRoute {
            path,
            handler,
            shared: shared.clone(),
        });
        router = router.route(path, post(handle_call).with_state(route));
    }
    router
        .fallback(async || {
            failure_response(
                StatusCode::NOT_FOUND,
                "NotFound",
                "no webhook has this path",
            )
        })
        .method_not_allowed_fallback(async || {
            failure_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "webhooks are called by POST",
            )
        })
}

async fn handle_call(State(route): State<Arc<WebhookRoute>>, request: Request) -> Response {
    let arrival = Instant::now();
    let caller = request.extensions().get::<Caller>().copied();
    if caller == Some(Caller::Unknown) {
        route.count_review("unauthenticated", 403);
        let label = RefusedLabel {
            reason: "certificate",
        };
        route.shared.metrics.refused.get_or_create(&label).inc();
        if route.shared.refusals.may_log() {
            tracing::warn!(
                route = route.path,
                "a call without a known client certificate is refused"
            );
        }
        return close_connection(failure_response(
            StatusCode::FORBIDDEN,
            "Forbidden",
            UNKNOWN_CLIENT,
        ));
    }
    let deadline = call_timeout::review_deadline(request.uri().query(), arrival);
    if !is_json(&request) {
        route.count_review("malformed", 415);
        let message = "the Content-Type must be application/json";
        return failure_response(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        );
    }
    let slot = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
    let slot = slot.unwrap_or_else(|| route.shared.elsewhere.acquire_slot(UNKNOWN_PEER));
    let RouterState { limits, memory, .. } = &*route.shared;
    let bounds = BodyBounds {
        limit: limits.body_bytes,
        arrived: deadline.min(arrival + limits.body),
        deadline,
        per_value: route.handler.bytes_per_value(),
    };
    let arriving = memory.begin_body(&slot);
    let received = match body::read_body(request.into_body(), bounds, arriving, memory).await {
        Ok(received) => received,
        Err(error) => return route.body_error_response(error),
    };
    // The permit is held until the verdict, because copies of the body exist until then.
    let ReceivedBody {
        bytes,
        memory: _memory,
        excess,
    } = received;
    let parsed = review::Request::parse(&bytes);
    drop(bytes);
    let mut request = match parsed {
        Ok(request) => request,
        Err(malformed) => return route.malformed_response(malformed),
    };
    request.is_verified = caller == Some(Caller::Known);
    let _deciding = slot.begin_review();
    let verdict = match excess {
        None => route.decide_review(&request, deadline).await,
        Some(excess) => route.refuse_excessive(&request, &excess.to_string()),
    };
    let label = RouteLabel { route: route.path };
    route
        .shared
        .metrics
        .duration
        .get_or_create(&label)
        .observe(arrival.elapsed().as_secs_f64());
    let mut answer = route.verdict_response(&request, &verdict, caller);
    if !slot.mark_proven() {
        answer.extensions_mut().insert(SlotsExhausted);
    }
    answer
}

/// Whether the body is JSON. An absent content type counts as JSON. Parameters such as `charset=utf-8` are accepted.
fn is_json(request: &Request) -> bool {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else {
        return true;
    };
    let kind = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

impl WebhookRoute {
    /// The verdict of the handler, or of its fallback if the handler has no verdict by `deadline`.
    async fn decide_review(&self, request: &review::Request, deadline: Instant) -> Verdict {
        let metrics = &self.shared.metrics;
        let label = RouteLabel { route: self.path };
        let Ok(_slot) = self.shared.slots.try_acquire() else {
            metrics.shed.get_or_create(&label).inc();
            return self.fallback(request, OVERLOADED);
        };
        let _counted = InFlightGuard::new(metrics);
        // After a panic, the handler's own state may be inconsistent, and the handler must cope with that. The panic
        // affects no state of this function.
        let review = AssertUnwindSafe(self.handler.review(request, deadline)).catch_unwind();
        match timeout_at(deadline, review).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(_)) => {
                metrics.panics.get_or_create(&label).inc();
                tracing::error!(route = self.path, uid = ?request.uid, "a review panicked; the fallback of its handler answers");
                self.fallback(request, REVIEW_PANICKED)
            }
            Err(_) => {
                metrics.late.get_or_create(&label).inc();
                self.fallback(request, DEADLINE_PASSED)
            }
        }
    }

    fn fallback(&self, request: &review::Request, why: &str) -> Verdict {
        self.catch_panic(why, || self.handler.fallback(request, why))
    }

    /// The verdict on a review that needs more memory than any review may take.
    fn refuse_excessive(&self, request: &review::Request, why: &str) -> Verdict {
        self.catch_panic(why, || self.handler.deny_excessive(request, why))
    }

    fn catch_panic(&self, why: &str, verdict: impl FnOnce() -> Verdict) -> Verdict {
        std::panic::catch_unwind(AssertUnwindSafe(verdict)).unwrap_or_else(|_| {
            self.shared
                .metrics
                .panics
                .get_or_create(&RouteLabel { route: self.path })
                .inc();
            Verdict::deny(500, "InternalError", format!("{why}; try again"))
        })
    }

    /// Refuses a call whose body could not be read.
    fn body_error_response(&self, error: BodyError) -> Response {
        if self.shared.refusals.may_log() {
            tracing::warn!(
                route = self.path,
                why = error.metric_label(),
                "no review: body not read; the call is refused"
            );
        }
        self.count_review(error.metric_label(), error.code().as_u16());
        error.to_response(self.shared.limits.body_bytes)
    }

    /// Counts the verdict, logs a denial, and builds the answer.
    fn verdict_response(
        &self,
        request: &review::Request,
        verdict: &Verdict,
        caller: Option<Caller>,
    ) -> Response {
        let label = if verdict.is_allowed() {
            "allowed"
        } else {
            "denied"
        };
        self.count_review(label, verdict.code());
        let known = caller == Some(Caller::Known);
        if !verdict.is_allowed() && (known || self.shared.denials.may_log()) {
            tracing::info!(
                route = self.path,
                uid = ?request.uid,
                operation = request.operation.as_str(),
                resource = ?request.resource.resource,
                subresource = ?request.sub_resource.as_deref().unwrap_or_default(),
                object = ?request.object_name(),
                user = ?request.user_info.username,
                user_is_verified = request.is_verified,
                dry_run = request.dry_run,
                code = verdict.code(),
                reason = verdict.reason(),
                why = ?verdict.message(),
                "denied"
            );
        }
        self.write_review(&request.uid, verdict)
    }

    /// Denies a call without a valid review. Without a uid, the answer can only be an HTTP status.
    fn malformed_response(&self, malformed: review::Malformed) -> Response {
        self.count_review("malformed", 400);
        if self.shared.refusals.may_log() {
            tracing::warn!(
                route = self.path,
                why = malformed.message,
                "no review: malformed; the call is refused"
            );
        }
        let message = format!("malformed AdmissionReview: {malformed}");
        match malformed.uid {
            Some(uid) => self.write_review(&uid, &Verdict::deny(400, "BadRequest", message)),
            None => failure_response(StatusCode::BAD_REQUEST, "BadRequest", &message),
        }
    }

    fn write_review(&self, uid: &str, verdict: &Verdict) -> Response {
        match verdict.to_json(uid) {
            Ok(body) => json_response(StatusCode::OK, body),
            Err(error) => {
                tracing::error!(route = self.path, %error, "a verdict could not be written; the API server gets an error");
                failure_response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "InternalError",
                    "the verdict could not be written",
                )
            }
        }
    }

    fn count_review(&self, verdict: &'static str, code: u16) {
        let code = match code {
            200..300 => "2xx",
            500.. => "5xx",
            _ => "4xx",
        };
        let labels = ReviewLabels {
            route: self.path,
            verdict,
            code,
        };
        self.shared.metrics.reviews.get_or_create(&labels).inc();
    }
}

/// Counts a review as in flight until dropped. This includes reviews whose caller closes the connection.
struct InFlightGuard<'m>(&'m ServerMetrics);

impl<'m> InFlightGuard<'m> {
    fn new(metrics: &'m ServerMetrics) -> InFlightGuard<'m> {
        metrics.in_flight.inc();
        InFlightGuard(metrics)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}
