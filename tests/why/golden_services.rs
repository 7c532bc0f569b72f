//! Services of `tests/golden/why-service`: `NAME.yaml` is the Service and its Pods, `NAME.txt` and `NAME.json` are the
//! output of `operating why svc/NAME`. `UPDATE=1 cargo test --test why golden` rewrites the output.

use k8s_openapi::api::core::v1::Service;
use operating::cli::why::service_tree;
use operating::domain::diagnosis::traffic::{ObservedService, diagnose_service};
use serde::Deserialize;
use serde_json::Value;

use crate::golden_jobs::compare_with_golden_files;

/// A Service with the managed Pods of its namespace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Situation {
    service: Service,
    pods: Option<Vec<Value>>,
    #[serde(default)]
    unmanaged_pods: Vec<String>,
    #[serde(default)]
    notes: Vec<String>,
}

#[test]
fn golden_files_match_diagnoses_of_services() {
    compare_with_golden_files("why-service", 24, |situation: Situation, now| {
        let pods = situation.pods.map(|pods| {
            let pods = pods.into_iter();
            pods.map(|pod| serde_json::from_value(pod).unwrap())
                .collect()
        });
        let observed = ObservedService {
            service: situation.service,
            pods,
            unmanaged_pods: situation.unmanaged_pods,
            notes: situation.notes,
        };
        let diagnosis = diagnose_service(&observed, now);
        let json = serde_json::to_string_pretty(&diagnosis).unwrap();
        (service_tree::render_service(&diagnosis, now), json)
    });
}
