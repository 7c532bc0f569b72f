//! One disruption against one rule object, by a view of the Pods and a copy of the claims.

use std::time::Duration;

use super::answer::{ClaimAnswer, Denied, DenyReason, Disruption};
use super::earlier_claims::EarlierClaims;
use crate::api::size_limits::{MAX_LEDGER_BYTES, json_bytes};
use crate::domain::pod::Pod;
use crate::domain::rules::budget::BindingMinimum;
use crate::domain::rules::{AvailabilityRules, ExpectedPods, RuleSet};
use crate::ledger::evidence::LAPSE_MARGIN;
use crate::ledger::protocol::{BudgetView, ClaimGrant, ClaimRefusal, ClaimRequest, Purpose};
use crate::ledger::store::{ClaimDetail, Claims, Uid};

/// What one claim takes in etcd besides its texts: names of fields, numbers, times, and what the API server keeps in
/// `managedFields` of an entry in a list that is merged by keys.
const CLAIM_BYTES: usize = 520;
/// The same of one of its containers.
const CONTAINER_BYTES: usize = 90;

/// The expected Pods of a view.
fn expected_pods(view: &dyn BudgetView<Uid>) -> ExpectedPods {
    ExpectedPods {
        total: view.expected(),
        base: view.percentage_base(),
    }
}

/// Adds a claim for the disruption to `claims`, or says why not. Of several rules that hold the Pod the strictest
/// decides. With `rest`, the disruption may not take the last place for that long.
pub fn decide_claim(
    view: &dyn BudgetView<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    disruption: &Disruption,
    rest: Option<Duration>,
) -> Result<ClaimAnswer, Denied> {
    let refuse = |rule: &str, why| Denied {
        object: rules.name.clone(),
        rule: rule.to_owned(),
        why,
    };
    if !disruption.is_generation_known(rules) {
        return Err(refuse("", DenyReason::Changed));
    }
    let pod = &disruption.pod;
    let is_bypassed = disruption.bypassed_rules.contains(&rules.name);
    let (rule, desired, minimum) = match rules.availability_rules(pod) {
        AvailabilityRules::NotHeld => return Ok(ClaimAnswer::NotHeld),
        // Others have to see the Pod as going.
        AvailabilityRules::Broken { rule, .. } if is_bypassed => (rule, 0, None),
        AvailabilityRules::Broken { rule, why } => {
            return Err(refuse(&rule, DenyReason::Broken(why)));
        }
        AvailabilityRules::Held(held) => {
            let all = held
                .into_iter()
                .map(|(rule, limits)| (rule, limits, limits.desired(expected_pods(view))));
            match all.max_by_key(|(_, _, desired)| *desired) {
                Some((rule, _, _)) if is_bypassed => (rule.to_owned(), 0, None),
                Some((rule, limits, desired)) => {
                    let minimum = limits.binding_minimum(expected_pods(view));
                    (rule.to_owned(), desired, minimum)
                }
                None => return Ok(ClaimAnswer::NotHeld),
            }
        }
    };
    let rule = rule.as_str();
    let uid = Uid::from(pod.metadata.uid.as_str());
    let former = EarlierClaims::from_claims(claims, disruption, is_bypassed);
    let earlier = former.detail.as_deref();
    let rest = rest.filter(|_| earlier.is_none() && !is_bypassed);
    let spare = u32::from(rest.is_some());
    let until = earlier.map_or(disruption.detail.since, |earlier| {
        let end = earlier.until.checked_add(LAPSE_MARGIN);
        end.unwrap_or(earlier.until)
    });
    let request = ClaimRequest {
        pod: uid,
        operation: disruption.operation,
        at: pod.metadata.resource_version,
        detail: disruption.detail.clone().merge_earlier_detail(
            earlier,
            disruption.operation,
            former.gives_way,
        ),
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
        return Err(refuse(rule, DenyReason::Crowded { claims }));
    }
    // No renewal, by which the claim would admit nothing more after a while.
    let former = begins_anew.then(|| claims.claims.remove(&key)).flatten();
    let granted = claims.admit_claim(view, desired.saturating_add(spare), request);
    if let (Err(_), Some(former)) = (&granted, &former) {
        claims.claims.insert(key, former.clone());
    }
    let kept = |grant: ClaimGrant| ClaimGrant {
        fresh: grant.fresh && former.is_none(), // the Pod keeps its place whatever another rule says
        ..grant
    };
    granted
        .map(|grant| ClaimAnswer::Granted(kept(grant)))
        .map_err(|refusal| match refusal {
            ClaimRefusal::Behind { .. } => refuse(rule, DenyReason::Behind),
            ClaimRefusal::UnderWay => refuse(rule, DenyReason::UnderWay),
            ClaimRefusal::Closing => refuse(rule, DenyReason::Closing { until }),
            ClaimRefusal::Full { left, expected, .. } => {
                if let Some(rest) = rest.filter(|_| left >= desired) {
                    return refuse(rule, DenyReason::Resting { left: rest });
                }
                let available = claims.count_unclaimed(view);
                let why = DenyReason::Full {
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
pub fn claim_bytes(uid: &str, detail: &ClaimDetail) -> usize {
    let containers = detail.containers.iter();
    let containers = containers.map(|c| CONTAINER_BYTES + c.name.len() + json_bytes(&c.run));
    let texts = detail.target.iter().map(json_bytes);
    let texts = texts.sum::<usize>() + detail.pod_name.len() + 2 * uid.len();
    let carried = detail.carried.as_ref().map_or(0, |carried| {
        plain_json_bytes(&carried.claims)
            + plain_json_bytes(&carried.fields)
            + plain_json_bytes(&carried.containers)
    });
    CLAIM_BYTES + texts + carried + containers.sum::<usize>()
}

/// The size of a value as JSON, without the escapes that the API server adds.
fn plain_json_bytes(stored: &impl serde::Serialize) -> usize {
    serde_json::to_vec(stored).map_or(0, |json| json.len())
}

/// Whether the object lets a Pod go that is not available: only its rules that hold such Pods are asked, and nothing is
/// claimed. As with a PodDisruptionBudget, Pods that are yet to start may always go.
pub fn admit_unavailable(
    view: &dyn BudgetView<Uid>,
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
                why: DenyReason::Broken(why),
            });
        }
    };
    let strict = held
        .into_iter()
        .filter(|(_, limits)| limits.if_healthy)
        .map(|(rule, limits)| (rule, limits.desired(expected_pods(view))));
    let Some((rule, desired)) = strict.max_by_key(|(_, desired)| *desired) else {
        return Ok(());
    };
    let uid = Uid::from(pod.metadata.uid.as_str());
    claims
        .admit_unavailable(view, desired, &uid)
        .map_err(|refusal| Denied {
            object: rules.name.clone(),
            rule: rule.to_owned(),
            why: match refusal {
                ClaimRefusal::Full {
                    left,
                    desired,
                    expected,
                } => DenyReason::Unhealthy {
                    available: left,
                    desired,
                    expected,
                },
                ClaimRefusal::Behind { .. } | ClaimRefusal::UnderWay | ClaimRefusal::Closing => {
                    DenyReason::Behind
                }
            },
        })
}
