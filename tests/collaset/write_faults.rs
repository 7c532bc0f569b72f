//! A proxy fails every n-th write of the server, up to four writes after each request of the test. The set still
//! reaches the same state, and meanwhile no instance ID is shared or lost, no PVC is forgotten, and no rule is broken.

use std::cell::Cell;
use std::time::{Duration, Instant};

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::proxy::{Asked, Effect, Fault};
use testbed::{Bed, Scope};

use crate::fixtures::Set;
use crate::invariants::{Rest, no_id_was_shared, until_at_rest};
use crate::pvcs::{template, volumes};

const ERROR: Effect = Effect::Answer(StatusCode::INTERNAL_SERVER_ERROR);
const CONFLICT: Effect = Effect::Answer(StatusCode::CONFLICT);

/// Matches writes of any kind of object, including leases and Events. A dry run writes nothing.
fn writes(asked: &Asked) -> bool {
    asked.writes() && !asked.uri.query().unwrap_or_default().contains("dryRun=")
}

/// Number of writes that fail after each request of the test. Later writes succeed.
const AFFECTED_WRITES: usize = 4;

/// One run of the scenario with a new set.
struct Run<'a> {
    bed: &'a Bed,
    set: Set<'a>,
    /// The fault and its period; `None` for a run without faults.
    fault: Option<(Effect, usize)>,
    affected: Cell<usize>,
}

impl Run<'_> {
    /// Sends a request that makes the server write, and waits for the outcome.
    async fn ask<T>(&self, request: impl Future, outcome: impl Future<Output = T>) -> T {
        let faults = self.bed.faults();
        if let Some((effect, every)) = self.fault {
            faults.set(Fault::new(effect).on(writes).every(every));
        }
        request.await;
        let ended = async {
            while faults.affected_requests() < AFFECTED_WRITES {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            faults.end_fault();
            std::future::pending().await
        };
        let outcome = tokio::select! { outcome = outcome => outcome, outcome = ended => outcome };
        faults.end_fault();
        if self.fault.is_some() {
            self.affected
                .set(self.affected.get() + faults.affected_requests());
        }
        outcome
    }

    async fn edit(&self, part: Value) -> Rest {
        self.ask(self.set.edit(part), until_at_rest(&self.set))
            .await
    }

    /// Uses all kinds of writes. Returns the state after each step.
    async fn live(&self, spec: Value) -> Vec<Rest> {
        let set = &self.set;
        let made = Set::unsettled(set.scope, set.name, 2, spec);
        let mut rests = vec![self.ask(made, until_at_rest(set)).await];

        let before = set.pods().await;
        let app = json!({ "name": "app", "image": "app:2", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
        let part = json!({ "replicas": 3, "template": { "spec": { "containers": [app] } } });
        rests.push(self.edit(part).await);
        let pods = set.pods().await;
        let same = |(id, pod): (&i64, &Pod)| pods[id].uid() == pod.uid();
        assert!(before.iter().all(same), "changed in place");

        let origin = &pods[&1];
        let name = origin.name_any();
        let label = set.scope.label(&name, json!({ keys::TO_REPLACE: "1" }));
        let replaced = async {
            set.scope.until_gone(origin).await;
            until_at_rest(set).await
        };
        rests.push(self.ask(label, replaced).await);
        let after = set.pods().await;
        assert!([0, 2].iter().all(|id| after[id].uid() == pods[id].uid()));

        let name = after[&0].name_any();
        let part = json!({ "replicas": 2, "scaleStrategy": { "podToDelete": [name] } });
        rests.push(self.edit(part).await);
        assert_eq!(set.pod(2).await.uid(), pods[&2].uid());
        rests
    }
}

/// A set of two Pods with one PVC each, under a rule that lets one Pod go.
async fn run(bed: &Bed, store: &Scope, fault: Option<(Effect, usize)>) -> Vec<Rest> {
    let scope = bed.scope("faults").await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let observer = Observer::start(&scope).await;
    let run = Run {
        bed,
        set: Set::named(&scope, "web"),
        fault,
        affected: Cell::default(),
    };
    let begun = Instant::now();
    let rests = run.live(template(store, "1Gi")).await;
    let affected = run.affected.get();
    println!("{fault:?}: {affected} writes failed, {:?}", begun.elapsed());
    assert_eq!(affected > 0, fault.is_some());
    no_id_was_shared(&observer).await;
    observer.fewest_available(|_| true, 2).await.at_least(1);
    bed.assert_all_run().await;
    rests
}

#[tokio::test]
async fn set_reaches_same_state_whichever_writes_fail() {
    // Claims without effect lapse early.
    let bed = Bed::with_faults(Duration::from_secs(20)).await;
    let faults = [
        (ERROR, 1),
        (ERROR, 2),
        (ERROR, 3),
        (CONFLICT, 2),
        (Effect::LoseReply, 3),
    ];
    let store = bed.scope("store").await;
    volumes(&store, 4 * (1 + faults.len())).await;
    let wanted = run(&bed, &store, None).await;
    let ids = wanted.iter().map(|r| r.pods.keys().copied().collect());
    let ids: Vec<Vec<i64>> = ids.collect();
    assert_eq!(ids, [vec![0, 1], vec![0, 1, 2], vec![0, 2, 3], vec![2, 3]]);
    for fault in faults {
        assert_eq!(run(&bed, &store, Some(fault)).await, wanted, "{fault:?}");
    }
}
