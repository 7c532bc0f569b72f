//! Which rollouts of Deployments a rule object does not let end, by the cache.

use std::collections::BTreeMap;

use super::retries::deletes_more;
use crate::cluster::index::{Entry, Namespace};
use crate::cluster::selected;
use crate::cluster::sizes::{Kind, Workload};
use crate::domain::rules::RuleSet;
use crate::domain::rules::budget::Gauges;
use crate::domain::rules::rollouts::{Cause, Rollout};

/// Deployments whose rollout stands still now, or will. `gauges` are those of the rule object.
pub fn all(home: &Namespace, entry: &Entry, gauges: Gauges) -> Vec<Rollout> {
    let rules = &entry.snapshot.rules;
    let mut found = BTreeMap::new();
    for uid in entry.tally.owners() {
        let Some(workload) = home.workload(uid) else {
            continue;
        };
        let (deployment, cause, held) = match workload.kind {
            Kind::Deployment
                if selected::is_kept_from_recreating(rules, workload, gauges.limit) =>
            {
                (workload, Cause::Recreates, false)
            }
            Kind::ReplicaSet if gauges.allowed == 0 && deletes_more(home, uid, workload) => {
                match cause(home, rules, workload, gauges.limit) {
                    Some((deployment, cause)) => (deployment, cause, true),
                    None => continue,
                }
            }
            _ => continue,
        };
        let rollout = found.entry(&deployment.name).or_insert_with(|| Rollout {
            deployment: deployment.name.clone(),
            cause,
            held,
        });
        if held && !rollout.held {
            (rollout.cause, rollout.held) = (cause, true);
        }
    }
    found.into_values().collect()
}

/// The Deployment of a ReplicaSet with Pods to delete, and why its rollout can't end once the budget is used up; `None` if
/// it can. `limit` is how many Pods may be unavailable.
pub fn cause<'a>(
    home: &'a Namespace,
    rules: &RuleSet,
    replica_set: &Workload,
    limit: u32,
) -> Option<(&'a Workload, Cause)> {
    let owner = replica_set.controller.as_ref()?;
    let deployment = home
        .workload(&owner.uid)
        .filter(|w| w.kind == Kind::Deployment && w.replicas.is_some_and(|n| n > 0))?;
    if !selected::is_selected(rules, deployment) {
        return Some((deployment, Cause::Leaves));
    }
    let mut siblings = home.workloads().filter(|(_, w)| {
        let controller = w.controller.as_ref();
        controller.is_some_and(|other| other.uid == owner.uid)
    });
    let recreates = selected::is_kept_from_recreating(rules, deployment, limit)
        && siblings.all(|(_, w)| w.replicas == Some(0));
    recreates.then_some((deployment, Cause::Recreates))
}
