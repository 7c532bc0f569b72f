//! Reads the times in objects and labels.

use jiff::Timestamp;

/// The time of a Kubernetes object. `None` if the text is no time.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// A smaller label value is not a time: somebody wrote another value, such as `true` or `1`.
const EARLIEST_STAMP: i64 = 946_684_800; // the year 2000

/// The time in the value of a label, in nanoseconds since 1970 (contract 3.1). `None` if the value is not a time.
pub fn parse_stamp(value: Option<&str>) -> Option<Timestamp> {
    let nanos: i128 = value?.parse().ok()?;
    let time = Timestamp::from_nanosecond(nanos).ok()?;
    (time.as_second() >= EARLIEST_STAMP).then_some(time)
}
