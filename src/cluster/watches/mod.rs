//! The watches of this replica: the kinds that are watched, and what each watch feeds. Only this module starts watches.

mod disruptionbudgets;
mod namespaces;
mod objects;
mod owners;
mod pods;
pub mod registration;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::Client;

use super::caches::Caches;
use super::following;
use super::index::NamespaceFacts;
use super::kind::Kind;
use super::objects::{CachedKind, ClaimObject, PoolObject, RevisionObject, SetObject};
use super::pulse::Felt;
use super::watch::{self, CatchUp, Sink, Source};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::disruptionbudget::DisruptionBudget;
use crate::domain::pod::Pod;
use crate::tasks::Supervisor;

use disruptionbudgets::Budgets;
pub(crate) use namespaces::Namespaces;
use objects::{CacheSink, Sets};
use owners::Owned;
pub(crate) use owners::Owners;
pub(crate) use pods::Pods;
pub(crate) use rules::Rules;

/// Starts every watch but those of the webhook configurations ([`registration::start`]). Returns the handle that lists the
/// Pods again. Without `collasets`, kinds that only the controller of CollaSets reads are not watched.
pub fn start(
    client: &Client,
    caches: &Caches,
    collasets: bool,
    supervisor: &Supervisor,
) -> CatchUp {
    let start = Start {
        client,
        caches,
        supervisor,
    };
    let pods = Source {
        labels: Some("kusionstack.io/control=true"),
        seconds: following::SECONDS,
        ..Source::all(Kind::Pod.path())
    };
    let catch_up = CatchUp::default();
    start.pods(pods, catch_up.clone());
    let rules = Source {
        seconds: following::SECONDS,
        ..Source::all(Kind::PodTransitionRule.path())
    };
    start.watch::<PodTransitionRule, _>(rules, Rules(caches.clone()));
    let namespaces = Source::all(Kind::Namespace.path());
    start.watch::<NamespaceFacts, _>(namespaces, Namespaces(caches.clone()));
    for kind in Kind::OWNERS {
        match kind {
            Kind::CollaSet => start.collasets(),
            _ => start.watch::<Owned, _>(Source::all(kind.path()), Owners::new(caches, kind)),
        }
    }
    if collasets {
        start.objects::<RevisionObject>();
        start.objects::<ClaimObject>();
        start.objects::<PoolObject>();
    }
    let budgets = Source::all(Kind::PodDisruptionBudget.path());
    start.watch::<DisruptionBudget, _>(budgets, Budgets(caches.clone()));
    catch_up
}

/// What every watch is started with.
struct Start<'a> {
    client: &'a Client,
    caches: &'a Caches,
    supervisor: &'a Supervisor,
}

impl Start<'_> {
    fn watch<T: Send + 'static, S: Sink<T>>(&self, source: Source, sink: S) {
        self.watch_with(source, sink, CatchUp::default());
    }

    fn watch_with<T: Send + 'static, S: Sink<T>>(
        &self,
        source: Source,
        sink: S,
        catch_up: CatchUp,
    ) {
        let (client, caches) = (self.client, self.caches);
        spawn::<T, _>(
            client,
            caches,
            source,
            Arc::new(sink),
            catch_up,
            self.supervisor,
        );
    }

    fn pods(&self, source: Source, catch_up: CatchUp) {
        self.watch_with::<Pod, _>(source, Pods::new(self.caches), catch_up);
    }

    /// The watch of CollaSets feeds both the index, which counts their Pods, and the cache of their controller.
    fn collasets(&self) {
        let sets = Sets {
            budget: Owners::new(self.caches, Kind::CollaSet),
            cache: CacheSink::new(self.caches),
        };
        self.watch::<SetObject, _>(Source::all(Kind::CollaSet.path()), sets);
    }

    fn objects<W: CachedKind>(&self) {
        let source = Source {
            labels: W::LABELS,
            ..Source::all(W::KIND.path())
        };
        self.watch::<W, _>(source, CacheSink::<W>::new(self.caches));
    }
}

/// Starts one watch; `caches` keeps its pulse.
fn spawn<T, S>(
    client: &Client,
    caches: &Caches,
    source: Source,
    sink: Arc<S>,
    catch_up: CatchUp,
    supervisor: &Supervisor,
) where
    T: Send + 'static,
    S: Sink<T>,
{
    let pulse = caches.pulses.add(source.path, catch_up.clone());
    let task = format!("the watch of {}", pulse.resource());
    let stop = supervisor.stop().clone();
    let sink = Arc::new(Felt { sink, pulse });
    let watch = watch::run::<T, _>(
        client.clone(),
        source,
        sink,
        catch_up,
        caches.index.timeline.clone(),
        stop,
    );
    supervisor.spawn_supervised(task, watch);
}
