//! Alarms and dashboard name only metrics and labels that exist in real scrapes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;
use testbed::source_files::sources_below;

use crate::objects::Ground;
use crate::state_metrics::exposition;
use crate::{alarms, all_alarms, dashboard, text};

/// The labels that Prometheus adds to each series of a target.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];

/// What Prometheus's parser says about a query.
#[derive(Debug, Deserialize)]
pub struct Query {
    selectors: Vec<Selector>,
    /// The labels of the result.
    result: Vec<String>,
    /// Whether the result has all labels of a metric.
    all: bool,
}

#[derive(Debug, Deserialize)]
struct Selector {
    metric: String,
    /// The labels that the query names, in matchers and in the expressions around the selector.
    labels: Vec<String>,
    matchers: BTreeMap<String, Vec<String>>,
}

/// Parses queries by Prometheus's parser.
fn parse(queries: &[String]) -> Vec<Query> {
    let mut command = Command::new(testbed::binaries::alarms().unwrap());
    command
        .arg("queries")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let input = json!(queries).to_string();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The label names of each metric in these texts.
fn labels_of_metrics(texts: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in texts.iter().flat_map(|text| text.lines()) {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let end = line.find(['{', ' ']).unwrap();
        let labels = known.entry(line[..end].to_owned()).or_default();
        // A value of a label may contain anything, so a name counts only before `="`.
        let inside = line[end..].split("=\"").map(|before| {
            let start = before.rfind(['{', ',']).map_or(0, |at| at + 1);
            before[start..].to_owned()
        });
        let names: Vec<String> = inside.collect();
        labels.extend(names[..names.len() - 1].iter().cloned());
    }
    known
}

#[test]
fn label_names_are_read_from_a_scrape() {
    let text = "# TYPE a gauge\na{x=\"1,y\",z=\"\"} 1\na{w=\"}\"} 2\nb 3\n".to_owned();
    let known = labels_of_metrics(&[text]);
    let names = |metric: &str| known[metric].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((names("a"), names("b")), (vec!["w", "x", "z"], vec![]));
}

/// A server has series of these metrics only with an adapter that calls a load balancer, which the plane has not. Their
/// labels are those of docs/metrics.md, which is generated from the program.
const OF_ADAPTERS: [(&str, &str); 2] = [
    ("operating_traffic_calls_total", ""),
    ("operating_traffic_wait_seconds", "_bucket"),
];

async fn known() -> BTreeMap<String, BTreeSet<String>> {
    let ground = Ground::shared().await;
    let texts = [&ground.scrapes[..], &[exposition(&ground.series)]].concat();
    let mut known = labels_of_metrics(&texts);
    let page = crate::read("docs/metrics.md");
    for (metric, suffix) in OF_ADAPTERS {
        let start = format!("| `{metric}` |");
        let row = page.lines().find(|line| line.starts_with(&start)).unwrap();
        let labels = row.split('|').nth(3).unwrap().split(',');
        let labels = labels.map(|label| label.trim().trim_matches('`').to_owned());
        known.insert(
            format!("{metric}{suffix}"),
            labels.chain(["le".to_owned()]).collect(),
        );
    }
    known
}

/// The labels of the metric of a selector. Without the name of a metric, they are those of a metric that has all labels of
/// the selector.
fn labels_of<'a>(
    selector: &Selector,
    known: &'a BTreeMap<String, BTreeSet<String>>,
) -> Option<&'a BTreeSet<String>> {
    let has_all = |labels: &&BTreeSet<String>| selector.labels.iter().all(|l| labels.contains(l));
    match selector.metric.as_str() {
        "" => known.values().find(has_all),
        metric => known.get(metric),
    }
}

/// What a query names that no scrape has.
fn unknown(query: &Query, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut unknown = Vec::new();
    for selector in &query.selectors {
        let Some(labels) = labels_of(selector, known) else {
            unknown.push(format!("metric {:?}", selector.metric));
            continue;
        };
        for label in &selector.labels {
            if !labels.contains(label) && !TARGET_LABELS.contains(&label.as_str()) {
                unknown.push(format!("label {label} of {}", selector.metric));
            }
        }
    }
    unknown
}

/// Whether the result of a query has a label.
fn has_label(query: &Query, label: &str, known: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let of_metric =
        |selector: &Selector| labels_of(selector, known).is_some_and(|l| l.contains(label));
    match query.all {
        true => TARGET_LABELS.contains(&label) || query.selectors.first().is_some_and(of_metric),
        false => query.result.iter().any(|l| l == label),
    }
}

/// The texts between these marks.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    let parts = text.split(open).skip(1);
    parts
        .filter_map(|part| Some(part.split_once(close)?.0.trim()))
        .collect()
}

#[tokio::test]
async fn alarms_name_existing_metrics_and_labels() {
    let known = known().await;
    let alarms = all_alarms();
    let queries: Vec<_> = alarms
        .iter()
        .map(|alarm| text(alarm, "expr").to_owned())
        .collect();
    let mut wrong = Vec::new();
    for (alarm, query) in alarms.iter().zip(parse(&queries)) {
        let name = text(alarm, "alert");
        wrong.extend(
            unknown(&query, &known)
                .into_iter()
                .map(|what| format!("{name}: {what}")),
        );
        // Alternatives of `or` have their own labels; Prometheus shows an absent label as an empty text.
        if queries
            .iter()
            .any(|q| q == text(alarm, "expr") && q.contains(" or "))
        {
            continue;
        }
        for part in between(text(&alarm["annotations"], "summary"), "$labels.", "}") {
            let label = part.split([' ', '}']).next().unwrap();
            if !has_label(&query, label, &known) {
                wrong.push(format!("{name}: $labels.{label}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The values that alarms about objects look for are texts of the program.
#[test]
fn object_alarms_match_values_of_the_program() {
    let alarms = alarms("object-alarms");
    let queries: Vec<_> = alarms
        .iter()
        .map(|alarm| text(alarm, "expr").to_owned())
        .collect();
    let sources: Vec<_> = sources_below("src")
        .into_iter()
        .map(|file| file.text)
        .collect();
    let mut values = BTreeSet::new();
    for selector in parse(&queries)
        .into_iter()
        .flat_map(|query| query.selectors)
    {
        let patterns = selector.matchers.into_values().flatten();
        values.extend(patterns.flat_map(|p| p.split('|').map(str::to_owned).collect::<Vec<_>>()));
    }
    assert!(values.len() > 8, "{values:?}");
    for value in values {
        let is_used = sources
            .iter()
            .any(|source| source.contains(&format!("\"{value}\"")));
        assert!(is_used, "{value}");
    }
}

#[tokio::test]
async fn dashboard_names_existing_metrics_and_labels() {
    let known = known().await;
    let dashboard = dashboard::load();
    let targets = dashboard::targets(&dashboard);
    let queries: Vec<_> = targets
        .iter()
        .map(|(_, target)| dashboard::query(target))
        .collect();
    let mut wrong = Vec::new();
    for ((title, target), query) in targets.iter().zip(parse(&queries)) {
        wrong.extend(
            unknown(&query, &known)
                .into_iter()
                .map(|what| format!("{title}: {what}")),
        );
        for label in between(text(target, "legendFormat"), "{{", "}}") {
            if !has_label(&query, label, &known) {
                wrong.push(format!("{title}: legend {label}"));
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else {
            continue;
        };
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|q| q.strip_suffix(')'));
        let (selector, label) = inside.and_then(|q| q.rsplit_once(", ")).unwrap();
        let parsed = parse(&[dashboard::substitute(selector)]);
        wrong.extend(unknown(&parsed[0], &known));
        if !has_label(&parsed[0], label, &known) {
            wrong.push(format!("variable: {query}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(targets.len() > 30, "{}", targets.len());
}

#[tokio::test]
async fn planted_unknown_names_are_found() {
    let known = known().await;
    for (query, legend, expected) in [
        (
            "sum by (reason) (rate(operating_denials_total[5m]))",
            "reason",
            vec![],
        ),
        (
            "operating_denial_total",
            "reason",
            vec!["metric \"operating_denial_total\""],
        ),
        (
            "sum by (cause) (operating_denials_total)",
            "cause",
            vec!["label cause of operating_denials_total"],
        ),
        (
            "operating_leader{replica=\"a\"}",
            "instance",
            vec!["label replica of operating_leader"],
        ),
        (
            "kube_collaset_status_replicas and on (zone) kube_collaset_spec_replicas",
            "name",
            vec![
                "label zone of kube_collaset_status_replicas",
                "label zone of kube_collaset_spec_replicas",
            ],
        ),
    ] {
        let parsed = &parse(&[query.to_owned()])[0];
        assert_eq!(unknown(parsed, &known), expected, "{query}");
        assert!(!has_label(parsed, "verdict", &known), "{query}");
        assert!(
            expected.len() == 1 || has_label(parsed, legend, &known),
            "{query}"
        );
    }
    let quantile =
        "histogram_quantile(0.9, sum by (le, route) (operating_review_duration_seconds_bucket))";
    let parsed = &parse(&[quantile.to_owned()])[0];
    assert!(has_label(parsed, "route", &known) && !has_label(parsed, "le", &known));
}
