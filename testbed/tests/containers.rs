//! Processes that stand for the containers of simulated Pods, and a load of requests against them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testbed::containers::{
    ANNOTATION, Containers, GRACE, PodProcess, Running, loopback_of, template,
};
use testbed::kubectl::{DRAINED, SPARE};
use testbed::load::{Limits, Load, Outcome};
use testbed::plane::{Plane, shared};
use testbed::pods::{is_ready, node_of};
use testbed::{Scope, ports, probe, wait};

/// Not a test by itself: this program serves as the process of a Pod.
#[test]
fn pod_process() {
    testbed::containers::serve_if_asked();
}

async fn scope(prefix: &str) -> (&'static Plane, Scope, Containers) {
    let plane = shared().await.unwrap();
    let scope = Scope {
        client: plane.client().unwrap(),
        namespace: plane.namespace(prefix).await.unwrap(),
    };
    let containers = Containers::start(&scope.client, &[&scope.namespace]).unwrap();
    (plane, scope, containers)
}

/// Waits until `count` Pods are Ready, and returns them.
async fn ready(scope: &Scope, count: usize) -> Vec<Pod> {
    wait::value(&format!("{count} Ready Pods"), async || {
        let pods = scope.list("app=web").await;
        let all = pods.len() == count && pods.iter().all(is_ready);
        all.then_some(pods)
    })
    .await
}

fn free_port() -> u16 {
    let [port] = ports::free().unwrap();
    port
}

fn address_of(pod: &Pod, port: u16) -> SocketAddr {
    let address = pod.status.as_ref().unwrap().pod_ip.as_ref().unwrap();
    let loopback = loopback_of(address.parse().unwrap()).unwrap();
    (loopback, port).into()
}

async fn body(address: SocketAddr) -> Option<String> {
    let (code, body) = probe::get(address, "/").await?;
    (code == 200).then_some(body)
}

async fn until_refused(address: SocketAddr) {
    wait::until("connections to be refused", async || {
        body(address).await.is_none()
    })
    .await;
}

fn kill(process: u32) {
    let process = Pid::from_raw(process.try_into().unwrap()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
}

#[tokio::test]
async fn every_ready_pod_answers_on_an_address_of_its_own() {
    let (plane, scope, containers) = scope("processes").await;
    let port = free_port();
    let mut extra = template("web:1", port);
    // The drain leaves the Pods of other tests alone.
    extra["metadata"]["labels"] = json!({"drained": scope.namespace});
    scope.deploy("web", 4, extra).await;
    let pods = ready(&scope, 4).await;
    let mut addresses = BTreeSet::new();
    for pod in &pods {
        let address = address_of(pod, port);
        assert!(addresses.insert(address), "{address} twice");
        assert_eq!(body(address).await, Some(pod.name_any()));
        assert_eq!(containers.of_pod(&pod.name_any()).unwrap().address, address);
    }

    let on_drained = pods.iter().filter(|pod| node_of(pod) == Some(DRAINED));
    let on_drained: Vec<_> = on_drained.map(|pod| address_of(pod, port)).collect();
    assert!(!on_drained.is_empty() && on_drained.len() < 4, "two nodes");
    let selector = format!("drained={}", scope.namespace);
    plane.drain(DRAINED, &selector).await;
    let pods = ready(&scope, 4).await;
    plane.uncordon(DRAINED).await;
    assert!(pods.iter().all(|pod| node_of(pod) == Some(SPARE)));
    for pod in &pods {
        assert_eq!(body(address_of(pod, port)).await, Some(pod.name_any()));
    }

    drop(containers);
    for pod in &pods {
        until_refused(address_of(pod, port)).await;
    }
}

#[tokio::test]
async fn pod_is_never_ready_before_its_process_answers() {
    let (_, scope, _containers) = scope("ready").await;
    let port = free_port();
    let changes = scope
        .pods()
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap();
    let early = Mutex::new(Vec::new());
    let (seen, refused) = (Mutex::new(BTreeSet::new()), &early);
    let watching = changes.for_each_concurrent(None, async |change| {
        if let Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = change
            && is_ready(&pod)
            && seen.lock().unwrap().insert(pod.name_any())
            && body(address_of(&pod, port)).await.is_none()
        {
            refused.lock().unwrap().push(pod.name_any());
        }
    });
    let deploying = async {
        let mut slow = template("web:1", port);
        slow["metadata"]["annotations"][ANNOTATION] = json!("1000");
        scope.deploy("web", 6, slow).await;
        ready(&scope, 6).await;
        wait::until("all Pods to be seen", async || {
            seen.lock().unwrap().len() == 6
        })
        .await;
    };
    tokio::select! {
        () = watching => panic!("the watch ended"),
        () = deploying => {}
    }
    assert_eq!(*early.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn deletion_terminates_process_which_answers_what_it_has() {
    let (_, scope, containers) = scope("deletion").await;
    let port = free_port();
    let mut extra = template("web:1", port);
    extra["spec"]["terminationGracePeriodSeconds"] = json!(30);
    scope.pod("web", extra).await;
    let pod = ready(&scope, 1).await.remove(0);
    let address = address_of(&pod, port);
    // The Pod stays Terminating, so that nothing but SIGTERM can end the process.
    scope.pause_kubelet("web").await;
    let delay = GRACE.as_millis() / 2;
    let asking =
        tokio::spawn(async move { probe::get(address, &format!("/?delay={delay}")).await });
    // The request has been accepted when a later one is answered.
    assert_eq!(body(address).await.as_deref(), Some("web"));
    scope.delete("web").await.unwrap();
    until_refused(address).await;
    assert_eq!(asking.await.unwrap(), Some((200, "web".to_owned())));
    assert_eq!(containers.of_pod("web"), None);
    assert!(scope.get("web").await.metadata.deletion_timestamp.is_some());
    scope.resume_kubelet("web").await;
    scope.until_gone(&pod).await;
}

#[tokio::test]
async fn new_image_starts_another_process_at_same_address() {
    let (_, scope, containers) = scope("image").await;
    let port = free_port();
    scope.pod("web", template("web:1", port)).await;
    let address = address_of(&ready(&scope, 1).await[0], port);
    let before = containers.of_pod("web").unwrap();
    let set_image = async |image: &str| {
        let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
        let (pods, patch) = (scope.pods(), Patch::Strategic(&patch));
        let patched = pods.patch("web", &PatchParams::default(), &patch).await;
        patched.unwrap();
    };
    let until_started = async |old: &Running| {
        wait::value("the process of the new container", async || {
            containers
                .of_pod("web")
                .filter(|new| new.process != old.process)
        })
        .await
    };
    set_image("web:2").await;
    let after = until_started(&before).await;
    assert_eq!(after.address, address);
    assert_ne!(after.container, before.container);
    ready(&scope, 1).await;
    assert_eq!(body(address).await.as_deref(), Some("web"));

    set_image("web:non-exist").await;
    until_refused(address).await;
    assert!(!is_ready(&scope.get("web").await));
    set_image("web:2").await;
    until_started(&after).await;
    ready(&scope, 1).await;
}

/// Set for the process that runs only [`starter_that_waits`].
const STARTER: &str = "OPERATING_TEST_STARTER";

#[tokio::test]
async fn killed_starter_takes_its_process_with_it() {
    let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
    let mut starter = tokio::process::Command::new(std::env::current_exe().unwrap());
    starter
        .args(["--exact", "starter_that_waits"])
        .env(STARTER, address.to_string())
        .kill_on_drop(true);
    let mut starter = starter.spawn().unwrap();
    wait::until("the process to answer", async || {
        body(address).await.as_deref() == Some("orphan")
    })
    .await;
    starter.kill().await.unwrap();
    until_refused(address).await;
}

/// Not a test by itself: without the variable it does nothing.
#[tokio::test]
async fn starter_that_waits() {
    let Ok(address) = std::env::var(STARTER) else {
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let _process = PodProcess::start(
        "orphan",
        address.parse().unwrap(),
        Duration::ZERO,
        logs.path(),
    )
    .unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn process_that_ends_early_is_described() {
    let logs = tempfile::tempdir().unwrap();
    let server = server("first", &logs).await;
    let mut second =
        PodProcess::start("second", server.address(), Duration::ZERO, logs.path()).unwrap();
    let error = second.answers().await.unwrap_err().to_string();
    for part in [
        "Pod second",
        "ended with",
        "binding 127.0.0.1:",
        "pod_process",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

fn limits(per_second: u32) -> Limits {
    Limits {
        workers: 4,
        per_second,
        timeout: Duration::from_secs(30),
        ..Limits::default()
    }
}

/// A server without a plane.
async fn server(name: &str, logs: &tempfile::TempDir) -> PodProcess {
    let address = ([127, 0, 0, 1], free_port()).into();
    let mut server = PodProcess::start(name, address, Duration::ZERO, logs.path()).unwrap();
    server.answers().await.unwrap();
    server
}

async fn until_answered(load: &Load, count: u64) {
    wait::until("requests to be answered", async || {
        load.report().succeeded() >= count
    })
    .await;
}

#[tokio::test]
async fn load_on_healthy_server_fails_nowhere() {
    let logs = tempfile::tempdir().unwrap();
    let server = server("healthy", &logs).await;
    let load = Load::start(
        &format!("http://{}/?delay=1", server.address()),
        limits(200),
    )
    .unwrap();
    until_answered(&load, 100).await;
    let report = load.stop().await;
    assert_eq!(report.failed(), 0, "{report}");
    assert_eq!(report.pods, [("healthy".to_owned(), report.sent())].into());
}

#[tokio::test]
async fn load_counts_requests_to_killed_server() {
    let logs = tempfile::tempdir().unwrap();
    let server = server("killed", &logs).await;
    let url = format!("http://{}/?delay=50", server.address());
    let load = Load::start(&url, limits(100)).unwrap();
    until_answered(&load, 10).await;
    assert_eq!(load.report().failed(), 0);
    kill(server.id());
    wait::until("refused connections", async || {
        load.report().count(Outcome::ConnectError) > 20
    })
    .await;
    let report = load.stop().await;
    assert_eq!(report.failures.len(), 10, "{report}");
    assert!(report.failed() > 20 && report.succeeded() >= 10, "{report}");
    let other = [Outcome::ServerError, Outcome::ClientError, Outcome::Timeout];
    assert!(other.iter().all(|o| report.count(*o) == 0), "{report}");
}

#[tokio::test]
async fn load_counts_cut_connections_and_timeouts() {
    let logs = tempfile::tempdir().unwrap();
    let server = server("slow", &logs).await;
    let url = format!("http://{}/?delay=10000", server.address());
    let impatient = Limits {
        timeout: Duration::from_millis(100),
        ..limits(100)
    };
    let load = Load::start(&url, impatient).unwrap();
    wait::until("timeouts", async || {
        load.report().count(Outcome::Timeout) > 3
    })
    .await;
    assert_eq!(load.stop().await.succeeded(), 0);

    let load = Load::start(&url, limits(100)).unwrap();
    // The requests of all workers are in progress when the server is killed, or are refused.
    wait::until("all requests in progress", async || {
        connections_to(server.address()) >= 4
    })
    .await;
    kill(server.id());
    wait::until("cut connections", async || {
        load.report().count(Outcome::Cut) > 0
    })
    .await;
    drop(load);
}

/// Number of connections to an address, by the table of the kernel.
fn connections_to(address: SocketAddr) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let wanted = format!("0100007F:{:04X}", address.port());
    let established = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.get(2) == Some(&&*wanted) && fields.get(3) == Some(&"01")
    };
    table.lines().filter(|line| established(line)).count()
}

#[tokio::test]
async fn load_ends_after_its_longest_time() {
    let logs = tempfile::tempdir().unwrap();
    let server = server("brief", &logs).await;
    let brief = Limits {
        longest: Duration::from_secs(1),
        ..limits(50)
    };
    let mut load = Load::start(&format!("http://{}/", server.address()), brief).unwrap();
    wait::until("the load to end", async || load.has_ended()).await;
    let report = load.stop().await;
    // Each worker is due 12 or 13 times in a second.
    assert!((1..=52).contains(&report.sent()), "{report}");
}
