//! The API server fails every n-th write of the server: the same set comes out, and on the way no instance ID is shared
//! or lost, no claim forgotten, and no rule broken.

use std::time::Duration;

use http::StatusCode;
use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use xtask::proxy::{Asked, Effect, Fault};

use crate::at_rest::{Rest, no_id_was_shared, until_at_rest};
use crate::bed::observer::Observer;
use crate::bed::{Bed, Scope, wait};
use crate::claims::{template, volumes};
use crate::sets::{Set, uids};

const ERROR: Effect = Effect::Answer(StatusCode::INTERNAL_SERVER_ERROR);
const CONFLICT: Effect = Effect::Answer(StatusCode::CONFLICT);

/// Of any kind of object, leases and events included. A dry run writes nothing.
fn writes(asked: &Asked) -> bool {
    asked.writes() && !asked.uri.query().unwrap_or_default().contains("dryRun=")
}

/// What goes wrong in a run, if anything.
struct Faults<'a> {
    bed: &'a Bed,
    strike: Option<(Effect, usize)>,
}

impl Faults<'_> {
    /// Asks for something that makes the server write. When no write succeeds, all goes well again after a while.
    async fn ask<T>(&self, request: impl Future<Output = T>) -> T {
        let Some((effect, every)) = self.strike else {
            return request.await;
        };
        let faults = self.bed.faults();
        faults.set(Fault::new(effect).on(writes).every(every));
        let answer = request.await;
        if every == 1 {
            wait::until("writes to fail", async || faults.struck() >= 4).await;
            faults.lift();
        }
        answer
    }
}

/// One life of a set.
struct Run<'a> {
    faults: Faults<'a>,
    set: Set<'a>,
}

impl Run<'_> {
    async fn edit(&self, part: Value) -> Rest {
        self.faults.ask(self.set.edit(part)).await;
        until_at_rest(&self.set).await
    }

    /// Uses all kinds of writes; returns what is there after each step.
    async fn live(&self) -> Vec<Rest> {
        let mut rests = vec![until_at_rest(&self.set).await];
        let before = self.set.pods().await;
        let app = json!([{ "name": "app", "image": "app:2", "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }]);
        let part = json!({ "replicas": 3, "template": { "spec": { "containers": app } } });
        rests.push(self.edit(part).await);
        let after = self.set.pods().await;
        assert!(
            before.iter().all(|(id, pod)| after[id].uid() == pod.uid()),
            "changed in place"
        );

        let origin = &after[&1];
        let name = origin.name_any();
        let label = json!({ keys::TO_REPLACE: "1" });
        let asked = self.faults.ask(self.set.scope.label(&name, label)).await;
        asked.unwrap();
        self.set.scope.until_gone(origin).await;
        rests.push(until_at_rest(&self.set).await);
        let keep = [after[&0].uid(), after[&2].uid()];
        let after = self.set.pods().await;
        assert_eq!(keep, [after[&0].uid(), after[&2].uid()]);

        let name = after[&0].name_any();
        let part = json!({ "replicas": 2, "scaleStrategy": { "podToDelete": [name] } });
        rests.push(self.edit(part).await);
        let left = uids(&self.set.pods().await);
        assert_eq!(left.get(&2), keep[1].as_ref());
        rests
    }
}

/// A set of two with a claim each, under a rule that lets one go.
async fn run(bed: &Bed, store: &Scope, strike: Option<(Effect, usize)>) -> Vec<Rest> {
    let scope = bed.scope("faults").await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let observer = Observer::start(&scope).await;
    let faults = Faults { bed, strike };
    let set = Set::unsettled(&scope, "web", 2, template(store, "1Gi"));
    let set = faults.ask(set).await;
    let rests = Run { faults, set }.live().await;
    bed.faults().lift();
    no_id_was_shared(&observer).await;
    observer.fewest_available(|_| true, 2).await.at_least(1);
    bed.assert_all_run().await;
    rests
}

#[tokio::test]
async fn whichever_writes_fail_the_same_set_comes_out() {
    // Claims on the budget without effect lapse early.
    let bed = Bed::with_faults(Duration::from_secs(20)).await;
    let strikes = [
        (ERROR, 1),
        (ERROR, 2),
        (ERROR, 3),
        (ERROR, 4),
        (ERROR, 5),
        (CONFLICT, 3),
        (Effect::LoseReply, 2),
    ];
    let store = bed.scope("store").await;
    volumes(&store, 4 * (1 + strikes.len())).await;
    let wanted = run(&bed, &store, None).await;
    let ids = wanted.iter().map(|r| r.pods.keys().copied().collect());
    let ids: Vec<Vec<i64>> = ids.collect();
    assert_eq!(ids, [vec![0, 1], vec![0, 1, 2], vec![0, 2, 3], vec![2, 3]]);
    for (n, strike) in strikes.into_iter().enumerate() {
        if std::env::var("STRIKE").is_ok_and(|s| !s.split(',').any(|s| s == n.to_string())) {
            continue;
        }
        let begun = std::time::Instant::now();
        let rests = run(&bed, &store, Some(strike)).await;
        assert!(bed.faults().struck() > 0);
        println!(
            "{strike:?}: {} struck, {:?}",
            bed.faults().struck(),
            begun.elapsed()
        );
        assert_eq!(rests, wanted, "{strike:?}");
    }
}
