mod unwritten;

use super::*;

#[test]
fn pods_that_are_woken_within_a_period_are_woken_together() {
    let begin = Instant::now();
    assert_eq!(next_wake_at(None, begin), begin);
    let next = begin + WAKE_PERIOD;
    let soon = begin + WAKE_PERIOD / 3;
    assert_eq!(next_wake_at(Some(begin), soon), next);
    assert_eq!(next_wake_at(Some(next), soon), next);
    let late = next + WAKE_PERIOD;
    assert_eq!(next_wake_at(Some(next), next), next + WAKE_PERIOD);
    assert_eq!(next_wake_at(Some(next), late), late);
}

#[test]
fn only_counts_wait_while_pods_are_woken() {
    for calls_endpoints in [false, true] {
        for is_busy in [false, true] {
            assert_eq!(
                status_period(StatusUrgency::Verdicts, calls_endpoints, is_busy),
                VERDICTS_PERIOD
            );
            assert_eq!(
                status_period(StatusUrgency::Conditions, calls_endpoints, is_busy),
                STATUS_PERIOD
            );
        }
    }
    assert_eq!(
        status_period(StatusUrgency::Counts, false, false),
        STATUS_PERIOD
    );
    assert_eq!(
        status_period(StatusUrgency::Counts, false, true),
        BUSY_PERIOD
    );
    assert_eq!(
        status_period(StatusUrgency::Counts, true, true),
        COUNTS_PERIOD
    );
}
