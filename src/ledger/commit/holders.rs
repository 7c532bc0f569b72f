//! Names the Pods that use up a budget, for the message of a denial.

use super::Ledgers;
use super::answer::{AwaitedRestart, Denied, DenyReason};
use crate::domain::budget_holders::order_holders;
use crate::domain::pending_disruption::PendingDisruption;
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::{LedgerStore, RuleKey};

impl<S: LedgerStore> Ledgers<S> {
    /// Fills in up to three Pods that use up the budget: Pods with a claim, and unavailable Pods, the longest first.
    /// Also fills in a Pod that keeps its claim until its deadline ends it, and an available Pod that keeps its claim
    /// until it is restarted.
    pub fn name_holders(&self, key: &RuleKey, denied: &mut Denied) {
        let DenyReason::Full {
            holders, lasting, ..
        } = &mut denied.why
        else {
            return;
        };
        let Some(base) = self.latest_snapshot(key) else {
            return;
        };
        let mut claims = base.claims.claims.iter();
        let until_its_end =
            claims.find(|((_, operation), _)| *operation == ClaimOperation::Deadline);
        let announced = self.store.pending_disruptions(&base.rules);
        let mut ends = announced.iter();
        let end = ends.find(|(_, what)| *what == PendingDisruption::Deadline);
        lasting.deadline = until_its_end
            .map(|(_, claim)| &claim.detail.pod_name)
            .or(end.map(|(pod, _)| pod))
            .cloned();
        let changes = base.claims.claims.iter();
        let mut changes =
            changes.filter(|((_, operation), _)| *operation == ClaimOperation::InPlace);
        lasting.restart = changes.find_map(|((uid, _), claim)| {
            Some(AwaitedRestart {
                pod: claim.detail.pod_name.clone(),
                deferred: self.store.serves_deferred(&base.rules, uid)?,
            })
        });
        let mut resizes = announced.iter().filter_map(|(pod, what)| match what {
            PendingDisruption::Resize { deferred } => Some((pod, *deferred)),
            PendingDisruption::Deadline => None,
        });
        if let (None, Some((pod, deferred))) = (&lasting.restart, resizes.next()) {
            let pod = pod.clone();
            lasting.restart = Some(AwaitedRestart { pod, deferred });
        }
        lasting.unreadable = self.store.unreadable_pod(&base.rules);
        let claimed = base
            .claims
            .claims
            .values()
            .map(|c| (c.detail.pod_name.clone(), Some(c.detail.since)));
        let mut all: Vec<_> = claimed
            .chain(self.store.unavailable_pods(&base.rules, 3))
            .collect();
        order_holders(&mut all, |(pod, since)| (*since, pod));
        all.truncate(3);
        *holders = all;
    }
}
