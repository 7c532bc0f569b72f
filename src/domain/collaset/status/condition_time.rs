//! The times that conditions and messages contain.

use jiff::Timestamp;

/// Returns the time for a condition, in whole seconds. `now_nanos` is in nanoseconds since 1970.
pub fn condition_time(now_nanos: u64) -> Timestamp {
    let seconds = i64::try_from(now_nanos / 1_000_000_000).unwrap_or(0);
    Timestamp::from_second(seconds).unwrap_or_default()
}
