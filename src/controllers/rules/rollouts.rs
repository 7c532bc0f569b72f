//! Which rollouts of Deployments a rule object does not let end, by the cache.

use std::collections::BTreeMap;

use super::retries::deletes_more;
use crate::cluster::index::{Entry, Namespace};
use crate::cluster::selected;
use crate::cluster::sizes::Kind;
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
                match selected::held_rollout(home, rules, workload, gauges.limit) {
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
