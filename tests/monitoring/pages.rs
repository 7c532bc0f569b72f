//! Each alarm has a page, which says what it means and what to do.

use std::collections::BTreeSet;
use std::fs;

use crate::{all_alarms, read, root, text};

/// The headings of a page, in their order.
const HEADINGS: [&str; 4] = ["## Meaning", "## Impact", "## Diagnosis", "## What to do"];

fn names() -> BTreeSet<String> {
    let alarms = all_alarms();
    let names: BTreeSet<_> = alarms
        .iter()
        .map(|alarm| text(alarm, "alert").to_owned())
        .collect();
    assert_eq!(names.len(), alarms.len(), "an alarm stands twice");
    names
}

#[test]
fn every_alarm_has_a_page_and_every_page_an_alarm() {
    let files = fs::read_dir(root().join("docs/alarms")).unwrap();
    let pages = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<_> = pages
        .map(|page| page.strip_suffix(".md").unwrap().to_owned())
        .collect();
    assert_eq!(pages, names());
}

#[test]
fn every_alarm_names_its_page_and_has_a_summary() {
    for alarm in all_alarms() {
        let name = text(&alarm, "alert");
        let annotations = &alarm["annotations"];
        assert_eq!(annotations["runbook"], format!("docs/alarms/{name}.md"));
        assert!(!text(annotations, "summary").is_empty());
        let severity = text(&alarm["labels"], "severity");
        assert!(["warning", "critical"].contains(&severity), "{name}");
    }
}

#[test]
fn every_page_has_all_parts() {
    for alarm in all_alarms() {
        let name = text(&alarm, "alert");
        let page = read(&format!("docs/alarms/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let headings: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("## "))
            .collect();
        assert_eq!(headings, HEADINGS, "{name}");
        let (_, diagnosis) = page.split_once(HEADINGS[2]).unwrap();
        let (diagnosis, _) = diagnosis.split_once("\n## ").unwrap();
        assert!(diagnosis.contains("```sh\n"), "{name}: no command");
        for part in page.split("\n## ").skip(1) {
            let (_, body) = part.split_once('\n').unwrap();
            assert!(!body.trim().is_empty(), "{name}: an empty part");
        }
        // The line above the first part has the severity, by which people decide when to read on.
        let severity = text(&alarm["labels"], "severity");
        assert!(page.contains(&format!("Severity: {severity}.")), "{name}");
    }
}

#[test]
fn page_on_call_lists_every_alarm() {
    let page = read("docs/on-call.md");
    for name in names() {
        assert!(
            page.contains(&format!("| [{name}](alarms/{name}.md) |")),
            "{name}"
        );
    }
}
