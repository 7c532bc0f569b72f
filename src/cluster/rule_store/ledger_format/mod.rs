//! Converts the ledger to and from its form in the status. Builds of several versions share this form, see ADR 16.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use crate::api::podtransitionrule::{self as api, UnknownFields};
use crate::domain::inplace::ContainerBefore;
use crate::ledger::protocol::{Claim, ClaimOperation, Ledger};
use crate::ledger::store::{CarriedFields, ClaimDetail, Claims, Uid};

/// The format that this build writes, and the newest format that it reads. Builds of this format write unknown fields
/// and operations back as they read them. A change that needs more than this needs the next number.
const LEDGER_FORMAT: i64 = 1;

/// More attempts than any rule will have. Numbers above [`i64::MAX`] could not be stored.
const MAX_ATTEMPTS: i64 = i64::MAX / 2;

/// How to make an unusable ledger usable. An empty ledger starts at the present position of the Pods.
const RESET_REMEDY: &str = "empty the ledger, while nothing is deleted or evicted, by setting status.ledger of the rule to null \
                     (kubectl patch --subresource=status --type=merge -p '{\"status\":{\"ledger\":null}}')";

/// Why no decision is possible by the stored ledger, and what to do. `None` if the ledger is valid.
pub fn find_fault(ledger: &api::Ledger) -> Option<String> {
    let format = ledger.format_version;
    if format > LEDGER_FORMAT {
        return Some(format!(
            "status.ledger.formatVersion is {format}, and this replica reads formats up to {LEDGER_FORMAT}: run the newer version of \
             the server on all replicas, or, to stay with this one, {RESET_REMEDY}"
        ));
    }
    if let Some(why) = &ledger.unreadable {
        return Some(format!(
            "status.ledger can't be read ({why}): {RESET_REMEDY}"
        ));
    }
    let (mark, attempts) = (&ledger.watermark, ledger.attempts);
    if !mark.is_empty() && mark.parse::<u64>().is_err() {
        return Some(format!(
            "status.ledger.watermark is {mark:?}, which is no resourceVersion: {RESET_REMEDY}"
        ));
    }
    (attempts > MAX_ATTEMPTS).then(|| {
        format!(
            "status.ledger.attempts is {attempts}, more than there can have been: {RESET_REMEDY}"
        )
    })
}

/// The claims of a stored ledger. Claims of operations that this build does not know count like all others, and are
/// released only with their Pod.
pub fn claims_from_status(ledger: &api::Ledger) -> Claims {
    let numbers = ledger.claims.iter().map(|c| c.attempt);
    let attempts = numbers.chain([ledger.attempts]).max();
    let mut claims = BTreeMap::<_, Claim<ClaimDetail>>::new();
    for stored in &ledger.claims {
        let operation = ClaimOperation::parse(stored.operation.as_str());
        let key = (Uid::from(stored.pod_uid.as_str()), operation);
        let mut claim = claim_from_stored(stored, operation);
        if let Some(other) = claims.remove(&key) {
            claim = merge_unknown_claims(other, claim);
        }
        claims.insert(key, claim);
    }
    Ledger {
        claims,
        watermark: ledger.watermark.parse().unwrap_or(0),
        attempts: attempts.map_or(0, version_from_stored),
    }
}

fn version_from_stored(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

fn claim_from_stored(stored: &api::Claim, operation: ClaimOperation) -> Claim<ClaimDetail> {
    let attempt = version_from_stored(stored.attempt);
    Claim {
        // No Pod is newer than an unreadable version. The ledger later lowers it to the present position of the Pods.
        at: stored.resource_version.parse().unwrap_or(u64::MAX),
        attempt,
        opened: stored.opened.map_or(attempt, version_from_stored),
        closing: stored.closing,
        detail: ClaimDetail {
            pod_name: stored.pod_name.clone(),
            since: stored.since.0,
            until: stored.until.0,
            target: stored.target.clone(),
            containers: stored
                .containers
                .iter()
                .map(container_from_stored)
                .collect(),
            carried: carried_from_stored(stored, operation).map(Arc::new),
        },
    }
}

/// Merges two claims of one Pod for operations that this build does not know, because this build counts them as one
/// claim.
fn merge_unknown_claims(
    first: Claim<ClaimDetail>,
    second: Claim<ClaimDetail>,
) -> Claim<ClaimDetail> {
    let stored = |claim: &Claim<ClaimDetail>| {
        let carried = claim.detail.carried.as_ref();
        carried.map_or_else(Vec::new, |carried| carried.claims.clone())
    };
    let carried = CarriedFields {
        claims: [stored(&first), stored(&second)].concat(),
        ..CarriedFields::default()
    };
    Claim {
        at: first.at.max(second.at),
        attempt: first.attempt.max(second.attempt),
        opened: first.opened.max(second.opened),
        closing: first.closing && second.closing,
        detail: ClaimDetail {
            carried: Some(Arc::new(carried)),
            ..first.detail
        },
    }
}

fn carried_from_stored(stored: &api::Claim, operation: ClaimOperation) -> Option<CarriedFields> {
    if operation == ClaimOperation::Unknown {
        return Some(CarriedFields {
            claims: vec![stored.clone()],
            ..CarriedFields::default()
        });
    }
    let containers = stored.containers.iter().filter(|c| !c.unknown.is_empty());
    let containers: BTreeMap<_, _> = containers
        .map(|c| (c.name.clone(), c.unknown.clone()))
        .collect();
    let any = !stored.unknown.is_empty() || !containers.is_empty();
    any.then(|| CarriedFields {
        claims: Vec::new(),
        fields: stored.unknown.clone(),
        containers,
    })
}

fn container_from_stored(container: &api::ClaimedContainer) -> ContainerBefore {
    ContainerBefore {
        name: container.name.clone(),
        run: container.container_id.clone(),
        image: u64::from_str_radix(&container.image_hash, 16).ok(),
        by_resources: container.by_resources,
    }
}

/// The ledger in its stored form.
pub fn claims_to_status(claims: &Claims) -> api::Ledger {
    let mut all = Vec::new();
    for ((uid, operation), claim) in &claims.claims {
        match claim.detail.carried.as_deref() {
            Some(carried) if *operation == ClaimOperation::Unknown => {
                all.extend(carried.claims.iter().cloned());
            }
            carried => all.push(claim_to_stored(uid, *operation, claim, carried)),
        }
    }
    api::Ledger {
        format_version: LEDGER_FORMAT,
        claims: all,
        watermark: claims.watermark.to_string(),
        attempts: version_to_stored(claims.attempts),
        unreadable: None,
    }
}

/// Whether a ledger that the API server returned holds exactly these claims.
pub fn has_exact_claims(ledger: &api::Ledger, claims: &Claims) -> bool {
    let sent = serde_json::to_value(claims_to_status(claims)).and_then(api::Ledger::deserialize);
    ledger.unreadable.is_none() && sent.is_ok_and(|sent| sent == *ledger)
}

fn version_to_stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn claim_to_stored(
    uid: &Uid,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
    carried: Option<&CarriedFields>,
) -> api::Claim {
    let containers = claim.detail.containers.iter();
    api::Claim {
        pod_name: claim.detail.pod_name.clone(),
        pod_uid: uid.to_string(),
        operation: operation.as_str().to_owned(),
        resource_version: claim.at.to_string(),
        attempt: version_to_stored(claim.attempt),
        opened: (claim.opened != claim.attempt).then(|| version_to_stored(claim.opened)),
        closing: claim.closing,
        since: Time(claim.detail.since),
        until: Time(claim.detail.until),
        target: claim.detail.target.clone(),
        containers: containers
            .map(|before| container_to_stored(before, carried))
            .collect(),
        unknown: carried.map_or_else(UnknownFields::new, |carried| carried.fields.clone()),
    }
}

fn container_to_stored(
    before: &ContainerBefore,
    carried: Option<&CarriedFields>,
) -> api::ClaimedContainer {
    let unknown = carried.and_then(|carried| carried.containers.get(&before.name));
    api::ClaimedContainer {
        name: before.name.clone(),
        container_id: before.run.clone(),
        image_hash: before
            .image
            .map_or_else(String::new, |image| format!("{image:016x}")),
        by_resources: before.by_resources,
        unknown: unknown.cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
