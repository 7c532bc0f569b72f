//! The rules of Prometheus by promtool: they load, and each alarm fires for its cause and clears after it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testbed::kubectl::Said;

use crate::{RULE_FILES, alarms, all_alarms, read, run_in_repository, text, yaml};

fn promtool(directory: &Path, args: &[&str]) -> Said {
    let binary = testbed::binaries::promtool().unwrap();
    let mut command = Command::new(binary);
    command
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap()
        .into()
}

/// A directory with each rule file as Prometheus loads it, made by the command of docs/monitoring.md, and with the unit
/// tests in `tests`.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("tests")).unwrap();
    for file in RULE_FILES {
        let command = format!(
            "sed -n '/^spec:/,$p' manifests/monitoring/{file}.yaml | sed -e 1d -e 's/^  //' > {file}.yaml"
        );
        let page = read("docs/monitoring.md");
        assert!(
            page.contains(&command),
            "docs/monitoring.md lacks: {command}"
        );
        run_in_repository(directory.path(), &command);
        let rules: Value = serde_norway::from_str(
            &fs::read_to_string(directory.path().join(format!("{file}.yaml"))).unwrap(),
        )
        .unwrap();
        let object = yaml(&format!("manifests/monitoring/{file}.yaml"));
        assert_eq!(rules, object["spec"]);
        let tests = read(&format!("tests/monitoring/rules/{file}.yaml"));
        assert!(tests.contains(&format!("\nrule_files: [{file}.yaml]\n")));
        let tests = tests.replace("\nrule_files: [", "\nrule_files: [../");
        fs::write(
            directory.path().join("tests").join(format!("{file}.yaml")),
            tests,
        )
        .unwrap();
    }
    directory
}

#[test]
fn promtool_accepts_rules() {
    let directory = directory();
    for file in RULE_FILES {
        let said = promtool(
            directory.path(),
            &["check", "rules", "--lint-fatal", &format!("{file}.yaml")],
        );
        assert!(said.succeeded(), "{said:?}");
        assert!(
            said.out
                .contains(&format!("{} rules found", alarms(file).len())),
            "{said:?}"
        );
    }
}

#[test]
fn every_alarm_fires_and_clears_in_promtool() {
    let directory = directory();
    for file in RULE_FILES {
        let said = promtool(
            directory.path(),
            &["test", "rules", &format!("tests/{file}.yaml")],
        );
        assert!(said.succeeded(), "{}", said.text());
    }
}

#[test]
fn promtool_finds_planted_alarm_that_does_not_clear() {
    let directory = directory();
    let file = directory.path().join("tests/object-alarms.yaml");
    let tests = fs::read_to_string(&file).unwrap();
    let planted = tests.replace("values: \"_x5 1x20 stale\"", "values: \"_x5 1x60\"");
    assert_ne!(tests, planted);
    fs::write(&file, planted).unwrap();
    let said = promtool(
        directory.path(),
        &["test", "rules", "tests/object-alarms.yaml"],
    );
    assert!(!said.succeeded());
    assert!(
        said.text()
            .contains("alertname: OperatingRuleInvalid, time: 30m"),
        "{}",
        said.text()
    );
}

/// Each alarm has a test in which it fires with some labels, and later does not fire.
#[test]
fn unit_tests_show_every_alarm_firing_and_clearing() {
    for file in RULE_FILES {
        let tests = yaml(&format!("tests/monitoring/rules/{file}.yaml"));
        for alarm in alarms(file) {
            let name = text(&alarm, "alert");
            let shows = |test: &&Value| {
                let cases = test["alert_rule_test"].as_array().unwrap();
                let cases: Vec<_> = cases
                    .iter()
                    .filter(|case| case["alertname"] == name)
                    .collect();
                let fires = |case: &Value| {
                    case["exp_alerts"]
                        .as_array()
                        .is_some_and(|all| !all.is_empty())
                };
                let minute = |case: &Value| -> u32 {
                    text(case, "eval_time")
                        .trim_end_matches('m')
                        .parse()
                        .unwrap()
                };
                let first = cases
                    .iter()
                    .filter(|case| fires(case))
                    .map(|case| minute(case))
                    .min();
                first.is_some_and(|first| {
                    cases
                        .iter()
                        .any(|case| !fires(case) && minute(case) > first)
                })
            };
            let shown = tests["tests"]
                .as_array()
                .unwrap()
                .iter()
                .any(|test| shows(&test));
            assert!(shown, "{name}");
        }
    }
    assert!(all_alarms().len() > 30);
}
