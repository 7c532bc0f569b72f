//! Claims that outlast their ledger: a CustomResourceDefinition that drops `status.ledger` loses them, and a replica that starts
//! then begins an empty ledger.
//!
//! The number of attempts tells such a ledger from one that has gone on: it never goes back, since whoever writes a ledger
//! takes the number from the one before.

use std::sync::Arc;

use super::protocol::{Claim, Operation};
use super::store::{ClaimDetail, Claims, RuleSnapshot};

impl RuleSnapshot {
    /// This object with the claims that `known`, an earlier look at it, has: those of a ledger that has vanished, and those of
    /// one that somebody began anew without knowing them.
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
        // Without any attempt nobody has decided by it: it was emptied by hand, because it could not be used.
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

    /// Whether the object lacks claims, or a watermark, that it has held before: they are to be written back.
    pub fn needs_write_back(&self) -> bool {
        self.fault.is_none()
            && (self.forgotten.is_some() || (0 < self.held && self.held < self.version))
    }
}

/// The claims of both. All of it is newer than either: the next write is taken for the truth by whoever remembers no more.
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

/// One claim for the requests that either has admitted. Nobody knows its number, so that it ends by what comes later alone.
fn merge_claims(
    earlier: &Claim<ClaimDetail>,
    claim: &Claim<ClaimDetail>,
    operation: Operation,
    attempt: u64,
) -> Claim<ClaimDetail> {
    if operation == Operation::Unknown {
        return claim.clone(); // what a newer build has stored is written back as it was
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
