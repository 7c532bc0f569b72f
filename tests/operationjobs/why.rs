//! `operating why` names the jobs of a Pod, and explains a job.

use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::Bed;

use crate::fixtures::{Job, info};
use crate::sets::Set;

const WAITING: &str = "Waiting";

#[tokio::test]
async fn why_explains_pods_of_jobs_and_jobs() {
    let bed = Bed::shared().await;
    let scope = bed.scope("why-job").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.hold().await;
    let first = set.pod(0).await.name_any();
    let second = set.pod(1).await.name_any();
    let why = |object: &str| -> Value {
        let output = bed.operating(&["why", object, "-n", &scope.namespace, "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };

    let part = json!({ "spec": { "partition": 1 } });
    let swap = Job::new(&scope, "swap", "Replace", &[&first, &second], part).await;
    swap.until_target(&first, "the deletion to be held", |detail| {
        info(detail, WAITING).is_some_and(|wait| wait.starts_with("the deletion of the Pod"))
    })
    .await;
    let asked = why(&first)["jobs"][0].clone();
    assert_eq!(asked["name"], "swap");
    assert_eq!(asked["remark"], "asked for the replacement of the Pod");
    assert_eq!(asked["waitsFor"], "the deletion of the Pod");
    let diagnosis = why("opj/swap");
    assert_eq!(
        diagnosis["counts"],
        json!({ "total": 2, "succeeded": 0, "failed": 0, "waiting": 1, "heldBack": 1 })
    );
    assert_eq!(diagnosis["targets"][0]["name"], json!(first));
    assert_eq!(diagnosis["heldBack"], json!([second]));

    let again = Job::new(&scope, "again", "Restart", &[&second], json!({})).await;
    again
        .until_target(&second, "the rule to hold the restart", |detail| {
            info(detail, WAITING).is_some_and(|wait| wait.starts_with("the lifecycle of the Pod"))
        })
        .await;
    let diagnosis = why(&second);
    assert_eq!(diagnosis["operations"][0]["id"], "operationjob-again");
    assert_eq!(diagnosis["operations"][0]["job"], "again");
    let jobs = diagnosis["jobs"].as_array().unwrap();
    let jobs: Vec<_> = jobs
        .iter()
        .map(|job| (&job["name"], &job["progress"]))
        .collect();
    let names = [("again", "Processing"), ("swap", "Pending")];
    let names = names.map(|(name, progress)| (json!(name), json!(progress)));
    assert_eq!(
        jobs,
        names.each_ref().map(|(name, progress)| (name, progress))
    );
    again.delete().await;
    again.gone().await;

    set.release().await;
    swap.edit(json!({ "spec": { "partition": 2 } })).await;
    swap.succeeded().await;
    let summary = "OperationJob swap (Replace) has succeeded: all 2 targets succeeded";
    assert_eq!(why("operationjob/swap")["summary"], summary);
}
