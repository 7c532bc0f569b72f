//! The commands of the README and of the examples do what the text promises.

use std::path::Path;

use serde_json::json;

use crate::markdown::{parse, read};
use crate::plane::Ground;

const AVAILABLE: &str =
    r"jsonpath={.metadata.labels.podopslifecycle\.kusionstack\.io/service-available}";
const OPERATE: &str =
    r"jsonpath={.metadata.labels.operate\.podopslifecycle\.kusionstack\.io/upgrade}";
const PRE_CHECK: &str =
    r"jsonpath={.metadata.labels.pre-check\.podopslifecycle\.kusionstack\.io/upgrade}";

/// Namespace of the examples.
const NAMESPACE: &str = "shop";

/// The Deployment of `examples/deployment.yaml` with its rule, at rest. Returns the names of the Pods.
async fn deployment() -> (Ground, Vec<String>) {
    let ground = Ground::new("examples").await;
    ground
        .kubectl(&["apply", "-f", &example("deployment.yaml")])
        .await;
    ground.until_available("app=web", 4).await;
    ground.until_at_rest("web", 4).await;
    let names = "jsonpath={.items[*].metadata.name}";
    let pods = ground
        .kubectl(&["get", "pods", "-l", "app=web", "-o", names])
        .await;
    let pods = pods.split_whitespace().map(str::to_owned).collect();
    (ground, pods)
}

fn example(name: &str) -> String {
    let path = crate::markdown::root().join("examples").join(name);
    path.to_str().unwrap().to_owned()
}

/// Blocks marked `<!-- tested -->` in a document, in their order, as one script that uses another namespace.
pub fn tested(page: &str, namespace: &str) -> String {
    let text = read(Path::new(page));
    let blocks = parse(&text).blocks.into_iter();
    let blocks = blocks.filter(|block| block.comment.as_deref() == Some("tested"));
    let script: String = blocks.map(|block| block.text).collect();
    assert!(script.contains(NAMESPACE), "no tested block in {page}");
    script.replace(&format!("-n {NAMESPACE}"), &format!("-n {namespace}"))
}

#[tokio::test]
async fn operation_of_readme_begins_and_ends() {
    let ground = Ground::new("examples").await;
    let script = tested("README.md", ground.namespace());
    let script = script
        .lines()
        .filter(|line| !line.starts_with("kubectl create namespace"));
    let script: Vec<&str> = script.collect();
    let output = ground.shell(&script.join("\n")).await;
    let output = output.unwrap_or_else(|output| panic!("{output}"));
    assert!(output.contains("condition met"), "{output}");
    ground.until_available("app=web", 4).await;
    ground.until_at_rest("web", 4).await;
}

#[tokio::test]
async fn rollout_of_decoration_reaches_one_pod_then_all() {
    let ground = Ground::new("examples").await;
    let script = tested("docs/poddecorations.md", ground.namespace());
    let output = ground.shell(&script).await;
    let output = output.unwrap_or_else(|output| panic!("{output}"));
    // The list of the Pods has a column with the names of revisions.
    let decorated = output.matches(" log-agent-").count();
    assert_eq!(decorated, 1, "{output}");
    let updated = "jsonpath={.status.updatedPods}";
    let updated = ground
        .kubectl(&["get", "pd", "log-agent", "-o", updated])
        .await;
    assert_eq!(updated, "4");
}

#[tokio::test]
async fn job_of_documents_replaces_one_pod_then_another() {
    let ground = Ground::new("examples").await;
    let script = tested("docs/operationjobs.md", ground.namespace());
    let output = ground.shell(&script).await;
    let output = output.unwrap_or_else(|output| panic!("{output}"));
    let counts = "jsonpath={.status.succeededPodCount}/{.status.totalPodCount}";
    let counts = ground
        .kubectl(&["get", "opj", "replace-web", "-o", counts])
        .await;
    assert_eq!(counts, "2/2", "{output}");
    ground.until_at_rest("web", 4).await;
}

#[tokio::test]
async fn job_operator_answers_for_each_target_and_stops() {
    let (ground, pods) = deployment().await;
    let targets: Vec<_> = pods[..2].iter().map(|pod| json!({ "name": pod })).collect();
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "name": "drain" },
        "spec": { "action": "example.com/drain-cache", "targets": targets },
    });
    ground.apply(&job.to_string()).await.unwrap();
    let namespace = ground.namespace();
    let script = format!(
        "WORK=true INTERVAL=1 examples/job-operator.sh {namespace} &\n\
         operator=$!\n\
         trap 'kill $operator' EXIT\n\
         kubectl wait -n {namespace} opj/drain --for=jsonpath='{{.status.progress}}'=Succeeded --timeout=170s\n\
         trap - EXIT\n\
         kill $operator\n\
         wait $operator"
    );
    let output = ground.shell(&script).await;
    output.unwrap_or_else(|output| panic!("{output}"));
    ground.until_at_rest("web", 4).await;
}

#[tokio::test]
async fn operation_script_waits_for_budget() {
    let (ground, pods) = deployment().await;
    let run = async |verb: &str, pod: &str| {
        let namespace = ground.namespace();
        let script = format!("examples/operation.sh {verb} {namespace} {pod} upgrade");
        ground
            .shell(&script)
            .await
            .unwrap_or_else(|output| panic!("{output}"))
    };
    run("begin", &pods[0]).await;
    let first = ground
        .kubectl(&["get", "pod", &pods[0], "-o", OPERATE])
        .await;
    assert!(!first.is_empty());

    // The rule allows one Pod at a time: the second waits in PreCheck and stays available.
    run("request", &pods[1]).await;
    let second = async |path: &str| ground.kubectl(&["get", "pod", &pods[1], "-o", path]).await;
    assert!(!second(PRE_CHECK).await.is_empty());
    assert!(!second(AVAILABLE).await.is_empty());
    assert!(second(OPERATE).await.is_empty());
    let denied = ground.try_kubectl(&["delete", "pod", &pods[2]]).await;
    let stderr = String::from_utf8_lossy(&denied.stderr);
    let want = format!(
        "Pod {} is held by rule availability of PodTransitionRule web",
        pods[2]
    );
    assert!(
        !denied.status.success() && stderr.contains(&want),
        "{stderr}"
    );

    run("finish", &pods[0]).await;
    run("begin", &pods[1]).await;
    assert!(second(AVAILABLE).await.is_empty());
    run("finish", &pods[1]).await;
    ground.until_available("app=web", 4).await;
}

#[tokio::test]
async fn label_check_holds_operation_until_label_is_set() {
    let (ground, pods) = deployment().await;
    ground
        .kubectl(&["apply", "-f", &example("label-check-rule.yaml")])
        .await;
    let (namespace, pod) = (ground.namespace(), &pods[0]);
    let request = format!("examples/operation.sh request {namespace} {pod} upgrade");
    ground
        .until("the rule to hold the operation", async || {
            ground
                .shell(&request)
                .await
                .unwrap_or_else(|output| panic!("{output}"));
            let waits = ground.kubectl(&["get", "pod", pod, "-o", PRE_CHECK]).await;
            if waits.is_empty() {
                let undo = format!("examples/operation.sh finish {namespace} {pod} upgrade");
                ground
                    .shell(&undo)
                    .await
                    .unwrap_or_else(|output| panic!("{output}"));
            }
            !waits.is_empty()
        })
        .await;
    ground
        .kubectl(&["label", "pod", pod, "change-approved=true"])
        .await;
    let begin = format!("examples/operation.sh begin {namespace} {pod} upgrade");
    ground
        .shell(&begin)
        .await
        .unwrap_or_else(|output| panic!("{output}"));
}

#[tokio::test]
async fn collaset_with_pvcs_keeps_them_at_scale_in() {
    let ground = Ground::new("examples").await;
    ground
        .kubectl(&["apply", "-f", &example("collaset-with-volumes.yaml")])
        .await;
    let claims = async || {
        let names = "jsonpath={.items[*].metadata.name}";
        let found = ground.kubectl(&["get", "pvc", "-o", names]).await;
        found.split_whitespace().count()
    };
    ground
        .until("three claims", async || claims().await == 3)
        .await;
    ground
        .kubectl(&["scale", "collaset/store", "--replicas=1"])
        .await;
    ground
        .until("one Pod", async || {
            let names = "jsonpath={.items[*].metadata.name}";
            let pods = ground.kubectl(&["get", "pods", "-o", names]).await;
            pods.split_whitespace().count() == 1
        })
        .await;
    assert_eq!(claims().await, 3);
}

#[tokio::test]
async fn example_collaset_becomes_ready() {
    let ground = Ground::new("examples").await;
    ground
        .kubectl(&["apply", "-f", &example("collaset.yaml")])
        .await;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "collaset/web",
        "--timeout=170s",
    ];
    ground.kubectl(&wait).await;
    ground.until_at_rest("web", 4).await;
}
