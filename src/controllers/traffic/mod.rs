//! Keeps the members of load balancers in step with the Pods of employers, such as Services, and marks the Pods
//! accordingly: a Pod is protected while traffic is on, and may be changed when traffic is off. The crate `traffic`
//! plans; this folder reads, calls and writes.
//!
//! | File | Purpose |
//! |---|---|
//! | `look` | one look at an employer: what should be, the calls, and the marks of its Pods |
//! | `look_calls` | the calls of a look, each within its limits |
//! | `look_result` | what an adapter is to an employer at a look, and what the look came to |
//! | `moves` | moves of employers from one adapter to another |
//! | `plan_clock` | the time of the plan, which never jumps |
//! | `call_limits` | bounds the calls of each adapter |
//! | `release` | ends the management of an employer: removes the marks of its Pods and its finalizer |
//! | `pods` | the Pods of an employer, and those that are gone |
//! | `mark_writes` | writes the marks of Pods |
//! | `employer_writes` | writes the finalizer, the report and the Events of an employer |
//! | `object_writes` | pauses between writes of employers that are refused or taken back |
//! | `write_history` | the last write of one thing, and the pause after it |
//! | `watched_pods` | which employers must see the end of a Pod |

mod call_limits;
mod employer_writes;
mod look;
mod look_calls;
mod look_result;
mod mark_writes;
mod moves;
mod object_writes;
mod plan_clock;
mod pods;
mod release;
mod watched_pods;
mod write_history;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info};
use traffic::plan::Memory;
use traffic::{Adapter, Control, Employer};

use super::ControllerContext;
use super::cache_waits::{TermStart, wait_for_pod_cache};
use crate::api::keys;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::traffic::slices;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::traffic::names::{EmployerName, SERVICE};
use crate::domain::traffic::report::EmployerReport;
use call_limits::CallLimits;
use look::Look;
use look_result::{FormerPlaces, LookResult, Role};
use mark_writes::MarkWrites;
use object_writes::ObjectWrites;
use plan_clock::PlanClock;
pub use watched_pods::WatchedPods;

/// The controller of one term.
pub struct TrafficController {
    context: Arc<ControllerContext>,
    memories: Mutex<HashMap<EmployerName, EmployerMemory>>,
    limits: CallLimits,
    clock: PlanClock,
    object_writes: ObjectWrites,
    watched: Arc<WatchedPods>,
    /// By kind of employers, so that a kind that can't be listed does not stop the others.
    term_starts: HashMap<String, TermStart>,
}

/// What is remembered of an employer between two looks.
#[derive(Default)]
struct EmployerMemory {
    /// UID of the employer. Another object of the same name begins anew.
    uid: String,
    /// What is known of the members, by adapter.
    plans: HashMap<String, Memory>,
    /// What each former adapter did with the Pods at its last look.
    places: HashMap<String, FormerPlaces>,
    /// The adapter at which all Pods that should serve have done so. A former one registers no Pod from then on.
    served: Option<String>,
    /// Pods with marks of this employer, as the last look saw them: their names, by UID. A Pod that is not managed any
    /// more leaves the cache, and must still be released.
    marked: BTreeMap<String, String>,
    /// The last writes of marks.
    mark_writes: MarkWrites,
    /// When the report was written last.
    reported: Option<Instant>,
}

impl TrafficController {
    /// Creates the controller of one term.
    pub fn new(context: Arc<ControllerContext>, watched: Arc<WatchedPods>) -> Arc<Self> {
        let starts = context.traffic.employers.kinds().map(|cache| {
            let mut paths = vec![cache.path];
            if cache.kind.kind == SERVICE {
                paths.push(slices::WATCH_PATH); // the slices of `endpoints` are those of Services
            }
            (cache.kind.kind.clone(), TermStart::for_paths(paths))
        });
        let clock = PlanClock::new((context.now)());
        Arc::new(TrafficController {
            clock,
            term_starts: starts.collect(),
            context,
            memories: Mutex::default(),
            limits: CallLimits::default(),
            object_writes: ObjectWrites::default(),
            watched,
        })
    }

    /// Looks at an employer.
    pub async fn reconcile(&self, name: EmployerName) -> ReconcileOutcome {
        let Some(cache) = self.context.traffic.employers.kind(&name.kind) else {
            return ReconcileOutcome::Done; // an employer of a program that is not this one
        };
        if !cache.is_listed() {
            return ReconcileOutcome::After(UNLISTED_RETRY); // the log says why the watch fails
        }
        match self.reconcile_listed(&name).await {
            Ok(outcome) | Err(outcome) => outcome,
        }
    }

    async fn reconcile_listed(
        &self,
        name: &EmployerName,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let Some(start) = self.term_starts.get(&name.kind) else {
            return Ok(ReconcileOutcome::Done);
        };
        let position = start.wait_until_current(&self.context, &name.namespace);
        wait_for_pod_cache(&self.context, position.await?).await?;
        let mut memory = self.memories.lock().remove(name).unwrap_or_default();
        let outcome = match self.look_or_release(name, &mut memory).await {
            Err(outcome) => self.report_problem(name, outcome, &mut memory).await,
            done => done,
        };
        memory.plans.values_mut().for_each(Memory::end_look);
        let is_known = self.context.traffic.employers.get(name).is_some();
        if is_known || !memory.marked.is_empty() || !memory.mark_writes.is_empty() {
            self.memories.lock().insert(name.clone(), memory);
        }
        outcome
    }

    async fn look_or_release(
        &self,
        name: &EmployerName,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let Some(employer) = self.context.traffic.employers.get(name) else {
            return self.release_pods_of_none(name, memory).await;
        };
        if memory.uid != employer.state.employer.uid {
            *memory = EmployerMemory {
                uid: employer.state.employer.uid.clone(),
                marked: std::mem::take(&mut memory.marked),
                ..EmployerMemory::default()
            };
        }
        let deleting = employer.state.employer.deleting;
        match (&employer.adapter, employer.managed) {
            (Ok(Some(named)), true) => {
                // An adapter that has never changed a member of the deleted employer is not asked.
                let is_new = deleting && self.is_new(&employer, named, memory);
                let used = is_new.then(|| self.adapter_in_use(&employer)).flatten();
                let named = used.as_ref().unwrap_or(named);
                self.look_at(&employer, named, None, memory).await
            }
            // What is registered stays as it is while the annotation is wrong.
            (Err(error), true) => match self.adapter_in_use(&employer) {
                Some(named) if deleting => {
                    self.look_at(&employer, &named, Some(error), memory).await
                }
                None if deleting => {
                    let names = moves::in_use(&employer).names();
                    let left: Vec<_> = names.map(str::to_owned).collect();
                    self.report_left_members(&employer, &left);
                    self.release_employer(&employer, memory).await
                }
                _ => {
                    let report = EmployerReport::of_error("", error);
                    let later = self.report_paced(&employer, &report, memory).await?;
                    Ok(later.map_or(ReconcileOutcome::Done, ReconcileOutcome::After))
                }
            },
            _ => self.release_employer(&employer, memory).await,
        }
    }

    async fn look_at(
        &self,
        employer: &Arc<CachedEmployer>,
        chosen: &NamedAdapter,
        wrong: Option<&String>,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let deleting = employer.state.employer.deleting;
        let mut employer = Arc::clone(employer);
        // The record names a new adapter from its first change on.
        let mut is_new = !deleting && self.is_new(&employer, chosen, memory);
        let is_ready = is_new || employer_writes::is_prepared(&employer, &chosen.name);
        if !deleting && (!is_ready || moves::lacks_adapter(&employer, &chosen.name, memory)) {
            employer = match self.prepare(&employer, &chosen.name, memory).await? {
                Some(prepared) => prepared,
                None => return self.report_unprepared(&employer, chosen, memory).await,
            };
            is_new = false;
        }
        let record = moves::in_use(&employer);
        let is_known =
            |name: &String| *name == chosen.name || record.names().any(|recorded| recorded == name);
        memory.plans.retain(|name, _| is_known(name)); // what was known in former times may be wrong
        memory.served.take_if(|served| *served != chosen.name);
        let formers = self.formers(&employer, chosen);
        memory
            .places
            .retain(|name, _| formers.usable.contains(name));
        let same = formers.same.first();
        let known = memory.plans.remove(&chosen.name);
        // What is known of its members under another name, such as lost calls.
        let known = known.or_else(|| memory.plans.remove(same?));
        let mut plan = known.unwrap_or_default();
        let role = Role::Present {
            moves: formers.hold(deleting),
            is_new,
        };
        let places = formers.places(&memory.places, deleting);
        let looked = self
            .look(&employer, chosen, &mut plan, (role, places), memory)
            .await;
        memory.plans.insert(chosen.name.clone(), plan);
        let mut result = looked?;
        // If it has nothing to change, the record must name it before a former one leaves.
        if result.begins || is_new && result.is_settled {
            let refused = match self.prepare(&employer, &chosen.name, memory).await {
                Ok(Some(prepared)) => {
                    employer = prepared;
                    result.wake = Some(MIN_RETRY);
                    None
                }
                Ok(None) => Some(self.refuse_unprepared(&employer, chosen)),
                Err(outcome) => Some(outcome),
            };
            result.is_settled = false;
            // The former ones go on in any case.
            if let Some(refused) = refused {
                self.add_former(&employer.name, &chosen.name, Err(refused), &mut result)?;
            }
        }
        for same in &formers.same {
            let forgotten = self.forget_same(&employer, same, memory).await;
            self.add_former(&employer.name, same, forgotten, &mut result)?;
        }
        // Another leader registers nobody again at a former one, only because it has not read twice.
        let seems_settled = result.is_settled;
        let settled = deleting || self.confirm_settled(&formers, chosen, &mut result, memory);
        if settled {
            memory.served = Some(chosen.name.clone());
        }
        // They go one after the other, and one that can't be read does not hold up the others. Those that do not go yet keep
        // their members as the Pods need.
        let retiring = formers.retiring(&memory.plans);
        for former in &formers.usable {
            let retires = settled && retiring == Some(former);
            let registers = !seems_settled && memory.served.as_ref() != Some(&chosen.name);
            let role = Role::Former { retires, registers };
            let looked = self.look_at_former(&employer, former, role, memory).await;
            self.add_former(&employer.name, former, looked, &mut result)?;
        }
        if let Some(error) = formers.unknown_error().filter(|_| !deleting) {
            result.summary.last_error.get_or_insert(error);
        }
        let hold = deleting && !formers.usable.is_empty();
        if let Some(error) = wrong {
            result.summary.last_error = Some(error.clone());
        }
        if deleting && result.is_clean && !hold {
            self.report_left_members(&employer, &formers.unknown);
            self.finish(&employer).await?;
            self.watched.set(&employer.name, HashSet::new());
            info!(
                employer = employer.name.key(),
                "all members are off the load balancer; the employer may go"
            );
            return Ok(ReconcileOutcome::Done);
        }
        result
            .summary
            .shift(self.clock.behind((self.context.now)()));
        let report = EmployerReport::of_plan(&chosen.name, result.summary);
        let later = self.report_paced(&employer, &report, memory).await?;
        let wake = result.wake.into_iter().chain(later).min();
        Ok(wake.map_or(ReconcileOutcome::Done, ReconcileOutcome::After))
    }

    /// The finalizer of an employer is gone in the moment in which it is written. Without it, the employer could go
    /// before its members.
    async fn report_unprepared(
        &self,
        employer: &CachedEmployer,
        chosen: &NamedAdapter,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let again = self.refuse_unprepared(employer, chosen);
        self.report_problem(&employer.name, again, memory).await
    }

    /// Keeps the reason for the report.
    fn refuse_unprepared(
        &self,
        employer: &CachedEmployer,
        chosen: &NamedAdapter,
    ) -> ReconcileOutcome {
        let error = format!(
            "the finalizer {} and the annotation {} are not stored as they are written; find the mutating webhook or \
             MutatingAdmissionPolicy that changes this object",
            keys::CLEAN_FINALIZER,
            keys::CONSIST_ADAPTER_IN_USE
        );
        debug!(adapter = chosen.name, "nothing is registered");
        self.object_writes.refuse(&employer.name, error);
        ReconcileOutcome::After(UNPREPARED_RETRY)
    }

    /// One look at the members of one adapter.
    async fn look(
        &self,
        employer: &CachedEmployer,
        named: &NamedAdapter,
        plan: &mut Memory,
        (role, formers): (Role, Vec<FormerPlaces>),
        memory: &mut EmployerMemory,
    ) -> Result<LookResult, ReconcileOutcome> {
        // What somebody else has registered goes as the Pods need, whoever manages the employer.
        let observes = named.adapter.settings().control == Control::Observes;
        let retires = matches!(role, Role::Former { retires: true, .. }) && !observes;
        let seen = Employer {
            deleting: employer.state.employer.deleting || retires,
            ..employer.state.employer.clone()
        };
        let look = Look {
            context: &self.context,
            limits: &self.limits,
            watched: &self.watched,
            employer,
            seen,
            named,
            clock: &self.clock,
            role,
            formers,
        };
        look.run(plan, &mut memory.marked, &mut memory.mark_writes)
            .await
    }

    /// Writes the report if it is new. While members wait, it changes often, and is written at most every
    /// [`REPORT_INTERVAL`], unless the adapter is another one or a failure begins or ends. Returns the time until it may be written.
    async fn report_paced(
        &self,
        employer: &CachedEmployer,
        report: &EmployerReport,
        memory: &mut EmployerMemory,
    ) -> Result<Option<Duration>, ReconcileOutcome> {
        if employer_writes::is_reported(employer, report) {
            return Ok(None);
        }
        let stored = employer_writes::stored_report(employer);
        let interval = match report.is_urgent_after(stored.as_ref()) {
            true => URGENT_INTERVAL,
            false => REPORT_INTERVAL,
        };
        let since = memory.reported.map(|at| at.elapsed());
        if let Some(since) = since.filter(|since| *since < interval) {
            return Ok(Some(interval.saturating_sub(since)));
        }
        memory.reported = Some(Instant::now());
        self.write_report(employer, report).await?;
        Ok(None)
    }

    /// After a look that has failed: tells users if the finalizer or the annotation of the employer is the cause.
    async fn report_problem(
        &self,
        name: &EmployerName,
        outcome: ReconcileOutcome,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let employer = self.context.traffic.employers.get(name);
        let (Some(employer), Some(problem)) = (employer, self.object_writes.take_problem(name))
        else {
            return Err(outcome);
        };
        let pause = problem.next.saturating_duration_since(Instant::now());
        self.report_failure(&employer, &problem.text, pause.max(MIN_RETRY), memory)
            .await
    }

    /// Reports why an employer can't be looked at or released. It is tried again after a pause.
    async fn report_failure(
        &self,
        employer: &CachedEmployer,
        error: &str,
        pause: Duration,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let chosen = employer.adapter.as_ref().ok().and_then(Option::as_ref);
        let chosen = chosen.map(|named| named.name.as_str());
        let adapter = chosen.or_else(|| moves::in_use(employer).present());
        let report = EmployerReport::of_error(adapter.unwrap_or_default(), error);
        let later = self.report_paced(employer, &report, memory).await?;
        let wake = later.map_or(pause, |later| later.min(pause));
        Ok(ReconcileOutcome::After(wake))
    }
}

/// The shortest pause before a refused write of an employer is repeated.
const MIN_RETRY: Duration = Duration::from_millis(50);
/// The pause before an employer is tried again whose kind can't be listed.
const UNLISTED_RETRY: Duration = Duration::from_secs(5);
/// The pause before the finalizer of an employer is written again that was not stored.
const UNPREPARED_RETRY: Duration = Duration::from_secs(16);
/// The least time between two reports of one employer with another adapter or another outcome.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two other reports of one employer.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
