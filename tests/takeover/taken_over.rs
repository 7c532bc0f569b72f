//! One cluster for all tests of this program: stored as Kuperator left it, and taken over. Each test works on sets of
//! its own.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::Value;
use testbed::plane::audit::Event;
use testbed::{Bed, Scope};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::fixture;
use crate::store::{self, KINDS};

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
    pub namespace: String,
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
    pub fn scope(&self) -> Scope {
        Scope {
            client: self.bed.admin(),
            namespace: self.namespace.clone(),
        }
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
    let scope = bed.scope("kuperator").await;
    bed.without_server().await;
    store::store(&scope, &fixture::objects()).await;
    let before = snapshot(&scope).await;
    let since = bed.audit_events().await.unwrap().len();
    bed.with_server().await;
    let writes = until_quiet(&bed, &scope.namespace, since).await;
    let after = snapshot(&scope).await;
    let since = bed.audit_events().await.unwrap().len();
    tokio::time::sleep(REST).await;
    let writes_at_rest = bed.server_writes(&scope.namespace, since).await.unwrap();
    TakenOver {
        namespace: scope.namespace,
        bed,
        before,
        after,
        writes,
        writes_at_rest,
    }
}

/// Waits until the server has not written for a while. Returns its writes.
async fn until_quiet(bed: &Bed, namespace: &str, since: usize) -> Vec<Event> {
    let mut last = usize::MAX;
    loop {
        let writes = bed.server_writes(namespace, since).await.unwrap();
        if writes.len() == last {
            return writes;
        }
        last = writes.len();
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
