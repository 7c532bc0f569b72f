//! Keeps claims when a ledger vanishes. A CustomResourceDefinition without `status.ledger` makes the API server drop
//! the claims, and a replica that starts afterwards begins an empty ledger.
//!
//! The number of attempts tells such a new ledger from one that has been continued. In a continued ledger the number
//! never decreases, because each writer starts from the number of the former ledger.

use std::sync::Arc;

use super::protocol::{Claim, ClaimOperation};
use super::store::{ClaimDetail, Claims, RuleSnapshot};

impl RuleSnapshot {
    /// Adds the claims that `known`, an earlier snapshot of the same object, has and this snapshot lacks: the claims of
    /// a ledger that has vanished, or of one that another writer began anew without knowing them.
    pub fn merge_remembered_claims(mut self, known: &RuleSnapshot) -> RuleSnapshot {
        let is_same = known.rules.uid == self.rules.uid;
        if !is_same || known.fault.is_some() || self.fault.is_some() {
            return self;
        }
        let is_vanished = self.held < self.version && self.forgotten.is_none();
        if is_vanished {
            if known.held > self.held {
                self.claims = Arc::clone(&known.claims);
                self.held = known.held;
                self.forgotten = known.forgotten.clone();
            }
            return self;
        }
        let remembered = known.forgotten.as_ref().unwrap_or(&known.claims);
        // A ledger without attempts admitted nothing: somebody emptied it by hand, because it could not be used.
        let is_begun = self.claims.attempts > 0;
        if is_begun && known.version < self.version && self.claims.attempts < remembered.attempts {
            self.claims = Arc::new(merge_ledgers(&self.claims, remembered));
            self.forgotten = Some(match &self.forgotten {
                Some(also) => Arc::new(merge_ledgers(also, remembered)),
                None => Arc::clone(remembered),
            });
        }
        self
    }

    /// Whether the stored object lacks claims, or a watermark, that it has held before. They must be written back.
    pub fn needs_write_back(&self) -> bool {
        self.fault.is_none()
            && (self.forgotten.is_some() || (0 < self.held && self.held < self.version))
    }
}

/// The claims of both ledgers. The merged ledger gets a higher number of attempts than either: a replica that remembers
/// no more than this takes the next write for the continuation of its own ledger.
fn merge_ledgers(stored: &Claims, remembered: &Claims) -> Claims {
    let attempts = stored.attempts.max(remembered.attempts).saturating_add(1);
    let mut claims = remembered.claims.clone();
    for (key, claim) in &stored.claims {
        let claim = match claims.remove(key) {
            Some(earlier) => merge_claims(&earlier, claim, key.1, attempts),
            None => claim.clone(),
        };
        claims.insert(key.clone(), claim);
    }
    Claims {
        claims,
        watermark: stored.watermark.max(remembered.watermark),
        attempts,
    }
}

/// One claim for the requests that either claim has admitted. Its attempt number is new, so no release or withdrawal of
/// the two former claims applies to it. Only a later release ends it.
fn merge_claims(
    earlier: &Claim<ClaimDetail>,
    claim: &Claim<ClaimDetail>,
    operation: ClaimOperation,
    attempt: u64,
) -> Claim<ClaimDetail> {
    if operation == ClaimOperation::Unknown {
        return claim.clone(); // claims of a newer build are written back as they were read
    }
    let detail = claim.detail.clone();
    Claim {
        at: earlier.at.max(claim.at),
        attempt,
        opened: earlier.opened,
        closing: earlier.closing || claim.closing,
        detail: detail.merge_earlier_detail(Some(&earlier.detail), operation, false),
    }
}

#[cfg(test)]
mod tests;
