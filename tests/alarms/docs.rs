//! The pages about alarms and metrics name every alarm, and only metrics that exist.

use std::collections::BTreeSet;

use operating::admission::denial_counts::DENIAL_REASONS;
use testbed::source_files::sources_below;

const ALARMS: &str = include_str!("../../manifests/monitoring/alarms.yaml");
const DENIALS: &str = include_str!("../../docs/denials.md");
const METRICS: &str = include_str!("../../docs/metrics.md");
const TESTS: &str = include_str!("main.rs");

fn alarms() -> BTreeSet<&'static str> {
    let lines = ALARMS.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix("- alert: "))
        .collect()
}

#[test]
fn page_about_denials_has_every_reason() {
    let rows = DENIALS
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: Vec<_> = rows.collect();
    let unique: BTreeSet<_> = documented.iter().copied().collect();
    assert_eq!(documented.len(), unique.len());
    assert_eq!(unique, DENIAL_REASONS.iter().copied().collect());
}

/// A reason that is missing in the list would be counted as `other`.
#[test]
fn every_held_reason_in_the_code_is_listed() {
    let mut reasons = BTreeSet::new();
    for file in sources_below("src") {
        let calls = file.text.split("with_audit(\"held\", \"").skip(1);
        let names = calls.filter_map(|call| call.split('"').next());
        reasons.extend(names.map(str::to_owned));
    }
    reasons.remove("Pod web-1"); // a unit test of unknown reasons
    assert!(reasons.len() > 5, "{reasons:?}");
    for reason in reasons {
        assert!(DENIAL_REASONS.contains(&&*reason), "{reason}");
    }
}

#[test]
fn every_alarm_is_made_to_fire() {
    for alarm in alarms() {
        assert!(TESTS.contains(&format!("[\"{alarm}\"]")), "{alarm}");
    }
}

#[test]
fn alarms_use_existing_metrics() {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = ALARMS.split(|c| !is_name(c));
    let used = names.filter(|w| w.starts_with("operating_") || w.starts_with("process_"));
    let mut count = 0;
    for metric in used {
        // The number of observations of a histogram.
        let metric = metric.strip_suffix("_count").unwrap_or(metric);
        assert!(METRICS.contains(&format!("| `{metric}` |")), "{metric}");
        count += 1;
    }
    assert!(count > 10);
}

/// The metrics that the alarms read, each with labels such as `reason="path"`: one entry for each alternative of a
/// pattern.
pub fn selectors() -> BTreeSet<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let expressions: Vec<_> = ALARMS
        .lines()
        .filter(|line| !line.contains("summary:") && !line.contains("runbook:"))
        .collect();
    let text = expressions.join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in text
        .match_indices("operating_")
        .chain(text.match_indices("process_"))
    {
        if text[..at].ends_with(is_name) {
            continue;
        }
        let rest = &text[at..];
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (metric, rest) = rest.split_at(end);
        let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let mut all = vec![Vec::new()];
        for matcher in matchers
            .into_iter()
            .flat_map(|(inside, _)| inside.split(','))
        {
            if matcher.contains("!=") {
                continue;
            }
            let (label, value) = matcher.split_once('=').unwrap();
            let values: Vec<_> = value.trim_matches(['~', '"']).split('|').collect();
            let with = |known: &Vec<String>| {
                let known = known.clone();
                let with_value =
                    |value: &&str| [known.clone(), vec![format!("{label}=\"{value}\"")]].concat();
                values.iter().map(with_value).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        found.extend(all.into_iter().map(|labels| (metric.to_owned(), labels)));
    }
    found
}

/// The only metric with labels whose values a tenant chooses. The code bounds the number of its series.
const TENANT_METRIC: &str = "operating_rule_passed_by_ignore_total";

/// The labels whose values are texts of the program, or which the program or its configuration bounds.
const FIXED_LABELS: [&str; 18] = [
    "adapter",
    "call",
    "code",
    "controller",
    "failure",
    "listener",
    "operation",
    "outcome",
    "probe",
    "ready",
    "reason",
    "resource",
    "route",
    "standing",
    "traffic",
    "verb",
    "verdict",
    "version",
];

#[test]
fn tenants_choose_the_labels_of_one_metric_only() {
    let mut with_other_labels = BTreeSet::new();
    let mut labels = BTreeSet::new();
    for line in METRICS.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let names = cells[3].split(", ").map(|label| label.trim_matches('`'));
        for label in names.filter(|label| !label.is_empty()) {
            labels.insert(label);
            if !FIXED_LABELS.contains(&label) {
                with_other_labels.insert(cells[1].trim_matches('`'));
            }
        }
    }
    assert_eq!(with_other_labels, [TENANT_METRIC].into());
    assert!(FIXED_LABELS.iter().all(|label| labels.contains(label)));
    let exception = format!("The exception is `{TENANT_METRIC}`, which names at most 1,000 rules.");
    assert!(METRICS.contains(&exception));
}

#[test]
fn derived_labels_have_values_of_the_program() {
    let files = sources_below("src");
    let mut fields = 0;
    for file in &files {
        for labels in file.text.split("EncodeLabelSet)]").skip(1) {
            let (body, _) = labels.split_once("\n}").unwrap();
            for line in body
                .lines()
                .filter(|line| line.trim_end().ends_with(',') && !line.contains("///"))
            {
                let (name, kind) = line.split_once(": ").unwrap();
                // The value is a text of the program itself, or the code of `operating_api_calls_total`, which has few
                // values.
                let is_code = name.trim() == "pub code" && kind == "u16,";
                // The names of adapters are in the configuration of the server.
                let is_adapter = name.trim() == "adapter" && kind == "String,";
                let is_bounded = is_code || is_adapter;
                assert!(is_bounded || kind == "&'static str,", "{line}");
                fields += 1;
            }
        }
    }
    assert!(fields > 10, "{fields}");
    // `src/cli/serve/metrics.rs` writes labels by hand, also those of `TENANT_METRIC`.
    let by_hand = files
        .iter()
        .filter(|file| file.text.contains(".encode_family("))
        .count();
    assert_eq!(by_hand, 1);
}
