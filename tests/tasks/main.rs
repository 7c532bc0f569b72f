//! Tests make every task of a real server end or hang, on a real API server. The replica first stops being ready and
//! then ends with the reason, or its watchdog reports the hang. The other replicas continue, and no rule is broken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::names;
use testbed::{Bed, Scope, wait};

/// All features are on and callers are known, so that all tasks run.
const FLAGS: &[&str] = &["--feature-gates", "CollaSets=true,GraceDeleteWebhook=false"];

/// All tasks that a server with these flags starts. Every watch is a task.
const TASKS: &[&str] = &[
    "the keeper of the certificate",
    "the keeper of the client authorities",
    "the lead of the controllers",
    "the memory of the ledgers",
    "the metrics listener",
    "the upkeep of the webhook configurations",
    "the watch of collasets",
    "the watch of controllerrevisions",
    "the watch of daemonsets",
    "the watch of deployments",
    "the watch of endpointslices",
    "the watch of jobs",
    "the watch of mutatingwebhookconfigurations",
    "the watch of namespaces",
    "the watch of operationjobs",
    "the watch of persistentvolumeclaims",
    "the watch of poddecorations",
    "the watch of poddisruptionbudgets",
    "the watch of pods",
    "the watch of podtransitionrules",
    "the watch of replicasets",
    "the watch of replicationcontrollers",
    "the watch of resourcecontexts",
    "the watch of services",
    "the watch of statefulsets",
    "the watch of validatingwebhookconfigurations",
    "the watchdog",
    "the webhook listener",
    "the writer of Events",
];

fn inject_fault(bed: &Bed, index: usize, task: &str, fault: &str) {
    let file = bed.faults_of(index).join(task);
    assert!(file.is_file(), "no task {task} has begun");
    fs::write(file, fault).unwrap();
}

/// Injects the fault. Returns when the replica has ended for this reason, after it stopped being ready.
async fn ends(bed: &Bed, index: usize, task: &str, fault: &str, reason: &str) {
    inject_fault(bed, index, task, fault);
    let is_silent = task.ends_with("listener");
    if !is_silent {
        wait::until(&format!("the end of {task} to be told"), async || {
            let Some((code, text)) = bed.get(index, "/livez").await else {
                return false;
            };
            if code == 200 {
                return false;
            }
            assert_eq!(
                (code, text),
                (500, format!("[-] {task} {reason}\nnot alive\n"))
            );
            true
        })
        .await;
        let (code, text) = bed.get(index, "/readyz").await.unwrap();
        assert_eq!(code, 503, "{text}");
        assert!(
            text.contains(&format!("[-] life: {task} {reason}\n")),
            "{text}"
        );
    }
    let (code, log) = bed.until_ended(index).await;
    let last = log.lines().last().unwrap_or_default();
    assert_eq!(
        (code, last),
        (Some(1), &*format!("error: {task} {reason}")),
        "{log}"
    );
    bed.restart(index).await;
}

/// Evicts Pods under the rule `web` for as long as the future runs. Retries evictions that are held.
async fn disrupted<T>(scope: &Scope, work: impl Future<Output = T>) -> T {
    let over = AtomicBool::new(false);
    let disrupt = async {
        let mut evicted = 0;
        while !over.load(Ordering::Relaxed) {
            for pod in names(&scope.list("app=web").await) {
                evicted += usize::from(scope.evict(&pod).await.is_ok());
            }
        }
        evicted
    };
    let work = async {
        let done = work.await;
        over.store(true, Ordering::Relaxed);
        done
    };
    let (evicted, done) = futures::future::join(disrupt, work).await;
    assert!(evicted > 0, "nothing went on");
    done
}

async fn web(bed: &Bed) -> Scope {
    let scope = bed.scope("tasks").await;
    scope.web_under_rule(6, json!(2)).await;
    scope
}

#[tokio::test]
async fn task_panic_ends_its_replica_and_breaks_no_rule() {
    let bed = Bed::with_task_faults(FLAGS).await;
    let scope = web(&bed).await;
    let mut tasks: Vec<_> = fs::read_dir(bed.faults_of(0))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    tasks.sort();
    assert_eq!(tasks, TASKS);
    let observer = Observer::start(&scope).await;
    let panicked = "panicked: a fault on purpose";
    disrupted(&scope, async {
        // The last replica continues.
        for tasks in tasks.chunks(2) {
            let ended = (0..).zip(tasks);
            let ended = ended.map(|(index, task)| ends(&bed, index, task, "panic", panicked));
            futures::future::join_all(ended).await;
        }
        let reason = "ended although nothing has stopped it";
        ends(&bed, 0, "the watch of pods", "end", reason).await;
    })
    .await;
    scope.all_available("app=web", 6).await;
    scope.until_at_rest("web", 6).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
}

/// No thread of the runtime runs any more, so no request gets an answer. The watchdog has a thread of its own.
#[tokio::test]
async fn watchdog_reports_blocked_runtime_and_other_replicas_continue() {
    let bed = Bed::with_task_faults(FLAGS).await;
    let scope = web(&bed).await;
    let observer = Observer::start(&scope).await;
    let blocked = bed.leader().await;
    // More than one thread may run tasks.
    for task in TASKS.iter().filter(|task| **task != "the watchdog") {
        inject_fault(&bed, blocked, task, "block");
    }
    let until_logged = async |text: &str| {
        wait::until(text, async || bed.log_of(blocked).contains(text)).await;
    };
    disrupted(&scope, async {
        until_logged("has stalled probe=\"runtime\" why=\"no task has run for").await;
        assert_eq!(bed.get(blocked, "/livez").await, None);
        wait::until("another leader", async || bed.leader().await != blocked).await;
    })
    .await;
    for task in TASKS.iter().filter(|task| **task != "the watchdog") {
        inject_fault(&bed, blocked, task, "");
    }
    until_logged("has recovered probe=\"runtime\"").await;
    wait::until("an answer", async || {
        let answer = bed.get(blocked, "/readyz").await;
        answer.is_some_and(|(code, _)| code == 200)
    })
    .await;
    scope.all_available("app=web", 6).await;
    scope.until_at_rest("web", 6).await;
    observer.fewest_available(|_| true, 6).await.at_least(4);
    bed.assert_all_run().await;
}
