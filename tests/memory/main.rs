//! What the caches of a replica weigh: bytes for each object, counted by the allocator, after the real watches have
//! listed objects as an API server sends them.
//!
//! The recorded numbers are of 64-bit machines. A change of more than a tenth fails in either direction: a larger
//! number needs a reason, and a smaller one is recorded so that it stays.

#![allow(clippy::unwrap_used)]

mod api;
mod objects;

use std::alloc::System;

use cap::Cap;
use operating::cluster::caches::Caches;
use operating::cluster::watches;
use operating::tasks::Supervisor;
use tokio_util::sync::CancellationToken;

use api::Api;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Number of objects in a measurement. It is large, so that constant costs do not matter.
const COUNT: usize = 4_000;

/// Bytes kept of a managed Pod with two containers, in a ReplicaSet of ten Pods.
const POD: usize = 3_535;
/// Bytes kept of a managed Pod of a StatefulSet, with a volume of its own.
const STATEFUL_POD: usize = 3_670;
/// Bytes kept of an old ReplicaSet of a Deployment whose Pods are not managed.
const OLD_SET: usize = 601;
/// Bytes kept of a PodTransitionRule without claims whose status names ten Pods.
const RULE: usize = 4_052;

/// Number of hostile objects in a measurement: each has about a megabyte of text, to fill the memory of a replica.
const HOSTILE: usize = 8;
/// Upper bound for the bytes that a replica may keep of each hostile object.
const HOSTILE_KEPT: usize = 48 << 10;

/// The memory that one kind needs.
struct Weight {
    /// Bytes that the caches keep for each object.
    kept: usize,
    /// The most bytes that were in use for each object between two pages of the list.
    peak: usize,
}

/// Starts the watches against an API server with these objects, and waits until everything is listed. Returns the bytes
/// in use at the end and the largest number of bytes in use.
fn listed(api: Api) -> (usize, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let before = HEAP.allocated();
    let used = runtime.block_on(async {
        let (caches, stop) = (Caches::default(), CancellationToken::new());
        let supervisor = Supervisor::new(stop.clone());
        let (client, peak) = api.client(|| HEAP.allocated());
        watches::start_watches(&client, &caches, true, &supervisor);
        caches.index.wait_listed().await;
        for _ in 0..1_000 {
            tokio::task::yield_now().await; // the watches have begun
        }
        let now = HEAP.allocated();
        stop.cancel();
        (
            now - before,
            peak.load(std::sync::atomic::Ordering::Relaxed)
                .saturating_sub(before),
        )
    });
    drop(runtime);
    used
}

fn weigh(path: &'static str, count: usize, object: fn(usize) -> serde_json::Value) -> Weight {
    let (base, _) = listed(Api::default());
    let (all, peak) = listed(Api::default().with(path, count, object));
    Weight {
        kept: (all - base) / count,
        peak: peak.saturating_sub(base) / count,
    }
}

#[test]
fn cached_objects_weigh_what_is_recorded() {
    listed(Api::default()); // one-time initialisation
    let mut wrong = Vec::new();
    for (kind, path, object, recorded) in objects::ALL {
        let Weight { kept, peak } = weigh(path, COUNT, object);
        println!("{kind}: {kept} bytes kept, {peak} at most while listing; {recorded} recorded");
        if kept.abs_diff(recorded) * 10 > recorded {
            wrong.push(format!("{kind}: {kept} bytes, not {recorded}"));
        }
        // Between two pages, only the cache contents and their spare capacity may be in memory: neither the text of a
        // page, nor parts of objects that the cache drops.
        if peak * 2 > kept * 3 {
            wrong.push(format!(
                "{kind}: {peak} bytes while listing, of which {kept} are kept"
            ));
        }
    }
    for (kind, path, object) in objects::HOSTILE {
        let kept = weigh(path, HOSTILE, object).kept;
        println!("{kind}: {kept} bytes kept");
        if kept > HOSTILE_KEPT {
            wrong.push(format!("{kind}: {kept} bytes, more than {HOSTILE_KEPT}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
