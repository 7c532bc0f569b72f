//! Starts the watches of this replica, and connects each watch with the cache that it fills. Only this module starts
//! watches.

mod disruption_budgets;
mod namespaces;
mod objects;
mod owners;
mod pods;
pub mod registration;
mod rules;
#[cfg(test)]
mod tests;
mod traffic;

use std::sync::Arc;

use kube::Client;

use super::caches::Caches;
use super::index::NamespaceFacts;
use super::kind::WatchedKind;
use super::objects::{
    CachedKind, CollaSetObject, DecorationObject, JobObject, PvcObject, ResourceContextObject,
    RevisionObject,
};
use super::traffic::slices::{self, SliceObject};
use super::traffic::{EmployerObject, Traffic, endpoints};
use super::watch::{self, CatchUpSignal, Source, WatchSink};
use super::watch_health::MonitoredSink;
use super::watch_trust;
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::disruption_budget::DisruptionBudget;
use crate::domain::pod::Pod;
use crate::tasks::Supervisor;

use disruption_budgets::DisruptionBudgetSink;
pub(crate) use namespaces::NamespaceSink;
use objects::{CacheSink, CollaSetSink};
pub(crate) use owners::OwnerSink;
use owners::OwnerUpdate;
pub(crate) use pods::PodSink;
pub(crate) use rules::RuleSink;
use traffic::{EmployerSink, SliceSink};

/// Starts every watch except those of the webhook configurations ([`registration::start_registration_watches`]).
/// Returns the signal that asks the Pod watch to catch up. Without `collasets`, the kinds that only the controllers of
/// CollaSets, PodDecorations and OperationJobs read are not watched.
pub fn start_watches(
    client: &Client,
    caches: &Caches,
    collasets: bool,
    supervisor: &Supervisor,
) -> CatchUpSignal {
    let start = WatchStarter {
        client,
        caches,
        supervisor,
    };
    let pods = Source {
        labels: Some(keys::CONTROL_SELECTOR),
        seconds: watch_trust::WATCH_TIMEOUT_SECONDS,
        ..Source::from_path(WatchedKind::Pod.path())
    };
    let catch_up = CatchUpSignal::default();
    start.add_pod_watch(pods, catch_up.clone());
    let rules = Source {
        seconds: watch_trust::WATCH_TIMEOUT_SECONDS,
        ..Source::from_path(WatchedKind::PodTransitionRule.path())
    };
    start.add_watch::<PodTransitionRule, _>(rules, RuleSink(caches.clone()));
    let namespaces = Source::from_path(WatchedKind::Namespace.path());
    start.add_watch::<NamespaceFacts, _>(namespaces, NamespaceSink(caches.clone()));
    for kind in WatchedKind::OWNER_KINDS {
        match kind {
            WatchedKind::CollaSet => start.add_collaset_watches(),
            _ => start.add_watch::<OwnerUpdate, _>(
                Source::from_path(kind.path()),
                OwnerSink::new(caches, kind),
            ),
        }
    }
    if collasets {
        start.add_object_watch::<RevisionObject>();
        start.add_object_watch::<PvcObject>();
        start.add_object_watch::<ResourceContextObject>();
        start.add_object_watch::<DecorationObject>();
        start.add_object_watch::<JobObject>();
    }
    let budgets = Source::from_path(WatchedKind::PodDisruptionBudget.path());
    start.add_watch::<DisruptionBudget, _>(budgets, DisruptionBudgetSink(caches.clone()));
    catch_up
}

/// Starts the watches of ResourceConsist: of the kinds of employers, and of EndpointSlices. Nothing is watched without
/// adapters.
pub fn start_traffic_watches(
    client: &Client,
    caches: &Caches,
    traffic: &Arc<Traffic>,
    supervisor: &Supervisor,
) {
    let start = WatchStarter {
        client,
        caches,
        supervisor,
    };
    for cache in traffic.employers.kinds() {
        let sink = EmployerSink {
            caches: caches.clone(),
            traffic: Arc::clone(traffic),
            kind: cache.kind.kind.clone(),
        };
        start.add_watch::<EmployerObject, _>(Source::from_path(cache.path), sink);
    }
    if traffic.adapters.get(endpoints::NAME).is_some() {
        let sink = SliceSink {
            caches: caches.clone(),
            traffic: Arc::clone(traffic),
        };
        let source = Source::from_path(slices::WATCH_PATH);
        start.add_watch::<SliceObject, _>(source, sink);
    }
}

/// The arguments with which every watch is started.
struct WatchStarter<'a> {
    client: &'a Client,
    caches: &'a Caches,
    supervisor: &'a Supervisor,
}

impl WatchStarter<'_> {
    fn add_watch<T: Send + 'static, S: WatchSink<T>>(&self, source: Source, sink: S) {
        self.add_watch_with(source, sink, CatchUpSignal::default());
    }

    fn add_watch_with<T: Send + 'static, S: WatchSink<T>>(
        &self,
        source: Source,
        sink: S,
        catch_up: CatchUpSignal,
    ) {
        let (client, caches) = (self.client, self.caches);
        spawn_watch::<T, _>(
            client,
            caches,
            source,
            Arc::new(sink),
            catch_up,
            self.supervisor,
        );
    }

    fn add_pod_watch(&self, source: Source, catch_up: CatchUpSignal) {
        self.add_watch_with::<Pod, _>(source, PodSink::new(self.caches), catch_up);
    }

    /// The watch of CollaSets fills both the index, which counts their Pods, and the cache of their controller.
    fn add_collaset_watches(&self) {
        let sets = CollaSetSink {
            budget: OwnerSink::new(self.caches, WatchedKind::CollaSet),
            cache: CacheSink::new(self.caches),
        };
        self.add_watch::<CollaSetObject, _>(Source::from_path(WatchedKind::CollaSet.path()), sets);
    }

    fn add_object_watch<W: CachedKind>(&self) {
        let source = Source {
            labels: W::LABEL_SELECTOR,
            ..Source::from_path(W::KIND.path())
        };
        self.add_watch::<W, _>(source, CacheSink::<W>::new(self.caches));
    }
}

/// Starts one watch, and registers its health in `caches`.
fn spawn_watch<T, S>(
    client: &Client,
    caches: &Caches,
    source: Source,
    sink: Arc<S>,
    catch_up: CatchUpSignal,
    supervisor: &Supervisor,
) where
    T: Send + 'static,
    S: WatchSink<T>,
{
    let health = caches
        .watch_registry
        .register_watch(source.path, catch_up.clone());
    let task = format!("the watch of {}", health.resource());
    let stop = supervisor.stop().clone();
    let sink = Arc::new(MonitoredSink { sink, health });
    let watch = watch::run_watch::<T, _>(
        client.clone(),
        source,
        sink,
        catch_up,
        caches.index.etcd_history.clone(),
        stop,
    );
    supervisor.spawn_supervised(task, watch);
}
