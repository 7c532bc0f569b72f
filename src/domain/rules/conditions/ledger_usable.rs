//! The condition `LedgerUsable`: whether the ledger of a rule object can be read, and whether the API server stores it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{ConditionFinding, new_finding};

/// Whether the API server stores the ledger of an object as the server writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LedgerStorage {
    /// No write has shown a loss.
    #[default]
    Unproven,
    /// The API server drops fields of the ledger, or the whole ledger.
    Dropped,
    /// The API server dropped fields before, but stores them now.
    Restored,
}

impl LedgerStorage {
    /// The state by `is_stored`, which is whether the last write was stored completely (`None`: there was no write),
    /// and by the stored conditions.
    pub fn from_last_write(is_stored: Option<bool>, conditions: &[Condition]) -> LedgerStorage {
        let has_reason = |reason| {
            let mut of_ledger = conditions.iter().filter(|c| c.type_ == LEDGER_USABLE);
            of_ledger.any(|c| c.reason == reason)
        };
        let was_dropped = has_reason(LEDGER_NOT_STORED);
        match is_stored {
            Some(false) => LedgerStorage::Dropped,
            None if was_dropped => LedgerStorage::Dropped,
            _ if was_dropped || has_reason(LEDGER_STORED) => LedgerStorage::Restored,
            _ => LedgerStorage::Unproven,
        }
    }
}

/// Why the API server may drop a field of the status, and the remedy.
pub const FIELD_DROPPED_MESSAGE: &str = "the PodTransitionRule definition in this cluster drops the field, or another webhook does. Apply the \
                           CustomResourceDefinitions of this version: `operating crds | kubectl apply -f -`";

/// Type of the condition of [`ledger_usable_condition`].
pub const LEDGER_USABLE: &str = "LedgerUsable";
const LEDGER_NOT_STORED: &str = "LedgerNotStored";
const LEDGER_STORED: &str = "LedgerStored";

/// The condition `LedgerUsable`. `None` if the ledger is usable and was not repaired. `fault` is why the ledger can't
/// be used, `repair` is how it was repaired.
pub fn ledger_usable_condition(
    fault: Option<&str>,
    storage: LedgerStorage,
    repair: Option<&str>,
) -> Option<ConditionFinding> {
    if let Some(fault) = fault {
        let message =
            format!("every disruption of an available Pod of this rule is denied: {fault}");
        return Some(new_finding("False", "LedgerUnusable", message));
    }
    if storage == LedgerStorage::Dropped {
        let message = format!(
            "every disruption of an available Pod of this rule is denied, because the API server does not store status.ledger as \
             it is written: {FIELD_DROPPED_MESSAGE}"
        );
        return Some(new_finding("False", LEDGER_NOT_STORED, message));
    }
    if storage == LedgerStorage::Restored && repair.is_none() {
        let message = "the API server stores status.ledger again as it is written".to_owned();
        return Some(new_finding("True", LEDGER_STORED, message));
    }
    let repair = repair?;
    let message = format!(
        "the ledger was repaired: {repair}. Such a ledger is forged, or was restored from another cluster: find out who \
         writes the status of this rule"
    );
    Some(new_finding("True", "LedgerMended", message))
}
