//! Moves of employers from one adapter to another: the new one registers all members before the former one removes its
//! own.

use tokio::time::Instant;
use traffic::Adapter;

use super::look::{LookResult, Role};
use super::{EmployerMemory, MIN_RETRY, TrafficController};
use crate::api::keys;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::names::EmployerName;

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
    pub(super) fn formers(&self, employer: &CachedEmployer, chosen: &str) -> Formers {
        let formers = in_use(employer).formers(chosen).map(str::to_owned);
        let (usable, unknown) = formers.partition(|name| self.usable(employer, name).is_some());
        Formers { usable, unknown }
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
        chosen: &NamedAdapter,
        former: &str,
        retires: bool,
        memory: &mut EmployerMemory,
    ) -> Result<Option<LookResult>, ReconcileOutcome> {
        let Some(named) = self.usable(employer, former).cloned() else {
            return Ok(None);
        };
        let backend = named.adapter.backend();
        let is_same = !backend.is_empty() && backend == chosen.adapter.backend();
        if is_same && !retires {
            return Ok(None);
        }
        if is_same {
            // Its members are those of the present adapter.
            memory.plans.remove(former);
            self.forget_former(employer, former).await?;
            return Ok(Some(LookResult::with_clean(true)));
        }
        let mut plan = memory.plans.remove(former).unwrap_or_default();
        let role = Role::Former { retires };
        let looked = self.look(employer, &named, &mut plan, role, memory).await;
        memory.plans.insert(former.to_owned(), plan);
        let mut looked = looked?;
        looked.is_clean &= retires;
        if looked.is_clean {
            memory.plans.remove(former);
            self.forget_former(employer, former).await?;
            if let Some(plan) = memory.plans.get_mut(&chosen.name) {
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
        result.summary.last_error.get_or_insert(problem.text);
        Ok(())
    }
}

/// The adapters that may have members besides the present one.
pub(super) struct Formers {
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
