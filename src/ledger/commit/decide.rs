//! Decides one disruption by one rule object, with a view of the Pods and a copy of the claims.

use std::time::Duration;

use super::answer::{ClaimAnswer, Denied, DenyReason, Disruption};
use super::earlier_claims::EarlierClaims;
use crate::api::size_limits::{MAX_LEDGER_BYTES, json_bytes};
use crate::domain::pod::Pod;
use crate::domain::rules::budget::BindingMinimum;
use crate::domain::rules::{AvailabilityRules, RuleSet};
use crate::ledger::evidence::LAPSE_MARGIN;
use crate::ledger::protocol::{BudgetView, ClaimGrant, ClaimRefusal, ClaimRequest, Purpose};
use crate::ledger::store::{ClaimDetail, Claims, Uid, expected_pods};

/// The bytes of one claim in etcd apart from its texts: field names, numbers, times, and the `managedFields` that the
/// API server keeps for each entry of a list with merge keys.
const CLAIM_BYTES: usize = 520;
/// The same for one container of a claim.
const CONTAINER_BYTES: usize = 90;

/// Adds a claim for the disruption to `claims`. If several rules hold the Pod, the strictest rule decides. `rest` is
/// the time for which the request still rests: until then it may not take the last place of the budget.
///
/// # Errors
/// The rule that denies, and why. `claims` is unchanged.
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
        // The claim is written although the rule is broken, because other decisions must count the Pod as going.
        AvailabilityRules::Broken { rule, .. } if is_bypassed => (rule, 0, None),
        AvailabilityRules::Broken { rule, reason: why } => {
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
    // The claim is replaced instead of renewed: the leader closes a claim that has been renewed, and then it admits
    // nothing more.
    let former = begins_anew.then(|| claims.claims.remove(&key)).flatten();
    let granted = claims.admit_claim(view, desired.saturating_add(spare), request);
    if let (Err(_), Some(former)) = (&granted, &former) {
        claims.claims.insert(key, former.clone());
    }
    let kept = |grant: ClaimGrant| ClaimGrant {
        fresh: grant.fresh && former.is_none(), // the Pod keeps its earlier claim even if another rule denies
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

/// The most bytes that a claim takes in etcd. The UID appears in it twice.
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

/// Whether the object lets an unavailable Pod go. Only its rules that hold such Pods decide, and nothing is claimed. As
/// with a PodDisruptionBudget, a Pod that has not started yet may always go.
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
        // A broken rule may have an `unhealthyPodPolicy`.
        AvailabilityRules::Broken { rule, reason: why } => {
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
