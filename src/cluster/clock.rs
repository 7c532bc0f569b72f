//! The time by the API server's clock.
//!
//! Replicas compare times that others have written: the API server writes `creationTimestamp`, and another replica
//! writes the time of a restart. A replica whose clock is one hour wrong would believe a restart too early, or would
//! keep a Pod off traffic for one hour. Therefore all replicas use the API server's clock. Every response of the API
//! server has the time in its `Date` header.
//!
//! The clocks of several API servers may differ. To keep the time from jumping with each response, the first response
//! counts at once, and a different time counts only after no response has agreed with the present one for some time. A
//! time that must not be reached too early is compared with the clock that is furthest behind: see [`earliest_now`].
//!
//! The clock of this machine is read only once. Afterwards its monotonic clock counts, so that a change of the clock,
//! by hand or by NTP, does not change the time here.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::DATE;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Differences of up to this many seconds are ignored: `Date` has whole seconds, and a response takes some time.
const TOLERANCE_SECONDS: i64 = 3;

/// A different time is used after this many responses in a row that agree on it, over at least [`MIN_AGREEING_PERIOD`].
const MIN_AGREEING_RESPONSES: u32 = 5;
const MIN_AGREEING_PERIOD: Duration = Duration::from_secs(10);

/// The least time between two warnings.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// How long an API server's clock that was behind counts in [`earliest_now`]: at least this long, and at most twice as
/// long while other API servers answer.
const MIN_OFFSET_MEMORY: Duration = Duration::from_secs(600);

static CLOCK_OFFSETS: Mutex<ClockOffsets> = Mutex::new(ClockOffsets {
    ahead: None,
    other: None,
    warned: None,
    behind: LowestOffset {
        current: None,
        before: None,
        since: None,
    },
});

/// When this process first asked for the time, by the monotonic clock and the wall clock of the machine.
static PROCESS_START: LazyLock<(Instant, Timestamp)> =
    LazyLock::new(|| (Instant::now(), Timestamp::now()));

/// The clock offsets that responses of the API servers have shown.
#[derive(Debug, Default)]
struct ClockOffsets {
    /// How many seconds the API server's clock is ahead of this machine's clock, see [`local_now`]. `None` before the
    /// first response.
    ahead: Option<i64>,
    /// A different offset, if all responses since the last one that agreed with `ahead` have shown it.
    other: Option<OffsetCandidate>,
    warned: Option<Instant>,
    behind: LowestOffset,
}

/// The lowest offset of recent responses, kept for two periods of [`MIN_OFFSET_MEMORY`].
#[derive(Debug, Default)]
struct LowestOffset {
    current: Option<i64>,
    before: Option<i64>,
    /// When the current period began.
    since: Option<Instant>,
}

impl LowestOffset {
    fn record_lowest(&mut self, ahead: i64, at: Instant) {
        let since = *self.since.get_or_insert(at);
        if at.duration_since(since) >= MIN_OFFSET_MEMORY {
            (self.before, self.current, self.since) = (self.current.take(), None, Some(at));
        }
        self.current = Some(self.current.map_or(ahead, |least| least.min(ahead)));
    }

    fn lowest_offset(&self) -> Option<i64> {
        self.current.into_iter().chain(self.before).min()
    }
}

#[derive(Debug)]
struct OffsetCandidate {
    ahead: i64,
    responses: u32,
    since: Instant,
}

/// The present time by the API server's clock, as its responses have shown.
pub fn now() -> Timestamp {
    apply_offset(local_now(), CLOCK_OFFSETS.lock().ahead.unwrap_or(0))
}

/// The present time by the clock that is furthest behind, of the API servers that have answered in the last ten
/// minutes. It is never later than [`now`]. Use it to check that a period is over, so that an API server whose clock is
/// ahead does not end the period early. The clock of an API server that has not answered this process may be further
/// behind.
pub fn earliest_now() -> Timestamp {
    let ahead = CLOCK_OFFSETS.lock().earliest_offset();
    apply_offset(local_now(), ahead)
}

/// The present time by this machine's monotonic clock, counted from its wall clock at the first call.
fn local_now() -> Timestamp {
    monotonic_now(*PROCESS_START, Instant::now())
}

fn monotonic_now((begin, time): (Instant, Timestamp), at: Instant) -> Timestamp {
    let passed = SignedDuration::try_from(at.saturating_duration_since(begin));
    let now = passed.ok().and_then(|passed| time.checked_add(passed).ok());
    now.unwrap_or(time)
}

/// Learns the API server's time from the headers of a response.
pub fn observe_date_header(headers: &HeaderMap) {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let Some(date) = date else { return };
    let ahead = offset_seconds(date.timestamp(), local_now());
    let mut offsets = CLOCK_OFFSETS.lock();
    if offsets.record_offset(ahead, Instant::now()) {
        let used = offsets.ahead.unwrap_or(0);
        drop(offsets);
        tracing::warn!(
            ahead,
            used,
            "the clocks of an API server and of this machine differ: the field ahead says by how many seconds the clock of \
             the API server is ahead, measured from the start of this process; this replica now assumes the number in \
             the field used. Synchronize the clocks of this machine and of the machines of the control plane"
        );
    }
}

impl ClockOffsets {
    /// Records that a response showed this offset in seconds. Returns whether to log a warning.
    fn record_offset(&mut self, ahead: i64, at: Instant) -> bool {
        self.behind.record_lowest(ahead, at);
        let before = self.ahead.unwrap_or(0);
        let used = *self.ahead.get_or_insert(ahead);
        if is_within_tolerance(ahead, used) {
            self.other = None;
        } else {
            let same = self
                .other
                .take()
                .filter(|o| is_within_tolerance(o.ahead, ahead));
            let mut other = same.unwrap_or(OffsetCandidate {
                ahead,
                responses: 0,
                since: at,
            });
            other.responses += 1;
            if other.responses >= MIN_AGREEING_RESPONSES
                && at.duration_since(other.since) >= MIN_AGREEING_PERIOD
            {
                self.ahead = Some(ahead);
            } else {
                self.other = Some(other);
            }
        }
        let is_told = self
            .warned
            .is_some_and(|w| at.duration_since(w) < WARN_INTERVAL);
        let warns = !is_told && !is_within_tolerance(ahead, before);
        if warns {
            self.warned = Some(at);
        }
        warns
    }

    /// How many seconds the clock that is furthest behind is ahead of this machine's clock; never more than the offset
    /// in use.
    fn earliest_offset(&self) -> i64 {
        let used = self.ahead.unwrap_or(0);
        self.behind
            .lowest_offset()
            .map_or(used, |least| least.min(used))
    }
}

fn is_within_tolerance(first: i64, second: i64) -> bool {
    (first - second).abs() <= TOLERANCE_SECONDS
}

fn offset_seconds(server: Timestamp, local: Timestamp) -> i64 {
    let seconds = server.duration_since(local).as_secs();
    if is_within_tolerance(seconds, 0) {
        0
    } else {
        seconds
    }
}

fn apply_offset(local: Timestamp, ahead: i64) -> Timestamp {
    let server = local.checked_add(SignedDuration::from_secs(ahead));
    server.unwrap_or(local)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clock_that_is_hours_off_follows_the_api_servers() {
        let real: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        for hours in [-1, 1, 24 * 400] {
            let here = real + SignedDuration::from_hours(hours);
            assert_eq!(apply_offset(here, offset_seconds(real, here)), real);
        }
        let here = real + SignedDuration::from_millis(1_500);
        assert_eq!(apply_offset(here, offset_seconds(real, here)), here);
    }

    /// The offset in use after each of these responses, one per second, and the number of warnings.
    fn record_responses(responses: impl IntoIterator<Item = i64>) -> (Vec<i64>, usize) {
        let (mut told, mut warnings) = (ClockOffsets::default(), 0);
        let start = Instant::now();
        let used = responses.into_iter().zip(0..).map(|(ahead, second)| {
            warnings += usize::from(told.record_offset(ahead, start + Duration::from_secs(second)));
            told.ahead.unwrap()
        });
        (used.collect(), warnings)
    }

    #[test]
    fn api_servers_that_differ_do_not_move_the_time() {
        // Three responses of one API server, then seven of the other.
        let responses = (0..180).map(|second| if second % 10 < 3 { 0 } else { 40 });
        let (used, warnings) = record_responses(responses);
        assert!(used.iter().all(|used| *used == 0), "{used:?}");
        assert_eq!(warnings, 3, "one a minute");
        // Two API servers that differ from the first and from each other do not move the time either.
        let (used, _) = record_responses((0..60).map(|second| {
            if second == 0 {
                0
            } else {
                40 * (second % 2 + 1)
            }
        }));
        assert!(used.iter().all(|used| *used == 0), "{used:?}");
    }

    #[test]
    fn first_clock_offset_counts_at_once_another_after_delay() {
        let (used, warnings) = record_responses([-3600; 3].into_iter().chain([7; 20]));
        assert!(used[..13].iter().all(|used| *used == -3600), "{used:?}");
        assert!(used[13..].iter().all(|used| *used == 7), "{used:?}");
        assert_eq!(warnings, 1);
        assert_eq!(record_responses([0, 1, -2, 3]), (vec![0; 4], 0));
    }

    #[test]
    fn earliest_time_is_that_of_the_clock_that_is_behind() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        // The first response sets the time. The clock of the second API server is behind or ahead.
        for (first, second, least) in [(0, -40, -40), (40, 0, 0), (-40, 0, -40), (0, 40, 0)] {
            let mut told = ClockOffsets::default();
            assert_eq!(told.earliest_offset(), 0);
            for n in 0..60 {
                let ahead = if n % 2 == 0 { first } else { second };
                told.record_offset(ahead, at(n));
            }
            assert_eq!((told.ahead, told.earliest_offset()), (Some(first), least));
        }
    }

    #[test]
    fn clock_that_jumps_ahead_is_not_believed_early() {
        let mut told = ClockOffsets::default();
        let start = Instant::now();
        told.record_offset(0, start);
        let last = 2 * MIN_OFFSET_MEMORY.as_secs();
        for second in 1..=last {
            told.record_offset(3_600, start + Duration::from_secs(second));
            if second < MIN_OFFSET_MEMORY.as_secs() {
                assert_eq!(told.earliest_offset(), 0, "{second}");
            }
        }
        assert_eq!((told.ahead, told.earliest_offset()), (Some(3_600), 3_600));
        // A clock that jumps back counts at once.
        told.record_offset(0, start + Duration::from_secs(last + 1));
        assert_eq!((told.ahead, told.earliest_offset()), (Some(3_600), 0));
    }

    #[test]
    fn own_time_advances_only_with_monotonic_clock() {
        let begin = (Instant::now(), Timestamp::UNIX_EPOCH);
        let later = begin.0 + Duration::from_secs(90);
        assert_eq!(monotonic_now(begin, later).as_second(), 90);
        let before = begin.0.checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(monotonic_now(begin, before), begin.1);
    }

    #[test]
    fn many_responses_within_a_moment_do_not_move_the_time() {
        let mut told = ClockOffsets::default();
        let start = Instant::now();
        told.record_offset(0, start);
        for _ in 0..1000 {
            told.record_offset(40, start);
        }
        assert_eq!(told.ahead, Some(0));
        // Single responses, one a minute, do not count as agreement either.
        let mut told = ClockOffsets::default();
        told.record_offset(0, start);
        for minute in 1..MIN_AGREEING_RESPONSES {
            told.record_offset(40, start + WARN_INTERVAL * minute);
        }
        assert_eq!(told.ahead, Some(0));
    }

    #[test]
    fn date_of_a_response_is_read() {
        let mut headers = HeaderMap::new();
        observe_date_header(&headers);
        headers.insert(DATE, "Sun, 01 Mar 2026 12:00:00 GMT".parse().unwrap());
        let date = headers[DATE].to_str().unwrap();
        let told = jiff::fmt::rfc2822::parse(date).unwrap().timestamp();
        assert_eq!(told.to_string(), "2026-03-01T12:00:00Z");
        headers.insert(DATE, "yesterday".parse().unwrap());
        observe_date_header(&headers);
        assert!(now().duration_since(Timestamp::now()).as_secs().abs() < 60);
    }
}
