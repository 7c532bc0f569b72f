//! Remembers requests whose claim was closing. Such a request used the budget without any effect until its claim ended.
//! If it is sent again and again, it would get a new claim each time. Therefore the request rests: for a while it may
//! get a claim only if the budget has headroom for at least one more Pod.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::Uid;

/// How long a request rests after it was last denied because its claim was closing. With the API server's default
/// request timeout, a closing claim lasts about as long, so other requests can use its part of the budget half of the
/// time.
pub const COOLDOWN: Duration = Duration::from_secs(120);

/// The resting requests of one rule object, as this replica has denied them. Resting only ever denies. Therefore a
/// replica may forget it, and replicas need not agree on it.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns(HashMap<(Uid, ClaimOperation), Instant>);

impl Cooldowns {
    /// Makes a request rest that was denied because its claim is closing. A Pod whose lifecycle waits to begin does not
    /// rest. Such a Pod keeps its place in the wait queue, so the Pods behind it would have to wait, too.
    pub fn start_cooldown(&mut self, pod: &Uid, operation: ClaimOperation, now: Instant) {
        self.0.retain(|_, end| *end > now);
        if operation != ClaimOperation::Begin {
            self.0.insert((pod.clone(), operation), now + COOLDOWN);
        }
    }

    /// How much longer this request rests. `None` if it does not rest.
    pub fn remaining_cooldown(
        &self,
        pod: &str,
        operation: ClaimOperation,
        now: Instant,
    ) -> Option<Duration> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.get(&(pod.into(), operation))?;
        let remaining = end.saturating_duration_since(now);
        (!remaining.is_zero()).then_some(remaining)
    }
}
