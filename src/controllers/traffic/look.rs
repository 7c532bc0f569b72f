//! One look at an employer: calls the adapter until nothing is to be called now, and writes the marks of its Pods.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};
use traffic::plan::{
    LISTED, Mark, Memory, Next, Place, Summary, View, mark_in_move, marks, next_call, places,
};
use traffic::{Adapter, AdapterError, Applied, Changes, Control, Employer};

use super::super::ControllerContext;
use super::super::cache_waits::UNSYNCED_RETRY;
use super::call_limits::{CallLimits, CallPermit};
use super::mark_writes::{self, MarkResult, MarkWrites};
use super::plan_clock::PlanClock;
use super::pods::{self, UnknownPods};
use super::watched_pods::WatchedPods;
use crate::cluster::objects::cache_positions;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::traffic::slices;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;
use crate::domain::traffic::drain_seconds::asked_drain_time;
use crate::domain::traffic::pod_input::pod_input;
use crate::domain::traffic::pod_marks::PodMarks;
use crate::ledger::store::Uid;

/// The pause before a Pod that can't be read is read again.
const UNREADABLE_RETRY: Duration = Duration::from_secs(30);
/// The shortest pause between two looks.
const MIN_PAUSE: Duration = Duration::from_millis(50);

/// What one look needs.
pub struct Look<'a> {
    pub context: &'a ControllerContext,
    pub limits: &'a CallLimits,
    pub watched: &'a WatchedPods,
    pub employer: &'a CachedEmployer,
    /// The employer as the adapter sees it.
    pub seen: Employer,
    pub named: &'a NamedAdapter,
    /// The clock of the plan.
    pub clock: &'a PlanClock,
    /// What the adapter is to the employer.
    pub role: Role,
    /// What each former adapter does with the Pods, if this is the present one.
    pub formers: Vec<FormerPlaces>,
}

/// What a former adapter did with each Pod at its last look, by UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerPlaces(pub BTreeMap<String, Place>);

impl FormerPlaces {
    fn place(&self, uid: &str) -> Place {
        self.0.get(uid).copied().unwrap_or(Place::Unclear)
    }
}

/// What an adapter is to an employer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It manages the employer, and the marks of Pods follow it.
    Present {
        /// Whether other adapters may still send requests to Pods.
        moves: bool,
        /// Whether it had no members before this leader began the move.
        is_new: bool,
    },
    /// It managed the employer before. Perhaps the present one does not serve in its place yet.
    Former {
        /// Whether all its members go. Otherwise those stay that should serve.
        retires: bool,
        /// Whether Pods that should serve and do not are still registered: the present adapter has not served yet.
        registers: bool,
    },
}

/// What a look came to.
pub struct LookResult {
    /// The time until the next look, if nothing changes before.
    pub wake: Option<Duration>,
    /// The state of the members.
    pub summary: Summary,
    /// Whether no member is registered, and no Pod is marked.
    pub is_clean: bool,
    /// Whether every member that should serve does, as a read has told.
    pub is_settled: bool,
    /// What a former adapter does with each Pod.
    pub places: FormerPlaces,
}

impl LookResult {
    /// The result of a look that found nothing to do.
    pub fn with_clean(is_clean: bool) -> LookResult {
        LookResult {
            wake: None,
            summary: Summary::default(),
            is_clean,
            is_settled: false,
            places: FormerPlaces::default(),
        }
    }

    /// Adds what the former adapter with this name came to.
    pub fn add_former(&mut self, name: &str, former: LookResult) {
        // When its members have gone, Pods that waited for this may be released.
        let again = former.is_clean.then_some(UNSYNCED_RETRY);
        self.wake = self.wake.into_iter().chain(former.wake).chain(again).min();
        let (all, its) = (&mut self.summary, former.summary);
        all.draining += its.draining;
        all.failed += its.failed;
        all.waiting.extend(its.waiting);
        all.waiting.truncate(LISTED);
        all.next_try = all.next_try.into_iter().chain(its.next_try).min();
        let error = its.last_error;
        let error = error.map(|error| format!("adapter {name}, which managed it before: {error}"));
        all.last_error = all.last_error.take().or(error);
    }

    /// The result of a look that did nothing, because a Pod can't be read, so that nothing is known of its addresses.
    fn of_unreadable_pod(name: &str) -> LookResult {
        let error = format!(
            "Pod {name} can't be read, so nothing changes until it is gone or can be read; the log of the server says \
             what is wrong with it"
        );
        let mut result = LookResult::with_clean(false);
        result.wake = Some(UNREADABLE_RETRY);
        result.summary.pending = 1;
        result.summary.last_error = Some(error);
        result
    }
}

impl Look<'_> {
    /// Makes the calls that are due, and writes the marks. `marked` are the Pods with marks, as the last look saw them.
    pub async fn run(
        &self,
        memory: &mut Memory,
        marked: &mut BTreeMap<String, String>,
        writes: &mut MarkWrites,
    ) -> Result<LookResult, ReconcileOutcome> {
        let name = &self.employer.name;
        let mut pods = pods::pods_of(self.context, self.employer);
        marked.retain(|uid, _| !pods.contains_key(uid));
        if let Some(unreadable) = pods::read_whole_pods(self.context, &mut pods).await? {
            return Ok(LookResult::of_unreadable_pod(&unreadable));
        }
        let (lost, unread) = pods::read_lost_pods(self.context, name, marked).await?;
        for pod in lost {
            pods.insert(pod.metadata.uid.clone(), pod);
        }
        let mut view = self.view(&pods);
        self.add_unknown_pods(&mut view, &mut pods, memory).await?;
        memory.begin_look(&view, self.now());
        if self.expect(&view, &pods, memory, writes).await {
            let mut result = LookResult::with_clean(false);
            result.summary = Summary::of(&view, memory, self.now());
            result.wake = Some(MIN_PAUSE); // the cache has the Pods as they are now
            return Ok(result);
        }
        let mut wake = self.call(&mut view, &mut pods, memory).await?;
        self.watch(&view, memory);
        let mut summary = Summary::of(&view, memory, self.now());
        if let Err(error) = asked_drain_time(&self.seen.annotations) {
            summary.last_error.get_or_insert(error);
        }
        let has_marks = !self.is_former();
        let written = match has_marks {
            true => {
                let marks = self.permitted_marks(&view, memory);
                summary.add_held(&view, &marks);
                self.write_marks(&view, &pods, memory, &marks, writes).await
            }
            false => MarkResult::default(),
        };
        if let Some(error) = written.error {
            summary.last_error.get_or_insert(error);
        }
        let drained = self.refused_wake(&view, memory);
        wake = wake.into_iter().chain(written.again).chain(drained).min();
        let is_marked = |pod: &&Arc<Pod>| PodMarks::of(name, pod).any();
        let with_marks = pods.values().filter(is_marked);
        let with_marks = with_marks.map(|pod| &pod.metadata);
        *marked = unread;
        marked.extend(with_marks.map(|m| (m.uid.clone(), m.name.clone())));
        let observes = self.named.adapter.settings().control == Control::Observes;
        let no_members = match observes {
            true => has_marks || self.all_drained(&view, memory),
            false => memory.is_empty(),
        };
        let no_marks = !has_marks || marked.is_empty();
        let is_clean = no_members && no_marks;
        Ok(LookResult {
            wake,
            is_settled: summary.is_settled(&view, memory),
            places: match self.is_former() {
                true => FormerPlaces(places(&view, memory, self.now())),
                false => FormerPlaces::default(),
            },
            summary,
            is_clean,
        })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn view(&self, pods: &BTreeMap<String, Arc<Pod>>) -> View {
        let inputs = pods.values().map(|pod| {
            let selected = pod.is_managed() && self.employer.selects(pod);
            let protected = PodMarks::of(&self.employer.name, pod).protected;
            pod_input(pod, selected, protected)
        });
        let adapter = &*self.named.adapter;
        let drain = asked_drain_time(&self.seen.annotations).unwrap_or_default();
        let mut view = View::new(adapter, &self.seen, drain, inputs.collect());
        view.registers = match self.role {
            Role::Present { .. } => true,
            Role::Former { registers, .. } => registers,
        };
        view
    }

    fn is_former(&self) -> bool {
        matches!(self.role, Role::Former { .. })
    }

    /// Whether no protected Pod that should not serve may still get requests. If the adapter refuses the employer, it is not
    /// asked, and the Pods drain from the time when they went off.
    fn all_drained(&self, view: &View, memory: &Memory) -> bool {
        if view.refused.is_some() {
            return self.refused_drain(view, memory).is_zero();
        }
        let marks = marks(view, memory, self.now());
        view.off_pods()
            .all(|uid| marks.get(uid) == Some(&Mark::Release))
    }

    /// How long the last of the Pods that are off still drains at an adapter that refuses the employer.
    fn refused_drain(&self, view: &View, memory: &Memory) -> Duration {
        let now = self.now();
        let left = view.off_pods().map(|uid| {
            let turned = memory.turned_at(uid).unwrap_or(now);
            let passed = Duration::try_from(now.duration_since(turned)).unwrap_or_default();
            view.drain_time.saturating_sub(passed)
        });
        left.max().unwrap_or_default()
    }

    /// When a former adapter that refuses the employer has nothing to drain any more.
    fn refused_wake(&self, view: &View, memory: &Memory) -> Option<Duration> {
        let waits = self.is_former() && view.refused.is_some();
        let left = waits.then(|| self.refused_drain(view, memory));
        left.filter(|left| !left.is_zero())
    }

    /// Makes the calls that are due. Returns the time until the next look.
    async fn call(
        &self,
        view: &mut View,
        pods: &mut BTreeMap<String, Arc<Pod>>,
        memory: &mut Memory,
    ) -> Result<Option<Duration>, ReconcileOutcome> {
        let (mut calls, mut observed) = (0, false);
        loop {
            let now = self.now();
            let next = next_call(view, memory, calls, observed, now);
            if let Next::Wait(until) = next {
                let pause = |until: Timestamp| {
                    let pause = until.duration_since(now);
                    Duration::try_from(pause).unwrap_or_default().max(MIN_PAUSE)
                };
                return Ok(until.map(pause));
            }
            let _permit = match self.take_call(view) {
                Ok(permit) => permit,
                Err(wait) => return Ok(Some(wait.max(MIN_PAUSE))),
            };
            memory.begin_call(calls == 0, now);
            match next {
                Next::Observe => {
                    self.observe(view, memory, now).await;
                    observed = true;
                    self.add_unknown_pods(view, pods, memory).await?;
                }
                Next::Apply(changes) => {
                    if !self.context.leadership.is_leading() {
                        return Err(ReconcileOutcome::Retry);
                    }
                    self.apply(view, memory, &changes).await;
                }
                Next::Wait(_) => {}
            }
            calls += 1;
        }
    }

    fn take_call(&self, view: &View) -> Result<Option<CallPermit>, Duration> {
        if view.settings.observes_for_free {
            return Ok(None);
        }
        let (adapter, per_second) = (&self.named.name, view.settings.calls_per_second);
        let taken = self
            .limits
            .take(adapter, &self.employer.name, per_second, Instant::now());
        taken.map(Some)
    }

    async fn observe(&self, view: &View, memory: &mut Memory, began: Timestamp) {
        let pods: Vec<_> = view.pods.values().map(|input| input.pod.clone()).collect();
        let observed = async {
            if view.settings.observes_for_free && memory.awaits_absence(view) {
                self.wait_for_slices().await?;
            }
            self.named.adapter.observe(&self.seen, &pods).await
        };
        let result = self.bounded(view, observed).await.and_then(|result| result);
        if !view.settings.observes_for_free {
            self.count("observe", result.as_ref().err());
        }
        memory.observed(view, result, began, self.now());
    }

    /// Waits until the cache has the EndpointSlices as they are now. The cache can be older than a Pod that has just
    /// turned, and then tells what was true before the Pod was on traffic.
    async fn wait_for_slices(&self) -> Result<(), AdapterError> {
        let registry = &self.context.watch_registry;
        let paths = [slices::WATCH_PATH];
        let positions = cache_positions::read_positions(&self.context.client, registry, &paths);
        let positions = positions.await.map_err(|error| {
            AdapterError::Transient(format!("the EndpointSlices can't be read: {error}"))
        })?;
        positions.wait_reached().await;
        Ok(())
    }

    async fn apply(&self, view: &View, memory: &mut Memory, changes: &Changes) {
        debug!(
            register = changes.register.len(),
            drain = changes.drain.len(),
            deregister = changes.deregister.len(),
            "changing members"
        );
        let call = self.named.adapter.apply(&self.seen, changes);
        let applied: Applied = match self.bounded(view, call).await {
            Ok(applied) => applied,
            Err(error) => changes.all_failed(&error),
        };
        let error = applied.values().find_map(|result| result.as_ref().err());
        self.count("apply", error);
        memory.applied(view, changes, applied, self.now());
    }

    /// Awaits a call of the adapter for as long as its settings allow. A panic of an adapter is a failed call.
    async fn bounded<T>(
        &self,
        view: &View,
        call: impl Future<Output = T>,
    ) -> Result<T, AdapterError> {
        let limit = view.settings.timeout;
        let call = AssertUnwindSafe(call).catch_unwind();
        match timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => {
                let text = format!(
                    "adapter {} has panicked; see the log of the server",
                    self.named.name
                );
                warn!(
                    employer = self.employer.name.key(),
                    adapter = self.named.name,
                    "an adapter has panicked"
                );
                Err(AdapterError::Transient(text))
            }
            Err(_) => {
                let text = format!("no answer within {} s", limit.as_secs_f64());
                Err(AdapterError::Transient(text))
            }
        }
    }

    fn count(&self, call: &'static str, error: Option<&AdapterError>) {
        if let Some(error) = error {
            debug!(call, %error, "a call of an adapter failed");
        }
        let outcome = match error {
            None => "ok",
            // Only what fewer calls would help against: the metric shows whether a quota is too small.
            Some(AdapterError::Throttled { .. }) => "throttled",
            Some(_) => "failed",
        };
        let counters = &self.context.traffic.counters;
        counters.count_call(&self.named.name, call, outcome);
    }

    /// Asks the API server about the Pods behind members that the cache does not know.
    async fn add_unknown_pods(
        &self,
        view: &mut View,
        pods: &mut BTreeMap<String, Arc<Pod>>,
        memory: &Memory,
    ) -> Result<(), ReconcileOutcome> {
        let members = memory.members_of_unknown_pods(view);
        if members.is_empty() {
            return Ok(());
        }
        let namespace = &self.employer.name.namespace;
        let UnknownPods { gone, present } =
            pods::read_unknown_pods(self.context, namespace, &members).await?;
        if !present.is_empty() {
            for pod in present {
                pods.insert(pod.metadata.uid.clone(), pod);
            }
            let known = std::mem::take(&mut view.gone);
            *view = self.view(pods);
            view.gone = known;
        }
        view.gone.extend(gone);
        Ok(())
    }

    /// Remembers which Pods this employer must see the end of.
    fn watch(&self, view: &View, memory: &Memory) {
        if !self.is_former() {
            let registered = memory.members_of_unknown_pods(view);
            let registered = registered.iter().map(|member| member.pod.uid.as_str());
            let all = view.pods.keys().map(String::as_str).chain(registered);
            self.watched
                .set(&self.employer.name, all.map(Uid::from).collect());
        }
    }

    /// Lets Pods that do not serve yet wait for traffic. This comes before the calls, which can take long: such a Pod would
    /// become available meanwhile. Returns whether a Pod has changed.
    async fn expect(
        &self,
        view: &View,
        pods: &BTreeMap<String, Arc<Pod>>,
        memory: &Memory,
        writes: &mut MarkWrites,
    ) -> bool {
        if self.is_former() {
            return false;
        }
        let keep = |uid: &String| (uid.clone(), Mark::Keep(String::new()));
        let marks = pods.keys().map(keep).collect();
        let result = self.write_marks(view, pods, memory, &marks, writes).await;
        result.written > 0
    }

    /// What the plan permits for each Pod, by UID.
    fn permitted_marks(&self, view: &View, memory: &Memory) -> BTreeMap<String, Mark> {
        let marks = marks(view, memory, self.now());
        let Role::Present {
            moves: true,
            is_new,
        } = self.role
        else {
            return marks;
        };
        let in_move = |(uid, mark): (String, Mark)| {
            let formers: Vec<_> = self
                .formers
                .iter()
                .map(|former| former.place(&uid))
                .collect();
            let mark = mark_in_move(view, memory, &uid, mark, &formers, is_new);
            (uid, mark)
        };
        marks.into_iter().map(in_move).collect()
    }

    async fn write_marks(
        &self,
        view: &View,
        pods: &BTreeMap<String, Arc<Pod>>,
        memory: &Memory,
        marks: &BTreeMap<String, Mark>,
        writes: &mut MarkWrites,
    ) -> MarkResult {
        let planned = (view, memory, marks);
        let name = &self.employer.name;
        let result =
            mark_writes::write_marks(self.context, name, pods, planned, self.now(), writes).await;
        let counters = &self.context.traffic.counters;
        for took in &result.drained {
            counters.observe_drained(&self.named.name, *took);
        }
        for took in &result.served {
            counters.observe_served(&self.named.name, *took);
        }
        result
    }
}
