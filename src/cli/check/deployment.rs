//! Checks the Deployment of the server in its namespace, and finds workloads of Kuperator that are left over.

use kube::Client;
use serde_json::Value;

use super::finding::Finding;
use super::reads::{self, Read};
use crate::cli::install::names;

const CHECK: &str = "deployment";
const KUPERATOR: &str = "kuperator";

/// The findings, and the service account of the server's Pods if the Deployment was found.
pub async fn check(client: &Client, namespace: &str) -> (Vec<Finding>, Option<String>) {
    let of = |plural: &str| format!("/apis/apps/v1/namespaces/{namespace}/{plural}");
    let deployments = reads::list(client, &of("deployments"), None).await;
    let stateful_sets = reads::list(client, &of("statefulsets"), None).await;
    let ours = match &deployments {
        Read::Found(all) => all.iter().find(|one| is_ours(one)),
        _ => None,
    };
    let account = ours.map(|one| {
        let account = one["spec"]["template"]["spec"]["serviceAccountName"].as_str();
        account.unwrap_or("default").to_owned()
    });
    let own = match deployments.clone().or_finding(CHECK) {
        Ok(_) => judge(namespace, ours),
        Err(finding) => finding,
    };
    let kuperator = judge_kuperator(namespace, deployments, stateful_sets);
    (vec![own, kuperator], account)
}

fn is_ours(deployment: &Value) -> bool {
    deployment["metadata"]["labels"]["app.kubernetes.io/name"] == names::APP_NAME
}

fn judge(namespace: &str, deployment: Option<&Value>) -> Finding {
    let Some(deployment) = deployment else {
        return Finding::warning(
            CHECK,
            format!(
                "namespace {namespace} has no Deployment with the label app.kubernetes.io/name={}",
                names::APP_NAME
            ),
            "If the server runs in another namespace, name it with --namespace",
        );
    };
    let name = deployment["metadata"]["name"].as_str().unwrap_or_default();
    let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = deployment["status"]["readyReplicas"].as_u64().unwrap_or(0);
    let message = format!("Deployment {namespace}/{name} has {ready} ready replicas of {wanted}");
    let status = &deployment["status"];
    let generation = deployment["metadata"]["generation"].as_u64().unwrap_or(0);
    let observed = status["observedGeneration"].as_u64().unwrap_or(0);
    let updated = status["updatedReplicas"].as_u64().unwrap_or(0);
    if wanted > 0 && (observed < generation || updated < wanted) {
        return Finding::problem(
            CHECK,
            format!("{message}, and {updated} of them are updated"),
            format!("Wait for kubectl rollout status deployment/{name} -n {namespace}"),
        );
    }
    match ready >= wanted && wanted > 0 {
        true => Finding::ok(CHECK, message),
        false => Finding::problem(
            CHECK,
            message,
            format!(
                "See kubectl describe deployment {name} -n {namespace}, and the log of its Pods"
            ),
        ),
    }
}

/// Workloads whose name or image is Kuperator's.
fn judge_kuperator(
    namespace: &str,
    deployments: Read<Vec<Value>>,
    stateful_sets: Read<Vec<Value>>,
) -> Finding {
    let mut found = Vec::new();
    for (kind, read) in [("Deployment", deployments), ("StatefulSet", stateful_sets)] {
        let all = match read.or_finding(KUPERATOR) {
            Ok(all) => all.unwrap_or_default(),
            Err(finding) => return finding,
        };
        let theirs = all.iter().filter(|one| is_kuperator(one));
        found.extend(theirs.map(|one| {
            let name = one["metadata"]["name"].as_str().unwrap_or_default();
            (
                format!("{kind} {namespace}/{name}"),
                one["spec"]["replicas"] != 0,
            )
        }));
    }
    let names = |found: &[(String, bool)]| {
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    match found.iter().any(|(_, runs)| *runs) {
        true => Finding::problem(
            KUPERATOR,
            format!("Kuperator still runs: {}", names(&found)),
            "Scale it to 0 as the page Coming from Kuperator says: its webhook server must not answer",
        ),
        false if !found.is_empty() => Finding::warning(
            KUPERATOR,
            format!("left over, with 0 replicas: {}", names(&found)),
            "Delete it when nobody wants to go back",
        ),
        false => Finding::ok(
            KUPERATOR,
            format!("nothing of it runs in namespace {namespace}"),
        ),
    }
}

fn is_kuperator(workload: &Value) -> bool {
    let names_it = |value: &Value| value.as_str().is_some_and(|text| text.contains(KUPERATOR));
    let containers = workload["spec"]["template"]["spec"]["containers"].as_array();
    let mut images = containers.into_iter().flatten().map(|c| &c["image"]);
    !is_ours(workload) && (names_it(&workload["metadata"]["name"]) || images.any(names_it))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::check::finding::State;

    #[test]
    fn deployment_needs_all_its_replicas() {
        let deployment = |wanted: u64, ready: u64| {
            json!({
                "metadata": { "name": "d", "generation": 2 }, "spec": { "replicas": wanted },
                "status": { "readyReplicas": ready, "updatedReplicas": wanted, "observedGeneration": 2 },
            })
        };
        let state = |one: Option<&Value>| judge("home", one).state;
        for (field, value) in [("updatedReplicas", 1), ("observedGeneration", 1)] {
            let mut rolling = deployment(2, 2);
            rolling["status"][field] = json!(value);
            assert_eq!(state(Some(&rolling)), State::Problem, "{field}");
        }
        assert_eq!(state(Some(&deployment(2, 2))), State::Ok);
        assert_eq!(state(Some(&deployment(2, 1))), State::Problem);
        assert_eq!(state(Some(&deployment(0, 0))), State::Problem);
        assert_eq!(state(None), State::Warning);
    }

    #[test]
    fn kuperator_is_found_by_name_and_by_image() {
        let workload = |name: &str, image: &str, replicas: u64| {
            let container = json!([{ "image": image }]);
            json!({
                "metadata": { "name": name },
                "spec": { "replicas": replicas, "template": { "spec": { "containers": container } } },
            })
        };
        let state = |one: Value| {
            judge_kuperator("home", Read::Found(Vec::new()), Read::Found(vec![one])).state
        };
        assert_eq!(
            state(workload("kusionstack-kuperator", "x", 3)),
            State::Problem
        );
        assert_eq!(
            state(workload("manager", "kusionstack/kuperator:1", 1)),
            State::Problem
        );
        assert_eq!(
            state(workload("kusionstack-kuperator", "x", 0)),
            State::Warning
        );
        assert_eq!(state(workload("other", "x", 1)), State::Ok);
        let hidden = judge_kuperator("home", Read::Forbidden("no".to_owned()), Read::Missing);
        assert_eq!(hidden.state, State::Forbidden);
    }
}
