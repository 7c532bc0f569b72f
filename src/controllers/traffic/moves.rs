//! Moves of employers from one adapter to another: the new one registers all members before the former one removes its
//! own.

use std::collections::HashMap;

use tokio::time::Instant;
use traffic::plan::Memory;
use traffic::{Adapter, Control};

use super::super::cache_waits::UNSYNCED_RETRY;
use super::employer_writes::has_finalizer;
use super::look_result::{FormerPlaces, LookResult, Role};
use super::{EmployerMemory, MIN_RETRY, TrafficController};
use crate::api::keys;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::names::EmployerName;

/// Whether members are registered at an adapter that the record does not name: somebody has written an earlier record.
/// Whoever removes the record forgets these adapters.
pub(super) fn lacks_adapter(
    employer: &CachedEmployer,
    chosen: &str,
    memory: &EmployerMemory,
) -> bool {
    let record = in_use(employer);
    let is_known = |name: &str| name == chosen || record.names().any(|recorded| recorded == name);
    let mut plans = memory.plans.iter();
    record.present().is_some()
        && plans.any(|(name, plan)| plan.may_have_members() && !is_known(name))
}

/// The record of an employer.
pub(super) fn in_use(employer: &CachedEmployer) -> AdapterInUse<'_> {
    AdapterInUse::of(&employer.state.employer.annotations)
}

impl TrafficController {
    /// The first adapter that may have registered members and is still configured.
    pub(super) fn adapter_in_use(&self, employer: &CachedEmployer) -> Option<NamedAdapter> {
        let mut names = in_use(employer).names();
        names.find_map(|name| self.usable(employer, name)).cloned()
    }

    /// The adapters whose members must go, because `chosen` manages the employer now.
    pub(super) fn formers(&self, employer: &CachedEmployer, chosen: &NamedAdapter) -> Formers {
        let backend = chosen.adapter.backend();
        let mut formers = Formers::default();
        for name in in_use(employer).formers(&chosen.name) {
            let list = match self.usable(employer, name) {
                None => &mut formers.unknown,
                Some(former) if !backend.is_empty() && former.adapter.backend() == backend => {
                    &mut formers.same
                }
                Some(_) => &mut formers.usable,
            };
            list.push(name.to_owned());
        }
        formers
    }

    /// Whether an adapter has never registered a member of an employer that is managed already: another one has managed it,
    /// and the record names only that one.
    pub(super) fn is_new(
        &self,
        employer: &CachedEmployer,
        chosen: &NamedAdapter,
        memory: &EmployerMemory,
    ) -> bool {
        let record = in_use(employer);
        let is_listed = record.names().any(|name| name == chosen.name);
        let observes = chosen.adapter.settings().control == Control::Observes;
        let same = !self.formers(employer, chosen).same.is_empty();
        let plan = memory.plans.get(&chosen.name);
        let has_members = plan.is_some_and(Memory::may_have_members);
        let is_moved = record.present().is_some() && !is_listed && has_finalizer(employer);
        is_moved && !observes && !same && !has_members
    }

    /// Whether the present adapter serves in place of the former ones, as a second read has told.
    pub(super) fn confirm_settled(
        &self,
        formers: &Formers,
        chosen: &NamedAdapter,
        result: &mut LookResult,
        memory: &mut EmployerMemory,
    ) -> bool {
        let plan = memory.plans.get_mut(&chosen.name);
        let Some(plan) = plan.filter(|_| !formers.usable.is_empty()) else {
            return result.is_settled;
        };
        if let Some(unproven) = result.unproven.take() {
            result.summary.add_unproven(unproven);
        }
        let is_confirmed = plan.confirm_settled(result.is_settled, self.clock.now());
        if result.is_settled && !is_confirmed {
            result.wake = result.wake.into_iter().chain([UNSYNCED_RETRY]).min();
        }
        is_confirmed
    }

    /// Forgets a former adapter whose members are those of the present one.
    pub(super) async fn forget_same(
        &self,
        employer: &CachedEmployer,
        former: &str,
        memory: &mut EmployerMemory,
    ) -> Result<Option<LookResult>, ReconcileOutcome> {
        memory.plans.remove(former);
        self.forget_former(employer, former).await?;
        Ok(Some(LookResult::with_clean(true)))
    }

    /// The adapter with this name. Whoever may write the employer can write any name into its annotation.
    fn usable(&self, employer: &CachedEmployer, name: &str) -> Option<&NamedAdapter> {
        let EmployerName {
            kind, namespace, ..
        } = &employer.name;
        self.context.traffic.adapters.usable(name, kind, namespace)
    }

    /// Looks at the members of a former adapter. If it `retires`, because the present one serves, they all go. Until it has
    /// none, no Pod is released. Returns what it came to; `None` if it can't be asked.
    pub(super) async fn look_at_former(
        &self,
        employer: &CachedEmployer,
        former: &str,
        role: Role,
        memory: &mut EmployerMemory,
    ) -> Result<Option<LookResult>, ReconcileOutcome> {
        let Some(named) = self.usable(employer, former).cloned() else {
            return Ok(None);
        };
        // What it did before may not be so any more, if this look fails.
        let before = memory.places.remove(former);
        let mut plan = memory.plans.remove(former).unwrap_or_default();
        plan.confirm_settled(false, self.clock.now()); // it may be the present one again
        let looked = self
            .look(employer, &named, &mut plan, (role, Vec::new()), memory)
            .await;
        memory.plans.insert(former.to_owned(), plan);
        let mut looked = looked?;
        looked.is_clean &= matches!(role, Role::Former { retires: true, .. });
        let places = std::mem::take(&mut looked.places);
        if before.as_ref() != Some(&places) {
            // The present adapter decides about marks, and was looked at before.
            let again = [UNSYNCED_RETRY].into_iter().chain(looked.wake);
            looked.wake = again.min();
        }
        memory.places.insert(former.to_owned(), places);
        if looked.is_clean {
            self.forget_former(employer, former).await?;
            memory.plans.remove(former);
            for plan in memory.plans.values_mut() {
                plan.read_again(); // two addresses may lead to one load balancer
            }
        }
        Ok(Some(looked))
    }

    /// Adds what a former adapter came to. If the record of it can't be written, the present adapter goes on, and the
    /// report tells why.
    pub(super) fn add_former(
        &self,
        name: &EmployerName,
        former: &str,
        looked: Result<Option<LookResult>, ReconcileOutcome>,
        result: &mut LookResult,
    ) -> Result<(), ReconcileOutcome> {
        let outcome = match looked {
            Ok(looked) => {
                if let Some(looked) = looked {
                    result.add_former(former, looked);
                }
                return Ok(());
            }
            Err(outcome) => outcome,
        };
        let problem = self.object_writes.take_problem(name).ok_or(outcome)?;
        let again = problem.next.saturating_duration_since(Instant::now());
        let again = again.max(MIN_RETRY);
        result.wake = Some(result.wake.map_or(again, |wake| wake.min(again)));
        result.summary.last_error = Some(problem.text); // nothing else holds up the move for as long
        Ok(())
    }
}

/// The adapters that may have members besides the present one.
#[derive(Default)]
pub(super) struct Formers {
    /// Those that lead to the load balancer of the present one.
    pub same: Vec<String>,
    /// Those that are configured, in the order in which they go.
    pub usable: Vec<String>,
    /// Those that are not configured any more, or not for this employer.
    pub unknown: Vec<String>,
}

impl Formers {
    /// Whether no Pod may be released, because one of them may still send it requests. Nobody waits for an adapter that
    /// is not configured when the employer is deleted.
    pub fn hold(&self, deleting: bool) -> bool {
        !self.usable.is_empty() || !deleting && !self.unknown.is_empty()
    }

    /// The one whose members go first: the first that can be read.
    pub fn retiring(&self, plans: &HashMap<String, Memory>) -> Option<&String> {
        let is_read = |name: &&String| plans.get(*name).is_some_and(Memory::is_read);
        self.usable.iter().find(is_read).or(self.usable.first())
    }

    /// What each of them does with the Pods. Nothing is known of those that can't be asked.
    pub fn places(
        &self,
        known: &HashMap<String, FormerPlaces>,
        deleting: bool,
    ) -> Vec<FormerPlaces> {
        let asked = self.usable.iter();
        let asked = asked.map(|name| known.get(name).cloned().unwrap_or_default());
        let unknown = self.unknown.iter().filter(|_| !deleting);
        asked
            .chain(unknown.map(|_| FormerPlaces::default()))
            .collect()
    }

    /// Why the move waits, if one of them can't be asked.
    pub fn unknown_error(&self) -> Option<String> {
        let former = self.unknown.first()?;
        let key = keys::CONSIST_ADAPTER_IN_USE;
        Some(format!(
            "adapter {former} may have registered members and is not configured any more, so no Pod is released; \
             configure it again until it has removed them, or remove the annotation {key} to leave them"
        ))
    }
}
