//! The commands of docs/monitoring.md make values for the charts from the files of this repository.

use serde_json::{Value, json};

use crate::{read, run_in_repository, yaml};

#[test]
fn commands_make_values_for_charts() {
    let page = read("docs/monitoring.md");
    let blocks = page.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split_once("```").unwrap().0);
    let made = ["> kube-state-metrics-values.yaml", "> stack-values.yaml"];
    let scripts: Vec<_> = blocks
        .filter(|block| made.iter().any(|m| block.contains(m)))
        .collect();
    assert_eq!(scripts.len(), 2);
    let directory = tempfile::tempdir().unwrap();
    run_in_repository(directory.path(), &scripts.concat());
    let values = |name: &str| -> Value {
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        serde_norway::from_str(&text).unwrap()
    };
    let chart = values("kube-state-metrics-values.yaml");
    let config = yaml("manifests/monitoring/kube-state-metrics.yaml");
    let rules = yaml("manifests/monitoring/kube-state-metrics-rbac.yaml")["rules"].clone();
    let expected = json!({
        "customResourceState": { "enabled": true, "config": config }, "rbac": { "extraRules": rules },
    });
    assert_eq!(chart, expected);
    assert_eq!(
        values("stack-values.yaml"),
        json!({ "kube-state-metrics": chart })
    );
}
