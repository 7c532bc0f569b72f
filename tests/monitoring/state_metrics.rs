//! What kube-state-metrics makes of a configuration of metrics of custom resources, by its documentation: paths, the
//! types Gauge, Info and StateSet, labels, and the conversion of values. A feature that the file of this repository does
//! not use is an error here.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Configuration {
    kind: String,
    spec: Resources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resource {
    pub group_version_kind: Kind,
    pub metric_name_prefix: String,
    pub labels_from_path: BTreeMap<String, Vec<String>>,
    #[serde(rename = "errorLogV")]
    _error_log_v: u8,
    pub metrics: Vec<Metric>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    name: String,
    pub help: String,
    pub each: Each,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Each {
    Gauge {
        gauge: Gauge,
    },
    Info {
        info: Info,
    },
    StateSet {
        #[serde(rename = "stateSet")]
        state_set: StateSet,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Gauge {
    pub path: Vec<String>,
    #[serde(default)]
    pub labels_from_path: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub value_from: Vec<String>,
    #[serde(default)]
    nil_is_zero: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Info {
    pub labels_from_path: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StateSet {
    pub path: Vec<String>,
    pub label_name: String,
    pub list: Vec<String>,
}

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub metric: String,
    pub labels: Labels,
    pub value: f64,
}

impl Configuration {
    pub fn parse(text: &str) -> Self {
        let parsed: Self = serde_norway::from_str(text).unwrap();
        assert_eq!(parsed.kind, "CustomResourceStateMetrics");
        parsed
    }

    pub fn resources(&self) -> &[Resource] {
        &self.spec.resources
    }

    /// The series of an object.
    pub fn series(&self, object: &Value) -> Vec<Series> {
        let is_of = |kind: &Kind| {
            object["kind"] == kind.kind
                && object["apiVersion"] == format!("{}/{}", kind.group, kind.version)
        };
        let resources = self.spec.resources.iter();
        let resources = resources.filter(|resource| is_of(&resource.group_version_kind));
        let series = resources.flat_map(|resource| resource.series(object));
        series.collect()
    }
}

impl Resource {
    pub fn name_of(&self, metric: &Metric) -> String {
        format!("{}_{}", self.metric_name_prefix, metric.name)
    }

    fn series(&self, object: &Value) -> Vec<Series> {
        let kind = &self.group_version_kind;
        let mut base = labels_at(object, &self.labels_from_path);
        for (label, value) in [
            ("group", &kind.group),
            ("version", &kind.version),
            ("kind", &kind.kind),
        ] {
            base.insert(format!("customresource_{label}"), value.clone());
        }
        let mut all = Vec::new();
        for metric in &self.metrics {
            for (own, value) in metric.each.values(object) {
                // A label of the value hides a label of the object.
                let mut labels = base.clone();
                labels.extend(own);
                let metric = self.name_of(metric);
                all.push(Series {
                    metric,
                    labels,
                    value,
                });
            }
        }
        all
    }
}

impl Each {
    /// The labels and the value of each series.
    fn values(&self, object: &Value) -> Vec<(Labels, f64)> {
        match self {
            Each::Gauge { gauge } => gauge.values(object),
            Each::Info { info } => {
                let labels = labels_at(object, &info.labels_from_path);
                let is_empty = labels.is_empty();
                (!is_empty).then_some((labels, 1.0)).into_iter().collect()
            }
            Each::StateSet { state_set } => {
                let Some(state) = resolve(object, &state_set.path).as_str().map(str::to_owned)
                else {
                    return Vec::new();
                };
                let entry = |listed: &String| {
                    let labels = Labels::from([(state_set.label_name.clone(), listed.clone())]);
                    (labels, f64::from(u8::from(*listed == state)))
                };
                state_set.list.iter().map(entry).collect()
            }
        }
    }
}

impl Gauge {
    fn values(&self, object: &Value) -> Vec<(Labels, f64)> {
        let found = resolve(object, &self.path);
        let elements = match &found {
            Value::Array(elements) => elements.clone(),
            Value::Object(_) => {
                panic!("{:?} leads to an object, which is not evaluated", self.path)
            }
            _ => vec![found],
        };
        let value = |element: &Value| {
            let value = match resolve(element, &self.value_from) {
                Value::Null if self.nil_is_zero => 0.0,
                Value::Null => return None,
                Value::String(status) if status == "Unknown" => return None,
                value => number(&value).unwrap_or_else(|| panic!("{value} is no number")),
            };
            Some((labels_at(element, &self.labels_from_path), value))
        };
        elements.iter().filter_map(value).collect()
    }
}

/// The value at a path; null where a part of it is absent.
fn resolve(value: &Value, path: &[String]) -> Value {
    let step = |value: &Value, part: &String| match value {
        Value::Object(fields) => fields.get(part).cloned().unwrap_or_default(),
        _ => Value::Null,
    };
    let mut found = value.clone();
    for part in path {
        assert!(!part.contains(['[', '=', '*']), "{part} is not evaluated");
        found = step(&found, part);
    }
    found
}

fn labels_at(value: &Value, paths: &BTreeMap<String, Vec<String>>) -> Labels {
    let label = |(name, path): (&String, &Vec<String>)| match resolve(value, path) {
        Value::Null => None,
        Value::String(text) => Some((name.clone(), text)),
        other => panic!("{path:?} is no text: {other}"),
    };
    paths.iter().filter_map(label).collect()
}

/// A number, a boolean, the status of a condition, or a time. What becomes of the status `Unknown` depends on the version of
/// kube-state-metrics, so it has no series here.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(is) => Some(f64::from(u8::from(*is))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match &*text.to_lowercase() {
            "true" | "yes" => Some(1.0),
            "false" | "no" => Some(0.0),
            _ => {
                let time: Option<Timestamp> = text.parse().ok();
                time.map(|time| time.as_second() as f64)
            }
        },
        _ => None,
    }
}

/// The series in the text format of Prometheus.
pub fn exposition(series: &[Series]) -> String {
    let mut text = String::new();
    for Series {
        metric,
        labels,
        value,
    } in series
    {
        let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v:?}")).collect();
        writeln!(text, "{metric}{{{}}} {value}", labels.join(",")).unwrap();
    }
    text
}

const EXAMPLE: &str = "
kind: CustomResourceStateMetrics
spec:
  resources:
    - groupVersionKind: { group: example.com, version: v1, kind: Shop }
      metricNamePrefix: shop
      labelsFromPath: { name: [metadata, name], tier: [spec, tier] }
      errorLogV: 6
      metrics:
        - { name: doors, help: h, each: { type: Gauge, gauge: { path: [spec, doors] } } }
        - { name: closed, help: h, each: { type: Gauge, gauge: { path: [spec, closed], nilIsZero: true } } }
        - { name: opened, help: h, each: { type: Gauge, gauge: { path: [status, opened] } } }
        - name: condition
          help: h
          each:
            type: Gauge
            gauge: { path: [status, conditions], labelsFromPath: { type: [type], name: [reason] }, valueFrom: [status] }
        - { name: info, help: h, each: { type: Info, info: { labelsFromPath: { owner: [spec, owner] } } } }
        - { name: phase, help: h, each: { type: StateSet, stateSet: { path: [status, phase], labelName: phase, list: [New, Old] } } }
";

fn evaluate(object: &Value) -> String {
    let common = "customresource_group=\"example.com\",customresource_kind=\"Shop\",customresource_version=\"v1\",";
    exposition(&Configuration::parse(EXAMPLE).series(object)).replace(common, "")
}

#[test]
fn every_type_of_metric_is_evaluated() {
    let text = evaluate(&json!({
        "apiVersion": "example.com/v1", "kind": "Shop", "metadata": { "name": "a" },
        "spec": { "doors": 3, "closed": true, "owner": "x" },
        "status": {
            "opened": "1970-01-01T00:01:00Z", "phase": "Old",
            "conditions": [
                { "type": "Ready", "status": "True" }, { "type": "Full", "status": "Unknown", "reason": "r" }, { "type": "Odd" },
            ],
        },
    }));
    let expected = [
        "shop_doors{name=\"a\"} 3",
        "shop_closed{name=\"a\"} 1",
        "shop_opened{name=\"a\"} 60",
        "shop_condition{name=\"a\",type=\"Ready\"} 1",
        "shop_info{name=\"a\",owner=\"x\"} 1",
        "shop_phase{name=\"a\",phase=\"New\"} 0",
        "shop_phase{name=\"a\",phase=\"Old\"} 1",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn absent_fields_have_no_series_unless_nil_is_zero() {
    let shop =
        json!({ "apiVersion": "example.com/v1", "kind": "Shop", "metadata": { "name": "a" } });
    assert_eq!(evaluate(&shop), "shop_closed{name=\"a\"} 0\n");
    let other =
        json!({ "apiVersion": "example.com/v2", "kind": "Shop", "metadata": { "name": "a" } });
    assert_eq!(evaluate(&other), "");
}
