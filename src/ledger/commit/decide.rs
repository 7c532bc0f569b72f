//! One disruption against one rule object, by a view of the Pods and a copy of the claims.

use std::time::Duration;

use super::answer::{Answer, Denied, Disruption, Why};
use super::former::Former;
use crate::api::stored::{MAX_LEDGER_BYTES, bytes};
use crate::domain::pod::Pod;
use crate::domain::rules::budget::BindingMinimum;
use crate::domain::rules::{AvailabilityRules, ExpectedPods, RuleSet};
use crate::ledger::evidence::MARGIN;
use crate::ledger::protocol::{Grant, Purpose, Refusal, Request, View};
use crate::ledger::store::{Claims, Detail, Uid};

/// What one claim takes in etcd besides its texts: names of fields, numbers, times, and what the API server keeps in
/// `managedFields` of an entry in a list that is merged by keys.
const CLAIM_BYTES: usize = 520;
/// The same of one of its containers.
const CONTAINER_BYTES: usize = 90;

/// The expected Pods of a view.
fn size(view: &dyn View<Uid>) -> ExpectedPods {
    ExpectedPods {
        total: view.expected(),
        base: view.base(),
    }
}

/// Adds a claim for the disruption to `claims`, or says why not. Of several rules that hold the Pod the strictest
/// decides. With `rest`, the disruption may not take the last place for that long.
pub fn admit(
    view: &dyn View<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    disruption: &Disruption,
    rest: Option<Duration>,
) -> Result<Answer, Denied> {
    let refuse = |rule: &str, why| Denied {
        object: rules.name.clone(),
        rule: rule.to_owned(),
        why,
    };
    if !disruption.knows(rules) {
        return Err(refuse("", Why::Changed));
    }
    let pod = &disruption.pod;
    let beyond = disruption.beyond.contains(&rules.name);
    let (rule, desired, minimum) = match rules.availability_rules(pod) {
        AvailabilityRules::NotHeld => return Ok(Answer::NotHeld),
        // Others have to see the Pod as going.
        AvailabilityRules::Broken { rule, .. } if beyond => (rule, 0, None),
        AvailabilityRules::Broken { rule, why } => return Err(refuse(&rule, Why::Broken(why))),
        AvailabilityRules::Held(held) => {
            let all = held
                .into_iter()
                .map(|(rule, limits)| (rule, limits, limits.desired(size(view))));
            match all.max_by_key(|(_, _, desired)| *desired) {
                Some((rule, _, _)) if beyond => (rule.to_owned(), 0, None),
                Some((rule, limits, desired)) => {
                    let minimum = limits.binding_minimum(size(view));
                    (rule.to_owned(), desired, minimum)
                }
                None => return Ok(Answer::NotHeld),
            }
        }
    };
    let rule = rule.as_str();
    let uid = Uid::from(pod.metadata.uid.as_str());
    let former = Former::of(claims, disruption, beyond);
    let earlier = former.detail.as_deref();
    let rest = rest.filter(|_| earlier.is_none() && !beyond);
    let spare = u32::from(rest.is_some());
    let until = earlier.map_or(disruption.detail.since, |earlier| {
        let end = earlier.until.checked_add(MARGIN);
        end.unwrap_or(earlier.until)
    });
    let request = Request {
        pod: uid,
        operation: disruption.operation,
        at: pod.metadata.resource_version,
        detail: disruption
            .detail
            .clone()
            .after(earlier, disruption.operation, former.gives_way),
    };
    let key = (request.pod.clone(), request.operation);
    let may_replace = |old| request.detail.may_replace(old, request.operation);
    let begins_anew = former.is_served && earlier.is_some_and(may_replace);
    let others = claims.claims.iter().filter(|(other, _)| **other != key);
    let taken: usize = others
        .map(|((uid, _), claim)| claim_bytes(uid, &claim.detail))
        .sum();
    if taken + claim_bytes(&request.pod, &request.detail) > MAX_LEDGER_BYTES {
        let claims = claims.claims.len();
        return Err(refuse(rule, Why::Crowded { claims }));
    }
    // No renewal, by which the claim would admit nothing more after a while.
    let former = begins_anew.then(|| claims.claims.remove(&key)).flatten();
    let granted = claims.admit(view, desired.saturating_add(spare), request);
    if let (Err(_), Some(former)) = (&granted, &former) {
        claims.claims.insert(key, former.clone());
    }
    let kept = |grant: Grant| Grant {
        fresh: grant.fresh && former.is_none(), // the Pod keeps its place whatever another rule says
        ..grant
    };
    granted
        .map(|grant| Answer::Granted(kept(grant)))
        .map_err(|refusal| match refusal {
            Refusal::Behind { .. } => refuse(rule, Why::Behind),
            Refusal::UnderWay => refuse(rule, Why::UnderWay),
            Refusal::Closing => refuse(rule, Why::Closing { until }),
            Refusal::Full { left, expected, .. } => {
                if let Some(rest) = rest.filter(|_| left >= desired) {
                    return refuse(rule, Why::Resting { left: rest });
                }
                let available = claims.unclaimed(view);
                let why = Why::Full {
                    used: expected.saturating_sub(available),
                    limit: expected.saturating_sub(desired),
                    expected,
                    minimum: minimum.map(|value| BindingMinimum {
                        value,
                        desired,
                        available,
                    }),
                    holders: Vec::new(),
                    lasting: Box::default(),
                };
                refuse(rule, why)
            }
        })
}

/// What a claim takes in etcd at most, with a UID that stands in it twice.
pub fn claim_bytes(uid: &str, detail: &Detail) -> usize {
    let containers = detail.containers.iter();
    let containers = containers.map(|c| CONTAINER_BYTES + c.name.len() + bytes(&c.run));
    let texts = detail.target.iter().map(bytes);
    let texts = texts.sum::<usize>() + detail.pod_name.len() + 2 * uid.len();
    let carried = detail.carried.as_ref().map_or(0, |carried| {
        as_json(&carried.claims) + as_json(&carried.fields) + as_json(&carried.containers)
    });
    CLAIM_BYTES + texts + carried + containers.sum::<usize>()
}

fn as_json(stored: &impl serde::Serialize) -> usize {
    serde_json::to_vec(stored).map_or(0, |json| json.len())
}

/// Whether the object lets a Pod go that is not available: only its rules that hold such Pods are asked, and nothing is
/// claimed. As with a PodDisruptionBudget, Pods that are yet to start may always go.
pub fn let_go(
    view: &dyn View<Uid>,
    rules: &RuleSet,
    claims: &Claims,
    pod: &Pod,
) -> Result<(), Denied> {
    if pod.status.phase == "Pending" {
        return Ok(());
    }
    let held = match rules.availability_rules(pod) {
        AvailabilityRules::NotHeld => return Ok(()),
        AvailabilityRules::Held(held) => held,
        // It may have an `unhealthyPodPolicy`.
        AvailabilityRules::Broken { rule, why } => {
            return Err(Denied {
                object: rules.name.clone(),
                rule,
                why: Why::Broken(why),
            });
        }
    };
    let strict = held
        .into_iter()
        .filter(|(_, limits)| limits.if_healthy)
        .map(|(rule, limits)| (rule, limits.desired(size(view))));
    let Some((rule, desired)) = strict.max_by_key(|(_, desired)| *desired) else {
        return Ok(());
    };
    let uid = Uid::from(pod.metadata.uid.as_str());
    claims
        .let_go(view, desired, &uid)
        .map_err(|refusal| Denied {
            object: rules.name.clone(),
            rule: rule.to_owned(),
            why: match refusal {
                Refusal::Full {
                    left,
                    desired,
                    expected,
                } => Why::Unhealthy {
                    available: left,
                    desired,
                    expected,
                },
                Refusal::Behind { .. } | Refusal::UnderWay | Refusal::Closing => Why::Behind,
            },
        })
}
