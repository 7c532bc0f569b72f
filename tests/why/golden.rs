//! Situations of `tests/golden/why`: `NAME.yaml` is the input, `NAME.txt` and `NAME.json` are the output. `UPDATE=1
//! cargo test --test why golden` rewrites the output.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use operating::api::keys;
use operating::cli::why::tree;
use operating::domain::diagnosis::facts::DryRunDeletion;
use operating::domain::diagnosis::traffic::{AwaitedEmployer, awaited_employers};
use operating::domain::diagnosis::{ObservedPod, PodContext, PodController, RuleObject, diagnose};
use operating::domain::pod::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NOW: &str = "2026-01-01T12:00:00Z";

/// A situation, at [`NOW`]. Ages are such as `30s` or `5m`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Situation {
    /// Name of the Pod in question, one of `pods`.
    pod: String,
    pods: Vec<Shape>,
    #[serde(default)]
    rules: Vec<Value>,
    #[serde(default)]
    set: Option<Value>,
    /// OperationJobs, as they are stored.
    #[serde(default)]
    jobs: Vec<Value>,
    #[serde(default)]
    around: Surroundings,
}

/// The other objects around the Pod.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Surroundings {
    excluded: Option<String>,
    unscheduled: Option<String>,
    /// PodDisruptionBudgets, as they are stored.
    disruption_budgets: Vec<Value>,
    /// PodDecorations, as they are stored.
    decorations: Option<Vec<Value>>,
    /// Services of the namespace, as they are stored. A Service that is not listed does not exist.
    services: Vec<Value>,
    /// The API server's answer to a dry run: code and message; 200 if it passes.
    trial: Option<(u16, String)>,
    recreate: Option<String>,
}

impl Surroundings {
    fn read(self, pod: &Pod) -> PodContext {
        let services: Vec<Service> = self.services.into_iter().map(read).collect();
        let stored = |name: &str| {
            let mut services = services.iter();
            services.find(|service| service.metadata.name.as_deref() == Some(name))
        };
        let awaited = awaited_employers(pod).into_iter();
        let budgets = self.disruption_budgets.into_iter();
        PodContext {
            excluded: self.excluded,
            unscheduled: self.unscheduled,
            disruption_budgets: budgets.map(read).collect(),
            employers: awaited
                .map(|name| AwaitedEmployer {
                    service: stored(&name.name).cloned(),
                    name,
                })
                .collect(),
            decorations: self.decorations.map(|decorations| {
                let decorations = decorations.into_iter();
                decorations.map(read).collect()
            }),
            dry_run_deletion: self.trial.map(|(code, message)| match code {
                200 => DryRunDeletion::Allowed,
                code => DryRunDeletion::from_api_refusal(code, &message),
            }),
            recreate: self.recreate,
        }
    }
}

pub fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// A Pod of namespace `shop` with the label `app=web`. It is managed, has the readiness gate, and serves unless a field
/// says otherwise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    name: String,
    managed: bool,
    ready: bool,
    /// The condition behind the readiness gate.
    service_ready: bool,
    available: bool,
    /// Age of the readiness.
    since: String,
    /// Lifecycle labels in short form, with an age or a value: `operate/upgrade: 5m`.
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: Vec<String>,
    /// `Kind/name` of the controller.
    owner: Option<String>,
    /// Time of the deletion, as an age. A negative age is in the future.
    deletion: Option<String>,
    /// Name of its node.
    node: Option<String>,
    status: Value,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            name: String::new(),
            managed: true,
            ready: true,
            service_ready: true,
            available: true,
            since: "1h".to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            finalizers: Vec::new(),
            owner: None,
            deletion: None,
            node: None,
            status: json!({}),
        }
    }
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn ago(age: &str) -> Option<Timestamp> {
    let age: SignedDuration = age.parse().ok()?;
    now().checked_sub(age).ok()
}

fn label(short: &str, value: &str) -> (String, String) {
    let key = match short.split_once('/') {
        Some((family, id)) if !family.contains('.') => {
            format!("{family}.podopslifecycle.kusionstack.io/{id}")
        }
        _ => short.to_owned(),
    };
    let value = ago(value).map_or_else(|| value.to_owned(), |at| at.as_nanosecond().to_string());
    (key, value)
}

pub fn pod(shape: &Shape) -> Arc<Pod> {
    let mut labels: BTreeMap<String, String> = [("app".to_owned(), "web".to_owned())].into();
    if shape.managed {
        labels.insert(keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
    }
    if shape.available {
        labels.insert(keys::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
    }
    labels.extend(shape.labels.iter().map(|(k, v)| label(k, v)));
    let owners: Vec<Value> = shape
        .owner
        .iter()
        .filter_map(|owner| owner.split_once('/'))
        .map(|(kind, name)| json!({ "kind": kind, "name": name, "uid": name, "controller": true }))
        .collect();
    let condition = |type_: &str, status: bool| {
        let status = if status { "True" } else { "False" };
        json!({ "type": type_, "status": status, "lastTransitionTime": ago(&shape.since).unwrap() })
    };
    let mut pod = json!({
        "metadata": {
            "namespace": "shop", "name": shape.name, "uid": format!("uid-{}", shape.name),
            "resourceVersion": "7", "labels": labels, "annotations": shape.annotations,
            "finalizers": shape.finalizers, "ownerReferences": owners,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "deletionTimestamp": shape.deletion.as_ref().map(|age| ago(age).unwrap()),
        },
        "spec": {
            "nodeName": shape.node.clone().unwrap_or_default(),
            "containers": [{ "name": "main", "image": "web:2" }],
            "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
        },
        "status": { "phase": "Running", "conditions": [
            condition("Ready", shape.ready), condition(keys::SERVICE_READY, shape.service_ready),
        ] },
    });
    json_patch::merge(&mut pod["status"], &shape.status);
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// Times of claims are written as ages, too.
pub fn rule(mut rule: Value) -> RuleObject {
    rule["metadata"]["namespace"] = json!("shop");
    rule["metadata"]["uid"] = rule["metadata"]["name"].clone();
    if let Some(claims) = rule.pointer_mut("/status/ledger/claims") {
        for claim in claims.as_array_mut().unwrap() {
            for field in ["since", "until"] {
                claim[field] = json!(ago(claim[field].as_str().unwrap()).unwrap());
            }
        }
    }
    RuleObject::compile(serde_json::from_value(rule).unwrap())
}

/// Serving Pods that the status of a rule counts and the situation does not list.
fn others(listed: &[Arc<Pod>], rules: &[Value]) -> Vec<Arc<Pod>> {
    let counted = rules
        .iter()
        .filter_map(|rule| rule.pointer("/status/availablePods")?.as_u64());
    let counted = usize::try_from(counted.max().unwrap_or(0)).unwrap();
    let serving = listed.iter().filter(|pod| pod.is_available()).count();
    let left_out = (serving..counted).map(|n| {
        pod(&Shape {
            name: format!("other-{n}"),
            ..Shape::default()
        })
    });
    left_out.collect()
}

fn observed(situation: Situation) -> ObservedPod {
    let mut pods: Vec<_> = situation.pods.iter().map(pod).collect();
    pods.extend(others(&pods, &situation.rules));
    let mut named = pods.iter().filter(|pod| pod.metadata.name == situation.pod);
    let pod = Arc::clone(named.next().unwrap());
    ObservedPod {
        context: situation.around.read(&pod),
        pod,
        rules: situation.rules.into_iter().map(rule).collect(),
        controller: situation
            .set
            .map(|set| PodController::CollaSet(Arc::new(serde_json::from_value(set).unwrap()))),
        jobs: Some(
            situation
                .jobs
                .into_iter()
                .map(|job| serde_json::from_value(job).unwrap())
                .collect(),
        ),
        pods,
        notes: Vec::new(),
        now: now(),
    }
}

#[test]
fn golden_files_match_diagnoses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/why");
    let update = std::env::var_os("UPDATE").is_some();
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(files.len() >= 12, "situations are missing: {files:?}");
    let mut failures = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let situation =
            serde_norway::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let explanation = diagnose(&observed(situation));
        let json = serde_json::to_string_pretty(&explanation).unwrap() + "\n";
        for (extension, rendered) in [
            ("txt", tree::render_diagnosis(&explanation, now())),
            ("json", json),
        ] {
            let golden = file.with_extension(extension);
            if update {
                fs::write(&golden, &rendered).unwrap();
            } else if fs::read_to_string(&golden).unwrap_or_default() != rendered {
                failures.push(format!("{}:\n{rendered}", golden.display()));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "said otherwise:\n{}",
        failures.join("\n")
    );
}

#[test]
fn deletion_does_not_wait_for_label_check_rule() {
    let situation = r#"
        pod: web-3
        pods: [{ name: web-3, owner: StatefulSet/web }]
        rules:
          - metadata: { name: web, generation: 1 }
            spec:
              selector: { matchLabels: { app: web } }
              rules: [{ name: drained, labelCheck: { requires: { matchLabels: { drained: "yes" } } } }]
    "#;
    let mut observed = observed(serde_norway::from_str(situation).unwrap());
    observed.context.dry_run_deletion = Some(DryRunDeletion::Allowed);
    let diagnosis = diagnose(&observed);
    let begin = "Pod web-3 is available, and an operation on it would wait for rule drained of PodTransitionRule web: ";
    assert!(
        diagnosis.summary.starts_with(begin),
        "{}",
        diagnosis.summary
    );
    assert!(
        diagnosis.next[0].ends_with("deletions and evictions are not held by it"),
        "{:?}",
        diagnosis.next
    );
    let owner = diagnosis.owner.unwrap();
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str()),
        ("StatefulSet", "web")
    );
}

#[test]
fn post_check_rule_would_hold_the_operation_end() {
    let situation = r#"
        pod: web-3
        pods: [{ name: web-3, owner: StatefulSet/web }]
        rules:
          - metadata: { name: web, generation: 1 }
            spec:
              selector: { matchLabels: { app: web } }
              rules: [{ name: verified, stage: PostCheck, labelCheck: { requires: { matchLabels: { verified: "yes" } } } }]
    "#;
    let diagnosis = diagnose(&observed(serde_norway::from_str(situation).unwrap()));
    let text = tree::render_diagnosis(&diagnosis, now());
    let rule = "rule verified of PodTransitionRule web (labelCheck, PostCheck) would hold the end of an operation\n";
    assert!(text.contains(rule), "{text}");
}
