//! Claims in the status of a rule, as a replica of another version, or a hand, may have left them.

use std::collections::BTreeSet;

use operating::api::podtransitionrule::Ledger;
use operating::fuzzing::{claims_from_status, claims_to_status};

use super::read;

/// No Pod loses its claim by being read or written, no number goes back, and what was read once is read the same again.
pub fn run(data: &[u8]) {
    let Some(stored) = read::<Ledger>(data) else {
        return;
    };
    let claims = claims_from_status(&stored);
    for claim in &stored.claims {
        assert!(claims.holds(&claim.pod_uid.as_str().into()), "{claim:?}");
        assert!(i128::from(claims.attempts) >= i128::from(claim.attempt));
    }
    assert!(i128::from(claims.attempts) >= i128::from(stored.attempts));
    if let Ok(watermark) = stored.watermark.parse::<u64>() {
        assert!(claims.watermark >= watermark);
    }
    let written = claims_to_status(&claims);
    let words = |ledger: &Ledger| -> BTreeSet<(String, String)> {
        let all = ledger.claims.iter();
        all.map(|c| (c.pod_uid.clone(), c.operation.clone()))
            .collect()
    };
    assert_eq!(words(&written), words(&stored), "claims by their words");
    assert_eq!(claims_from_status(&written), claims);
}
