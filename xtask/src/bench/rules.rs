//! The cost of webhook rules: calls to the endpoint, and writes of the server, for each Pod that begins an
//! operation.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use testbed::wait;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::herd::{AT_ONCE, GROUP, Herd};
use super::workload::{self, PATIENCE};
use super::{Bench, requests};

/// ID of the operation of every Pod.
const OPERATION: &str = "bench";

/// 100 rules with 1,000 Pods, all of which begin an operation at once.
pub async fn measure(bench: &mut Bench) -> Result<()> {
    let (rules, size) = if bench.quick { (10, 100) } else { (100, 1_000) };
    eprintln!("{rules} webhook rules over {size} Pods");
    let namespace = bench.plane.namespace("asked").await?;
    let mut herd = Herd::in_groups(bench.client.clone(), &namespace, rules);
    herd.grow(size).await?;
    herd.serve().await?;
    let endpoint = Endpoint::start().await?;
    create_rules(&herd, bench, rules, endpoint.address).await?;

    let position = requests::audit_position(&bench.plane).await?;
    herd.begin(OPERATION).await?;
    let off_traffic = ListParams::default().labels(&format!(
        "preparing.podopslifecycle.kusionstack.io/{OPERATION}"
    ));
    wait::within("all Pods to be let go", PATIENCE, || async {
        Ok(herd.pods.list_metadata(&off_traffic).await?.items.len() == size)
    })
    .await?;
    let granted = requests::since(&bench.plane, position, herd.namespace()).await?;
    let (calls, pods) = endpoint.counts();
    let subject = format!("{rules} webhook rules, {size} Pods at once");
    let add = &mut bench.report;
    let per = |n: usize| format!("{:.2}", n as f64 / size as f64);
    let figure = format!("{subject}: how often the endpoint is asked about a Pod");
    add.add_with_bar(figure, per(pods), "1");
    let figure = format!("{subject}: requests to the endpoint per Pod");
    add.add_with_bar(figure, per(calls), "≤ 1");
    let writes = granted.of_server_about("podtransitionrules");
    let figure = format!("{subject}: writes of rules per verdict");
    add.add_with_bar(figure, per(writes), "≤ 1");

    requests::until_rest(&bench.plane, herd.namespace()).await?;
    let (position, before) = (
        requests::audit_position(&bench.plane).await?,
        endpoint.counts().0,
    );
    let span = Duration::from_secs(if bench.quick { 15 } else { 60 });
    tokio::time::sleep(span).await;
    let requests = requests::since(&bench.plane, position, herd.namespace()).await?;
    // The operations do not proceed: after a minute there are Events about the waits, and no other requests.
    let event_requests = requests.of_server_about("events");
    let figure = format!(
        "{subject}: API requests of the server in {} s of rest, without {event_requests} Events about long waits",
        span.as_secs()
    );
    let add = &mut bench.report;
    add.add_with_bar(
        figure,
        (requests.of_server() - event_requests).to_string(),
        "0",
    );
    let figure = format!("{subject}: requests to the endpoint in that time");
    add.add_with_bar(figure, (endpoint.counts().0 - before).to_string(), "0");
    Ok(())
}

async fn create_rules(
    herd: &Herd,
    bench: &Bench,
    count: usize,
    endpoint: SocketAddr,
) -> Result<()> {
    let api = workload::rules(bench.client.clone(), herd.namespace());
    stream::iter(0..count)
        .map(|group| {
            let api = api.clone();
            async move {
                let rule: DynamicObject = serde_json::from_value(json!({
                    "apiVersion": "apps.kusionstack.io/v1alpha1",
                    "kind": "PodTransitionRule",
                    "metadata": {"name": format!("rule-{group}")},
                    "spec": {
                        "selector": {"matchLabels": {GROUP: group.to_string()}},
                        "rules": [{"name": "ask", "webhook": {
                            "clientConfig": {"url": format!("http://{endpoint}/check")},
                            "failurePolicy": "Fail",
                        }}],
                    },
                }))?;
                api.create(&PostParams::default(), &rule).await?;
                Ok::<_, anyhow::Error>(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    wait::within("the rules to be observed", PATIENCE, || async {
        let rules = api.list(&ListParams::default()).await?.items;
        let begun_pods = rules
            .iter()
            .filter(|r| r.data["status"]["observedGeneration"] == 1);
        Ok(begun_pods.count() == count)
    })
    .await
}

/// An endpoint that lets all Pods pass and counts the requests.
struct Endpoint {
    address: SocketAddr,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    calls: AtomicUsize,
    pods: AtomicUsize,
}

impl Endpoint {
    async fn start() -> Result<Endpoint> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counts = Arc::clone(&counting);
                let service = service_fn(move |request| answer(Arc::clone(&counts), request));
                tokio::spawn(async move {
                    // The caller may go away at any time.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Endpoint {
            address,
            counts,
            task,
        })
    }

    /// Number of requests, and of Pods in them.
    fn counts(&self) -> (usize, usize) {
        let read = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (read(&self.counts.calls), read(&self.counts.pods))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    counts: Arc<Counts>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let body = body.map(|b| b.to_bytes()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let pods = body["resources"].as_array().map_or(0, Vec::len);
    counts.calls.fetch_add(1, Ordering::Relaxed);
    counts.pods.fetch_add(pods, Ordering::Relaxed);
    Ok(Response::new(Full::from(r#"{"success":true}"#)))
}
