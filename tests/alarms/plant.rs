//! All metrics of a server whose API server has no objects and changes nothing.

use std::convert::Infallible;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::FutureExt;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use operating::admission::denial_counts::DenialCounts;
use operating::admission::handler_guard::guard_handlers;
use operating::admission::review::{self, Handler, Verdict};
use operating::api::keys;
use operating::cli::serve::metrics::{self, MetricsCollector};
use operating::cluster::caches::Caches;
use operating::cluster::events::EventRecorder;
use operating::cluster::index::{Index, NamespaceFacts};
use operating::cluster::leadership::Leadership;
use operating::cluster::owner_sizes::LiveOwners;
use operating::cluster::rule_store::RuleStore;
use operating::cluster::traffic::Traffic;
use operating::cluster::traffic::adapters::{Adapters, NamedAdapter};
use operating::cluster::traffic::endpoints::EndpointsAdapter;
use operating::cluster::watches;
use operating::controllers::rule_endpoints::EndpointCaller;
use operating::controllers::{self, ControllerStats};
use operating::ledger::commit::Ledgers;
use operating::server::path_filter::filter_paths;
use operating::server::{Limits, webhooks};
use operating::tasks::Supervisor;
use operating::telemetry::api_calls::ApiCallMetrics;
use operating::telemetry::logs;
use operating::telemetry::metrics::{Exposition, ServerMetrics};
use operating::telemetry::process;
use operating::telemetry::watchdog::{self, WatchdogProbe, WatchdogStatus};
use operating::tls::path_guard::PathGuard;
use operating::tls::{CertificatePair, CertificateResolver};
use parking_lot::Mutex;
use serde_json::{Value, json};
use testbed::authority::Authority;
use testbed::review::{call, deletion};
use tokio::sync::{MutexGuard, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::{Layer, ServiceExt};

/// The tests run one at a time, because panics are counted for the whole process.
static ALONE: std::sync::LazyLock<tokio::sync::Mutex<()>> =
    std::sync::LazyLock::new(tokio::sync::Mutex::default);

pub struct Plant {
    pub client: Client,
    pub caches: Caches,
    pub index: Arc<Index>,
    /// With an adapter `edge`.
    pub traffic: Arc<Traffic>,
    pub ledgers: Arc<Ledgers<RuleStore>>,
    pub work: Arc<ControllerStats>,
    pub endpoint_caller: Arc<EndpointCaller>,
    pub leading: watch::Sender<bool>,
    pub supervisor: Supervisor,
    pub sight: WatchdogStatus,
    /// The result of the watchdog's probe.
    pub stalled: Arc<Mutex<bool>>,
    exposition: Exposition,
    pub metrics: ServerMetrics,
    resolver: Arc<CertificateResolver>,
    denials: DenialCounts,
    calls: ApiCallMetrics,
    /// Number of panics before this test.
    panics: u64,
    alone: Option<MutexGuard<'static, ()>>,
}

/// Decides as the test says.
struct Fixed(fn() -> Verdict);

#[async_trait]
impl Handler for Fixed {
    async fn review(&self, _: &review::Request, _: tokio::time::Instant) -> Verdict {
        self.0()
    }
    fn fallback(&self, _: &review::Request, why: &str) -> Verdict {
        Verdict::deny(429, "TooManyRequests", why)
    }
}

/// A client whose lists are empty, whose watches are silent, and whose other requests get no answer.
fn api() -> Client {
    let service = tower::service_fn(|request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        async move {
            let is_list = query.contains("limit=") || query.contains("fieldSelector=");
            if !is_list || query.contains("watch=") {
                std::future::pending::<()>().await;
            }
            let list = json!({ "metadata": { "resourceVersion": "7" }, "items": [] });
            Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
        }
    });
    Client::new(service, "default")
}

/// One adapter, which manages every Service that names none.
fn adapters() -> Adapters {
    let edge = NamedAdapter::new("edge", Arc::new(EndpointsAdapter(Arc::default())), None);
    Adapters::new(vec![edge], Some("edge".to_owned())).unwrap()
}

impl Plant {
    /// A healthy server that leads.
    pub async fn new() -> Plant {
        Plant::at(Timestamp::now, Instant::now).await
    }

    /// The same with these clocks.
    pub async fn at(now: fn() -> Timestamp, clock: fn() -> Instant) -> Plant {
        let alone = ALONE.lock().await;
        Plant::build(now, clock, alone).await
    }

    /// A copy of this server with another part.
    pub async fn again(mut former: Plant) -> Plant {
        let alone = former.alone.take().unwrap();
        Plant::build(Timestamp::now, Instant::now, alone).await
    }

    async fn build(
        now: fn() -> Timestamp,
        clock: fn() -> Instant,
        alone: MutexGuard<'static, ()>,
    ) -> Plant {
        let exposition = Exposition::default();
        let metrics = ServerMetrics::register(&exposition);
        let calls = ApiCallMetrics::register(&exposition);
        process::register_process_metrics(&exposition);
        let client = api();
        let caches = Caches::default();
        let index = Arc::clone(&caches.index);
        let supervisor = Supervisor::new(CancellationToken::new());
        let catch_up = watches::start_watches(&client, &caches, true, &supervisor);
        let ledgers = Ledgers::new(RuleStore::new(client.clone(), Arc::clone(&index), catch_up));
        let stalled = Arc::new(Mutex::new(false));
        let is_stalled = Arc::clone(&stalled);
        let probe = WatchdogProbe {
            name: "index-lock",
            restart_after: None,
            check: Box::new(move |_| match *is_stalled.lock() {
                true => Err("as asked".to_owned()),
                false => Ok(()),
            }),
        };
        let sight =
            watchdog::start_watchdog(vec![probe], supervisor.stop().clone(), |_| {}).unwrap();
        let (leading, lead) = watch::channel(true);
        let (denials, work) = (
            DenialCounts::default(),
            Arc::new(ControllerStats::default()),
        );
        let traffic = Traffic::new(adapters(), Arc::default());
        traffic.counters.show("edge");
        let endpoint_caller = Arc::new(EndpointCaller::default());
        exposition.register(|registry| traffic.counters.register(registry));
        let collector = MetricsCollector {
            caches: caches.clone(),
            traffic: Arc::clone(&traffic),
            ledgers: Arc::clone(&ledgers),
            endpoint_caller: Arc::clone(&endpoint_caller),
            denials: denials.clone(),
            controller_stats: Arc::clone(&work),
            is_leading: lead,
            watchdog: sight.clone(),
            now,
            clock,
        };
        metrics::register_metrics_collector(&exposition, collector);
        let resolver = CertificateResolver::new(metrics.clone());
        let plant = Plant {
            client,
            caches,
            index,
            traffic,
            ledgers,
            work,
            endpoint_caller,
            leading,
            supervisor,
            sight,
            stalled,
            exposition,
            metrics,
            resolver,
            denials,
            calls,
            panics: logs::panic_count(),
            alone: Some(alone),
        };
        plant.certificate(60 * 24);
        plant.index.wait_listed().await;
        plant
    }

    /// The metrics of a server that has just started and has not been called.
    pub fn fresh(&self) -> String {
        let handlers: webhooks::WebhookRoutes = vec![("/pods", Arc::new(Fixed(Verdict::allow)))];
        drop(webhooks::webhook_router(
            handlers,
            &Limits::default(),
            &self.metrics,
        ));
        self.exposition.encode().unwrap()
    }

    /// The metrics of the process, as if it had started with this test.
    fn scrape(&self) -> String {
        let (name, panics) = ("operating_panics_total", logs::panic_count());
        let text = self.exposition.encode().unwrap();
        text.replace(
            &format!("{name} {panics}\n"),
            &format!("{name} {}\n", panics - self.panics),
        )
    }

    /// Returns the alarms that fire after this number of minutes. `act` runs in each minute, and `edit` changes the
    /// scraped text.
    pub async fn alarms(
        &self,
        minutes: i64,
        act: impl Fn(i64),
        edit: impl Fn(i64, String) -> String,
    ) -> Vec<String> {
        let begin = Timestamp::now().as_second();
        let mut scrapes = Vec::new();
        for minute in 0..=minutes {
            act(minute);
            // A server at rest makes a call now and then.
            self.calls.count_success("get", 200);
            let text = edit(minute, self.scrape());
            let at = begin + 60 * minute;
            scrapes.push(json!({ "at": at, "instance": "replica-0", "text": text }));
        }
        let binary = tokio::task::spawn_blocking(testbed::binaries::alarms);
        let mut evaluation = Command::new(binary.await.unwrap().unwrap())
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/manifests/monitoring/alarms.yaml"
            ))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = Value::from(scrapes).to_string();
        let mut stdin = evaluation.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let output = evaluation.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let fired = String::from_utf8(output.stdout).unwrap();
        fired.lines().map(str::to_owned).collect()
    }

    /// Puts a rule with this ledger into the cache.
    pub fn rule(&self, name: &str, ledger: Value) {
        let rule = json!({
            "metadata": {
                "namespace": "shop", "name": name, "uid": name, "resourceVersion": "7", "generation": 1,
            },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            "status": { "ledger": ledger },
        });
        self.index.apply_rule(serde_json::from_value(rule).unwrap());
    }

    /// Puts a managed Service with this report into the cache.
    pub fn service(&self, version: u64, report: &Value) {
        let service = json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "web", "resourceVersion": version.to_string(),
                "labels": { (keys::CONTROL): "true" },
                "annotations": { (keys::CONSIST_STATUS): report.to_string() },
            },
            "spec": { "selector": { "app": "web" } },
        });
        let services = self.traffic.employers.kind("Service").unwrap();
        let service = serde_json::from_value(service).unwrap();
        assert!(services.apply(&self.traffic.adapters, service));
    }

    /// Puts a Pod into the cache that was deleted this number of seconds ago, with these finalizers.
    pub fn deleted_pod(&self, version: u64, seconds: u64, finalizers: &[&str]) {
        let at = Timestamp::now() - Duration::from_secs(seconds);
        let pod = json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "web-0", "resourceVersion": version.to_string(),
                "labels": { (keys::CONTROL): "true" }, "finalizers": finalizers,
                "deletionTimestamp": at, "deletionGracePeriodSeconds": 0,
            },
            "spec": { "containers": [{ "name": "app" }] },
        });
        self.index.apply_pod(serde_json::from_value(pod).unwrap());
    }

    /// Serves a certificate that is valid for this number of hours.
    pub fn certificate(&self, hours: i64) {
        let (chain, key) = Authority::new().leaf(hours);
        let pair = CertificatePair::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        self.resolver.serve_pair(pair, Vec::new());
    }

    pub fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends a review that gets a verdict.
    pub fn decide(&self, verdict: fn() -> Verdict) {
        self.send(verdict, Limits::default());
    }

    /// Sends a review by a path without the segment.
    pub fn call_by_another_path(&self) {
        let doors = Arc::new(PathGuard::default());
        doors.require_segments(vec!["0".repeat(32)]);
        let router = filter_paths(axum::Router::new(), doors, &self.metrics);
        let request = call("/pods", deletion("web-1")).map(axum::body::Body::new);
        let answer = router.oneshot(request).now_or_never();
        assert_eq!(answer.expect("an answer at once").unwrap().status(), 403);
    }

    /// Sends a review to a server that can't decide any review.
    pub fn overload(&self) {
        let limits = Limits {
            reviews: 0,
            ..Limits::default()
        };
        self.send(Verdict::allow, limits);
    }

    fn send(&self, verdict: fn() -> Verdict, limits: Limits) {
        let handlers: webhooks::WebhookRoutes = vec![("/pods", Arc::new(Fixed(verdict)))];
        let handlers = guard_handlers(
            handlers,
            &self.supervisor,
            &self.index.etcd_history,
            &self.denials,
        );
        let router = webhooks::webhook_router(handlers, &limits, &self.metrics);
        let request = call("/pods", deletion("web-1")).map(axum::body::Body::new);
        let answer = router.oneshot(request).now_or_never();
        assert_eq!(answer.expect("an answer at once").unwrap().status(), 200);
    }

    /// Calls an API server that does not exist.
    pub fn call_in_vain(&self) {
        let service = self.calls.layer(tower::service_fn(|_: Request<()>| {
            std::future::ready(Err::<Response<Body>, _>("connection refused"))
        }));
        let request = Request::get("/api/v1/pods").body(()).unwrap();
        let answer = service.oneshot(request).now_or_never();
        assert!(answer.expect("an answer at once").is_err());
    }

    /// Patches a Pod. The API server answers with this code, and with a time to wait if `wait`.
    pub fn call(&self, code: u16, wait: bool, message: &'static str) {
        let service = self.calls.layer(tower::service_fn(move |_: Request<()>| {
            let about = json!({ "name": "web-1", "kind": "pods" });
            let reason = if code == 403 { "Forbidden" } else { "" };
            let status = json!({ "reason": reason, "message": message, "details": about });
            let mut answer = Response::new(Body::from(status.to_string().into_bytes()));
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            if wait {
                let second = HeaderValue::from_static("1");
                answer.headers_mut().insert(RETRY_AFTER, second);
            }
            std::future::ready(Ok::<_, Infallible>(answer))
        }));
        let path = "/api/v1/namespaces/shop/pods/web-1";
        let request = Request::patch(path).body(()).unwrap();
        let answer = service.oneshot(request).now_or_never();
        assert!(answer.expect("an answer at once").is_ok());
    }

    /// Runs the controllers, whose calls get no answer.
    pub fn controllers(&self) -> JoinHandle<()> {
        let namespace = NamespaceFacts {
            name: "shop".to_owned(),
            uid: "shop".to_owned(),
            version: 7,
            labels: Default::default(),
            terminating_since: None,
        };
        self.index.apply_namespace(namespace);
        let context = Arc::new(controllers::ControllerContext {
            client: self.client.clone(),
            namespace: "kusionstack-system".to_owned(),
            index: Arc::clone(&self.index),
            objects: Arc::clone(&self.caches.objects),
            registration: Arc::clone(&self.caches.registration),
            watch_registry: Arc::clone(&self.caches.watch_registry),
            owners: LiveOwners::new(&self.index),
            ledgers: Arc::clone(&self.ledgers),
            leadership: Leadership::permanent(),
            blocked_deletions: Arc::default(),
            begun_pods: Arc::default(),
            blocked_lifecycles: Arc::default(),
            events: EventRecorder::new(self.client.clone(), Timestamp::now),
            request_timeout: Duration::from_secs(60),
            wait_notice: Duration::from_secs(60),
            endpoint_caller: Arc::default(),
            traffic: Arc::default(),
            collasets: true,
            restart_method: Default::default(),
            grace_delete: false,
            now: Timestamp::now,
            earliest: Timestamp::now,
        });
        let (work, stop) = (Arc::clone(&self.work), self.supervisor.stop().clone());
        tokio::spawn(async move { controllers::run(context, &work, stop.into()).await })
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.supervisor.stop().cancel();
    }
}
