//! One look at an employer: calls the adapter until nothing is to be called now, and writes the marks of its Pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use traffic::plan::{
    Mark, Memory, Summary, View, all_drained, mark_in_move, marks, places, refused_drain, unproven,
};
use traffic::{Adapter, Control, Employer};

use super::super::ControllerContext;
use super::super::cache_waits::UNSYNCED_RETRY;
use super::call_limits::CallLimits;
use super::look_result::{FormerPlaces, LookResult, MIN_PAUSE, Role};
use super::mark_writes::{self, MarkResult, MarkWrites};
use super::plan_clock::PlanClock;
use super::pods::{self, UnknownPods};
use super::watched_pods::WatchedPods;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;
use crate::domain::traffic::drain_seconds::asked_drain_time;
use crate::domain::traffic::pod_input::pod_input;
use crate::domain::traffic::pod_marks::PodMarks;
use crate::ledger::store::Uid;

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
        let calls = self.call(&mut view, &mut pods, memory).await?;
        let mut wake = calls.wake;
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
        // The former adapters are looked at after this, and their answer decides about marks.
        let mut formers = self.formers.iter();
        let outdated = formers.any(|former| former.is_outdated(memory));
        let outdated = outdated.then_some(UNSYNCED_RETRY);
        let others = written.again.into_iter().chain(drained).chain(outdated);
        wake = wake.into_iter().chain(others).min();
        let is_marked = |pod: &&Arc<Pod>| PodMarks::of(name, pod).any();
        let with_marks = pods.values().filter(is_marked);
        let with_marks = with_marks.map(|pod| &pod.metadata);
        *marked = unread;
        marked.extend(with_marks.map(|m| (m.uid.clone(), m.name.clone())));
        let observes = self.named.adapter.settings().control == Control::Observes;
        let no_members = match observes {
            true => has_marks || all_drained(&view, memory, self.now()),
            false => memory.is_empty(),
        };
        let no_marks = !has_marks || marked.is_empty();
        let is_clean = no_members && no_marks;
        Ok(LookResult {
            wake,
            is_settled: summary.is_settled(&view, memory),
            unproven: unproven(&view, memory),
            begins: calls.begins,
            places: match self.is_former() {
                true => FormerPlaces(places(&view, memory, self.now())),
                false => FormerPlaces::default(),
            },
            summary,
            is_clean,
        })
    }

    pub(super) fn now(&self) -> Timestamp {
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

    /// When a former adapter that refuses the employer has nothing to drain any more.
    fn refused_wake(&self, view: &View, memory: &Memory) -> Option<Duration> {
        let waits = self.is_former() && view.refused.is_some();
        let left = waits.then(|| refused_drain(view, memory, self.now()));
        left.filter(|left| !left.is_zero())
    }

    /// Asks the API server about the Pods behind members that the cache does not know.
    pub(super) async fn add_unknown_pods(
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
                .map(|former| former.place(view, memory, &uid))
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
        let moves = matches!(self.role, Role::Present { moves: true, .. });
        let (context, now) = (self.context, self.now());
        let result =
            mark_writes::write_marks(context, name, pods, planned, moves, now, writes).await;
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
