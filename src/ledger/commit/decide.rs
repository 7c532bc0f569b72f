//! One disruption against one rule object, by a view of the Pods and a copy of the claims.

use super::answer::{Answer, Denied, Disruption, Why};
use crate::domain::rules::{Availability, RuleSet};
use crate::ledger::protocol::{Refusal, Request, View};
use crate::ledger::store::{Claims, Uid};

/// Claims that one rule object holds at most: its status stays far below the size that etcd takes.
const MAX_CLAIMS: usize = 2000;

/// Adds a claim for the disruption to `claims`, or says why not. Of several rules that hold the Pod the strictest
/// decides.
pub fn admit(
    view: &dyn View<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    disruption: &Disruption,
) -> Result<Answer, Denied> {
    let refuse = |rule: &str, why| Denied {
        object: rules.name.clone(),
        rule: rule.to_owned(),
        why,
    };
    let pod = &disruption.pod;
    let binding = match rules.availability(pod) {
        Availability::NotHeld => return Ok(Answer::NotHeld),
        Availability::Broken { rule, why } => return Err(refuse(&rule, Why::Broken(why))),
        Availability::Held(held) => held
            .into_iter()
            .max_by_key(|(_, limits)| limits.desired(view.expected())),
    };
    let Some((rule, limits)) = binding else {
        return Ok(Answer::NotHeld);
    };
    if claims.claims.len() >= MAX_CLAIMS {
        return Err(refuse(rule, Why::Contended));
    }
    let desired = limits.desired(view.expected());
    let uid = Uid::from(pod.metadata.uid.as_str());
    let earlier = claims
        .claims
        .get(&(uid.clone(), disruption.operation))
        .map(|c| &c.detail);
    let request = Request {
        pod: uid,
        operation: disruption.operation,
        at: pod.metadata.resource_version,
        detail: disruption.detail.clone().after(earlier),
    };
    claims
        .admit(view, desired, request)
        .map(Answer::Granted)
        .map_err(|refusal| match refusal {
            Refusal::Behind { .. } => refuse(rule, Why::Behind),
            Refusal::UnderWay => refuse(rule, Why::UnderWay),
            Refusal::Full {
                desired, expected, ..
            } => {
                let why = Why::Full {
                    used: expected.saturating_sub(claims.unclaimed(view)),
                    limit: expected.saturating_sub(desired),
                    expected,
                    holders: Vec::new(),
                };
                refuse(rule, why)
            }
        })
}
