//! Decides one disruption by one rule object, with a view of the Pods and a copy of the claims.

use std::time::Duration;

use super::answer::{ClaimAnswer, Denied, DenyReason, Disruption};
use super::earlier_claims::EarlierClaims;
use crate::api::int_or_percent::IntOrPercent;
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

/// The rule that decides about a Pod: the strictest of all rules that hold the Pod.
struct StrictestRule {
    name: String,
    /// How many Pods must stay available; 0 if the request bypasses the rule object.
    desired: u32,
    /// The minimum of the rule, if the minimum and not the maximum decides.
    minimum: Option<IntOrPercent>,
}

fn denied(rules: &RuleSet, rule: &str, why: DenyReason) -> Denied {
    Denied {
        object: rules.name.clone(),
        rule: rule.to_owned(),
        why,
    }
}

/// Adds a claim for the disruption to `claims`. If several rules hold the Pod, the strictest rule decides. `cooldown`
/// is the time for which the request still rests: until then it may not use the last of the headroom.
///
/// # Errors
/// The rule that denies, and why. `claims` is unchanged.
pub fn decide_claim(
    view: &dyn BudgetView<Uid>,
    rules: &RuleSet,
    claims: &mut Claims,
    disruption: &Disruption,
    cooldown: Option<Duration>,
) -> Result<ClaimAnswer, Denied> {
    if !disruption.is_generation_known(rules) {
        return Err(denied(rules, "", DenyReason::Changed));
    }
    let is_bypassed = disruption.bypassed_rules.contains(&rules.name);
    let Some(rule) = strictest_rule(view, rules, &disruption.pod, is_bypassed)? else {
        return Ok(ClaimAnswer::NotHeld);
    };
    let earlier = EarlierClaims::from_claims(claims, disruption, is_bypassed);
    let earlier_detail = earlier.detail.as_deref();
    let cooldown = cooldown.filter(|_| earlier_detail.is_none() && !is_bypassed);
    let closing_until = earlier_detail.map_or(disruption.detail.since, |earlier| {
        let end = earlier.until.checked_add(LAPSE_MARGIN);
        end.unwrap_or(earlier.until)
    });
    let request = ClaimRequest {
        pod: Uid::from(disruption.pod.metadata.uid.as_str()),
        operation: disruption.operation,
        at: disruption.pod.metadata.resource_version,
        detail: disruption.detail.clone().merge_earlier_detail(
            earlier_detail,
            disruption.operation,
            earlier.gives_way,
        ),
    };
    let may_replace = |old: &ClaimDetail| request.detail.may_replace(old, request.operation);
    let is_replacement = earlier.is_served && earlier_detail.is_some_and(may_replace);
    if !fits_ledger(claims, &request) {
        let claims = claims.claims.len();
        return Err(denied(rules, &rule.name, DenyReason::Crowded { claims }));
    }
    let kept_free = u32::from(cooldown.is_some());
    let desired = rule.desired.saturating_add(kept_free);
    let granted = match is_replacement {
        true => replace_claim(view, claims, desired, request),
        false => claims.admit_claim(view, desired, request),
    };
    granted.map(ClaimAnswer::Granted).map_err(|refusal| {
        let why = match refusal {
            ClaimRefusal::Behind { .. } => DenyReason::Behind,
            ClaimRefusal::UnderWay => DenyReason::UnderWay,
            ClaimRefusal::Closing => DenyReason::Closing {
                until: closing_until,
            },
            ClaimRefusal::Full { left, expected, .. } => {
                match cooldown.filter(|_| left >= rule.desired) {
                    Some(left) => DenyReason::Resting { left },
                    None => full_budget(&rule, expected, claims.count_unclaimed(view)),
                }
            }
        };
        denied(rules, &rule.name, why)
    })
}

/// The rule that decides about the Pod. `None` if no rule of the object holds the Pod.
///
/// # Errors
/// If a rule that may apply cannot be read.
fn strictest_rule(
    view: &dyn BudgetView<Uid>,
    rules: &RuleSet,
    pod: &Pod,
    is_bypassed: bool,
) -> Result<Option<StrictestRule>, Denied> {
    let bypassed = |name| StrictestRule {
        name,
        desired: 0,
        minimum: None,
    };
    let applying = match rules.availability_rules(pod) {
        AvailabilityRules::NotHeld => return Ok(None),
        // The claim is written although the rule is broken, because other decisions must count the Pod as going.
        AvailabilityRules::Broken { rule, .. } if is_bypassed => return Ok(Some(bypassed(rule))),
        AvailabilityRules::Broken { rule, reason } => {
            return Err(denied(rules, &rule, DenyReason::Broken(reason)));
        }
        AvailabilityRules::Held(applying) => applying,
    };
    let strictest = applying
        .into_iter()
        .map(|(rule, limits)| (rule, limits, limits.desired(expected_pods(view))))
        .max_by_key(|(_, _, desired)| *desired);
    Ok(strictest.map(|(rule, limits, desired)| match is_bypassed {
        true => bypassed(rule.to_owned()),
        false => StrictestRule {
            name: rule.to_owned(),
            desired,
            minimum: limits.binding_minimum(expected_pods(view)),
        },
    }))
}

/// Whether the ledger has room for the claim beside the claims that it does not replace.
fn fits_ledger(claims: &Claims, request: &ClaimRequest<Uid, ClaimDetail>) -> bool {
    let key = (request.pod.clone(), request.operation);
    let others = claims.claims.iter().filter(|(other, _)| **other != key);
    let taken: usize = others
        .map(|((uid, _), claim)| claim_bytes(uid, &claim.detail))
        .sum();
    taken + claim_bytes(&request.pod, &request.detail) <= MAX_LEDGER_BYTES
}

/// Replaces the claim instead of renewing it: the leader closes a claim that has been renewed, and then the claim
/// admits nothing more. After a refusal the earlier claim stays.
fn replace_claim(
    view: &dyn BudgetView<Uid>,
    claims: &mut Claims,
    desired: u32,
    request: ClaimRequest<Uid, ClaimDetail>,
) -> Result<ClaimGrant, ClaimRefusal> {
    let key = (request.pod.clone(), request.operation);
    let earlier = claims.claims.remove(&key);
    let is_first = earlier.is_none();
    let granted = claims.admit_claim(view, desired, request);
    if let (Err(_), Some(earlier)) = (&granted, earlier) {
        claims.claims.insert(key, earlier);
    }
    granted.map(|grant| ClaimGrant {
        fresh: grant.fresh && is_first, // the Pod keeps its earlier claim even if another rule denies
        ..grant
    })
}

/// The denial by a budget that is used up. The holders of its claims are added later.
fn full_budget(rule: &StrictestRule, expected: u32, available: u32) -> DenyReason {
    let desired = rule.desired;
    DenyReason::Full {
        used: expected.saturating_sub(available),
        limit: expected.saturating_sub(desired),
        expected,
        minimum: rule.minimum.map(|value| BindingMinimum {
            value,
            desired,
            available,
        }),
        holders: Vec::new(),
        lasting: Box::default(),
    }
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
    let applying = match rules.availability_rules(pod) {
        AvailabilityRules::NotHeld => return Ok(()),
        AvailabilityRules::Held(applying) => applying,
        // A broken rule may have an `unhealthyPodPolicy`.
        AvailabilityRules::Broken { rule, reason } => {
            return Err(denied(rules, &rule, DenyReason::Broken(reason)));
        }
    };
    let strict = applying
        .into_iter()
        .filter(|(_, limits)| limits.if_healthy)
        .map(|(rule, limits)| (rule, limits.desired(expected_pods(view))));
    let Some((rule, desired)) = strict.max_by_key(|(_, desired)| *desired) else {
        return Ok(());
    };
    let uid = Uid::from(pod.metadata.uid.as_str());
    claims
        .admit_unavailable(view, desired, &uid)
        .map_err(|refusal| {
            let why = match refusal {
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
            };
            denied(rules, rule, why)
        })
}
