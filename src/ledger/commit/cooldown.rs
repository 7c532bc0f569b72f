//! Requests that held a place until it was taken from them, and had no effect all the while. Sent again and again they would
//! take it again whenever it is given back. So they rest: for a while they may take any place but the last one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::ledger::protocol::Operation;
use crate::ledger::store::Uid;

/// How long a request rests after it was last refused because its claim is closing. About as long as such a claim holds its
/// place with the API server's default request timeout, so that others have half of the time.
pub const COOLDOWN: Duration = Duration::from_secs(120);

/// The requests of one rule object that rest, as this replica has answered them. Resting only ever refuses, so it may be
/// forgotten, and replicas need not agree on it.
#[derive(Clone, Debug, Default)]
pub struct Cooldowns(HashMap<(Uid, Operation), Instant>);

impl Cooldowns {
    /// The claim for this operation on the Pod is closing. A Pod whose lifecycle waits to begin does not rest: it keeps its
    /// turn, and those behind it would wait with it.
    pub fn start_cooldown(&mut self, pod: &Uid, operation: Operation, now: Instant) {
        self.0.retain(|_, end| *end > now);
        if operation != Operation::Begin {
            self.0.insert((pod.clone(), operation), now + COOLDOWN);
        }
    }

    /// How long this request still rests, if it does.
    pub fn remaining_cooldown(
        &self,
        pod: &str,
        operation: Operation,
        now: Instant,
    ) -> Option<Duration> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.get(&(pod.into(), operation))?;
        let left = end.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}
