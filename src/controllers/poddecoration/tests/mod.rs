#![allow(clippy::unwrap_used, clippy::panic)]

mod runs;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};

use super::PodDecorationController;
use super::apply::NextStep;
use super::execution::Execution;
use super::memory::DecorationMemory;
use crate::api::keys;
use crate::cluster::objects::{CachedDecoration, CachedKind, CollaSetObject, DecorationObject};
use crate::cluster::work_queue::ReconcileOutcome;
use crate::controllers::decoration_board::DecorationBoard;
use crate::controllers::{ControllerContext, ControllerStats, Queues};
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::Decoration;
use crate::domain::decoration::plan::{DecorationPlan, RevisionWrite};

const DECORATION: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/poddecorations/log";
const SET: &str = "/apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web";
const REVISIONS: &str = "/apis/apps/v1/namespaces/n/controllerrevisions";
/// The longest backoff of a refused write.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// A PodDecoration, an API server that stores it, and the controller.
struct Fixture {
    api: FakeApi,
    context: Arc<ControllerContext>,
    memory: DecorationMemory,
    board: Arc<DecorationBoard>,
    queues: Arc<Queues>,
    controller: Arc<PodDecorationController>,
}

impl Fixture {
    fn new() -> Fixture {
        let api = FakeApi::default();
        let context = ControllerContext::at_epoch(api.client());
        context.index.decision_watches.trust_for_a_year();
        let board = Arc::<DecorationBoard>::default();
        let queues = ControllerStats::default().begin_term();
        let controller = PodDecorationController::new(
            Arc::clone(&context),
            Arc::clone(&board),
            Arc::clone(&queues),
        );
        let fixture = Fixture {
            api,
            context,
            memory: DecorationMemory::new("pd"),
            board,
            queues,
            controller,
        };
        fixture.put_decoration(json!({}));
        fixture
    }

    /// Stores the PodDecoration with these changes, and puts it into the cache.
    fn put_decoration(&self, change: Value) {
        let mut object = json!({
            "metadata": { "namespace": "n", "name": "log", "uid": "pd", "generation": 1 },
            "spec": { "selector": {}, "template": { "tolerations": [{ "key": "a" }] } },
        });
        json_patch::merge(&mut object, &change);
        self.api.put(DECORATION, object);
        self.cache_object::<DecorationObject>(DECORATION);
    }

    /// Puts an object of the API server into its cache, as the watch does.
    fn cache_object<W: CachedKind>(&self, path: &str) {
        let object = self.stored(path).to_string();
        let object: W = serde_json::from_str(&object).unwrap();
        W::object_cache(&self.context.objects).apply(object.object_key(), object.into_cached());
    }

    /// An object of the API server; null if it is not stored.
    fn stored(&self, path: &str) -> Value {
        let state = self.api.0.lock();
        state.objects.get(path).cloned().unwrap_or_default()
    }

    fn cached(&self) -> Option<Arc<CachedDecoration>> {
        self.context.objects.decorations.get("n", "log")
    }

    async fn make_next_write(&self, plan: &DecorationPlan) -> NextStep {
        let cached = self.cached().unwrap();
        let execution = Execution {
            context: &self.context,
            memory: &self.memory,
            object: &cached.object,
        };
        execution.make_next_write(plan).await
    }

    fn refuse(&self, of: &'static str, done: bool) {
        self.api.refuse(Some(Refusal {
            of,
            code: 500,
            message: "no space left",
            done,
        }));
    }
}

fn revision(data: Value) -> Arc<Revision> {
    Arc::new(Revision {
        name: "log-1".into(),
        revision: 1,
        data,
        ..Revision::default()
    })
}

fn creation_plan() -> DecorationPlan {
    DecorationPlan {
        revision: Some(RevisionWrite::Create(revision(json!({ "spec": 1 })))),
        ..DecorationPlan::default()
    }
}
