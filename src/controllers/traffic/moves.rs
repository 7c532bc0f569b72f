//! Moves of employers from one adapter to another: the new one registers all members before the former one removes its
//! own.

use tracing::warn;

use super::look::LookResult;
use super::{EmployerMemory, TrafficController};
use crate::api::keys;
use crate::cluster::traffic::adapters::NamedAdapter;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::report::EmployerReport;

/// The record of an employer.
pub(super) fn in_use(employer: &CachedEmployer) -> AdapterInUse<'_> {
    AdapterInUse::of(&employer.state.employer.annotations)
}

impl TrafficController {
    /// The adapter that may have registered members, if it is still configured.
    pub(super) fn adapter_in_use(&self, employer: &CachedEmployer) -> Option<NamedAdapter> {
        let named = self.usable(employer, in_use(employer).present()?);
        named.cloned()
    }

    /// The adapter with this name. Whoever may write the employer can write any name into its annotation.
    fn usable(&self, employer: &CachedEmployer, name: &str) -> Option<&NamedAdapter> {
        let EmployerName {
            kind, namespace, ..
        } = &employer.name;
        self.context.traffic.adapters.usable(name, kind, namespace)
    }

    /// Whether another adapter can take over: the former one is known here, or there is none.
    pub(super) fn may_prepare(&self, employer: &CachedEmployer, chosen: &str) -> bool {
        let former = in_use(employer).present().filter(|name| *name != chosen);
        former.is_none_or(|name| self.usable(employer, name).is_some())
    }

    /// The former adapter is not configured any more, so that its members can't be removed.
    pub(super) async fn retire_unknown(
        &self,
        employer: &CachedEmployer,
        chosen: &NamedAdapter,
        memory: &mut EmployerMemory,
    ) -> Result<ReconcileOutcome, ReconcileOutcome> {
        let key = keys::CONSIST_ADAPTER_IN_USE;
        let former = in_use(employer).present().unwrap_or_default();
        let error = format!(
            "adapter {former} may have registered members and is not configured any more; configure it again until it \
             has removed them, or remove the annotation {key} to leave them"
        );
        let report = EmployerReport::of_error(&chosen.name, &error);
        let later = self.report_paced(employer, &report, memory).await?;
        Ok(later.map_or(ReconcileOutcome::Done, ReconcileOutcome::After))
    }

    /// Removes the members of the adapter that managed the employer before, now that the present one serves. Until they
    /// are removed, no Pod is released.
    pub(super) async fn retire(
        &self,
        employer: &CachedEmployer,
        former: &str,
        memory: &mut EmployerMemory,
    ) -> Result<LookResult, ReconcileOutcome> {
        let Some(named) = self.usable(employer, former).cloned() else {
            warn!(
                former,
                "an adapter that may have registered members is not configured; they stay registered"
            );
            self.report_left_members(employer, former);
            let usable = |name: &str| self.usable(employer, name).is_some();
            self.forget_formers(employer, |name| !usable(name)).await?;
            return Ok(LookResult::with_clean(true));
        };
        let mut plan = memory.plans.remove(former).unwrap_or_default();
        let looked = self
            .look(employer, &named, &mut plan, (true, false), memory)
            .await;
        memory.plans.insert(former.to_owned(), plan);
        let retired = looked?;
        if retired.is_clean && !employer.state.employer.deleting {
            memory.plans.remove(former);
            self.forget_formers(employer, |name| name == former).await?;
        }
        Ok(retired)
    }
}
