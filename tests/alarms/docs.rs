//! The pages about alarms and metrics speak of those that there are.

use std::collections::BTreeSet;

const ALARMS: &str = include_str!("../../manifests/monitoring/alarms.yaml");
const ON_CALL: &str = include_str!("../../docs/on-call.md");
const METRICS: &str = include_str!("../../docs/metrics.md");
const TESTS: &str = include_str!("main.rs");

fn alarms() -> BTreeSet<&'static str> {
    let lines = ALARMS.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix("- alert: "))
        .collect()
}

#[test]
fn every_alarm_has_a_section_for_who_is_on_call() {
    let lines = ON_CALL.lines();
    let sections: BTreeSet<_> = lines.filter_map(|line| line.strip_prefix("### ")).collect();
    assert_eq!(sections, alarms());
}

#[test]
fn every_alarm_is_made_to_fire() {
    for alarm in alarms() {
        assert!(TESTS.contains(&format!("[\"{alarm}\"]")), "{alarm}");
    }
}

#[test]
fn alarms_use_metrics_that_there_are() {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = ALARMS.split(|c| !is_name(c));
    let used = words.filter(|w| w.starts_with("operating_") || w.starts_with("process_"));
    let mut count = 0;
    for metric in used {
        assert!(METRICS.contains(&format!("| `{metric}` |")), "{metric}");
        count += 1;
    }
    assert!(count > 10);
}
