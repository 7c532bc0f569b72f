//! One cluster for all tests of this program: stored as Kuperator left it, and taken over. Each test works on sets of
//! its own.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use operating::api::collaset::CollaSet;
use serde_json::Value;
use testbed::plane::audit::Event;
use testbed::{Bed, Scope, wait};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::store::{self, KINDS};
use crate::{derived, fixture};

/// How long the server must not have written for the take-over to be at its end.
const QUIET: Duration = Duration::from_secs(15);
/// How long nothing may be written after this.
const REST: Duration = Duration::from_secs(60);

/// The runtime of the replicas. The runtime of a test is unsuitable because it ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// Stored objects by kind and name, without `managedFields`.
pub type Objects = BTreeMap<(String, String), Value>;

/// The cluster after the take-over.
pub struct TakenOver {
    pub bed: Bed,
    /// The namespace of the dump.
    pub dumped: Namespace,
    /// The namespace of the phases that the dump does not contain.
    pub derived: Namespace,
}

/// A namespace before and after the take-over.
pub struct Namespace {
    name: String,
    /// Before the server started.
    pub before: Objects,
    /// After the take-over, and before a test changed something.
    pub after: Objects,
    /// The server's writes at the take-over.
    pub writes: Vec<Event>,
    /// The server's writes in a minute after the take-over.
    pub writes_at_rest: Vec<Event>,
}

impl TakenOver {
    pub fn scope(&self, namespace: &Namespace) -> Scope {
        Scope {
            client: self.bed.admin(),
            namespace: namespace.name.clone(),
        }
    }

    pub fn namespaces(&self) -> [&Namespace; 2] {
        [&self.dumped, &self.derived]
    }
}

pub async fn taken_over() -> &'static TakenOver {
    static CLUSTER: OnceCell<TakenOver> = OnceCell::const_new();
    let start = || async {
        let made = tokio::task::spawn_blocking(|| RUNTIME.block_on(take_over()));
        made.await.unwrap()
    };
    CLUSTER.get_or_init(start).await
}

async fn take_over() -> TakenOver {
    let bed = Bed::own().await;
    let scopes = [bed.scope("kuperator").await, bed.scope("derived").await];
    bed.without_server().await;
    let objects = [fixture::objects(), derived::objects()];
    let mut before = Vec::new();
    for (scope, objects) in scopes.iter().zip(objects) {
        store::store(scope, &objects).await;
        before.push(snapshot(scope).await);
    }
    let since = bed.audit_events().await.unwrap().len();
    bed.with_server().await;
    for scope in &scopes {
        until_observed(scope).await;
    }
    let at_rest_since = until_quiet(&bed, &scopes, since).await;
    let mut after = Vec::new();
    for scope in &scopes {
        after.push(snapshot(scope).await);
    }
    tokio::time::sleep(REST).await;
    let events = bed.audit_events().await.unwrap();
    let mut namespaces = scopes.into_iter().zip(before).zip(after);
    let mut next = || {
        let ((scope, before), after) = namespaces.next().unwrap();
        let writes = |events: &[Event]| {
            let is_write = |event: &&Event| event.is_write_of_server(&scope.namespace);
            events.iter().filter(is_write).cloned().collect()
        };
        Namespace {
            before,
            after,
            writes: writes(&events[since..at_rest_since]),
            writes_at_rest: writes(&events[at_rest_since..]),
            name: scope.namespace.clone(),
        }
    };
    let (dumped, derived) = (next(), next());
    TakenOver {
        bed,
        dumped,
        derived,
    }
}

/// Waits until the leader has looked at all sets. The Lease of the replicas before must run out first.
async fn until_observed(scope: &Scope) {
    let sets = scope.api::<CollaSet>();
    wait::until("a condition Ready of all sets", async || {
        let list = sets.list(&ListParams::default()).await.unwrap();
        let is_observed = |set: &CollaSet| {
            let conditions = set.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|c| c.type_ == "Ready")
        };
        list.items.iter().all(is_observed)
    })
    .await;
}

/// Waits until the server has not written for a while. Returns the number of requests until then.
async fn until_quiet(bed: &Bed, scopes: &[Scope], since: usize) -> usize {
    let mut last = usize::MAX;
    loop {
        let mut writes = 0;
        for scope in scopes {
            writes += bed
                .server_writes(&scope.namespace, since)
                .await
                .unwrap()
                .len();
        }
        if writes == last {
            return bed.audit_events().await.unwrap().len();
        }
        last = writes;
        tokio::time::sleep(QUIET).await;
    }
}

/// All objects of the namespace.
pub async fn snapshot(scope: &Scope) -> Objects {
    let mut all = Objects::new();
    for (_, kind) in KINDS {
        let api = store::api(scope, kind);
        for mut object in api.list(&ListParams::default()).await.unwrap() {
            object.metadata.managed_fields = None;
            let key = (kind.to_owned(), object.name_any());
            all.insert(key, serde_json::to_value(object).unwrap());
        }
    }
    all
}
