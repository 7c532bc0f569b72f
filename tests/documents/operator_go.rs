//! The programs of `examples/operator-go`, as real processes with exactly the rights of their `rbac.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::binaries::{OPERATOR_PROGRAMS, operator_program};
use testbed::observer::{Change, Observer};
use testbed::pods::{has_label, is_available, is_idle};
use testbed::process::Process;
use testbed::{Bed, Scope, keys, paths, wait};

use rustix::process::Signal;

const PODS: usize = 4;
const WANTED: &str = "example.com/wanted-image";
const SERVING: &str = "example.com/serving-image";
const IMAGE: &str = "registry.k8s.io/pause:3.10.1";
/// ID and type of the operations of `operate`.
const OPERATION: &str = "image.example.com";
const ENTERING: &str = "prot.podopslifecycle.kusionstack.io/entering";
const MEMBER: &str = "prot.podopslifecycle.kusionstack.io/member";

fn folder() -> PathBuf {
    paths::repository().join("examples/operator-go")
}

fn label(family: &str) -> String {
    keys::operation(family, OPERATION)
}

/// A namespace with the objects of the example.
struct Example {
    bed: &'static Bed,
    scope: Scope,
}

impl Example {
    async fn new() -> Example {
        let bed = Bed::shared().await;
        let scope = bed.scope("operator-go").await;
        let example = Example { bed, scope };
        for file in ["rbac.yaml", "web.yaml"] {
            let text = std::fs::read_to_string(folder().join(file)).unwrap();
            let here = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&here, text.replace("shop", &example.scope.namespace)).unwrap();
            example
                .kubectl(&["apply", "-f", here.path().to_str().unwrap()])
                .await;
        }
        example
    }

    async fn kubectl(&self, args: &[&str]) {
        let _ = self.bed.ask_kubectl_in(&self.scope, args).await.success();
    }

    /// Starts a program with the rights of its own service account.
    async fn start(&self, program: &'static str) -> Process {
        let binary = tokio::task::spawn_blocking(move || operator_program(program));
        let binary = binary.await.unwrap().unwrap();
        let namespace = &self.scope.namespace;
        let kubeconfig = self.bed.kubeconfig_for_service_account(namespace, program);
        let mut command = Command::new(self.bed.controlplane_binary());
        // `env`, because a process of the test bed begins without KUBECONFIG.
        command
            .args(["supervise", "env"])
            .arg(format!(
                "KUBECONFIG={}",
                kubeconfig.await.unwrap().display()
            ))
            .arg(format!("NAMESPACE={namespace}"))
            .arg(binary);
        let name = format!("{namespace}-{program}");
        Process::spawn(&name, command, &self.bed.logs()).unwrap()
    }

    async fn pods(&self) -> Vec<Pod> {
        self.scope.list("app=web").await
    }

    async fn members(&self) -> BTreeMap<String, String> {
        let list = self.scope.api::<ConfigMap>().get("members").await;
        list.unwrap().data.unwrap_or_default()
    }

    /// Waits until all Pods are available and the list has exactly them, with their addresses.
    async fn until_all_serve(&self) -> Vec<Pod> {
        wait::value("all Pods to be available members", async || {
            let pods = self.pods().await;
            let addresses = pods.iter().map(|pod| {
                let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
                (pod.name_any(), address.unwrap_or_default())
            });
            let serve = pods.len() == PODS && pods.iter().all(is_idle);
            (serve && self.members().await == addresses.collect()).then_some(pods)
        })
        .await
    }

    /// Gives `cooperate` the right to patch a resource or takes it away, and waits until the API server follows.
    async fn may_patch(&self, resource: &str, rule: usize, allowed: bool) {
        let verbs = match (resource, allowed) {
            ("pods", true) => json!(["list", "watch", "patch"]),
            ("pods", false) => json!(["list", "watch"]),
            (_, true) => json!(["patch"]),
            (_, false) => json!(["get"]),
        };
        let path = format!("/rules/{rule}/verbs");
        let patch = json!([{ "op": "replace", "path": path, "value": verbs }]).to_string();
        self.kubectl(&["patch", "role", "cooperate", "--type=json", "-p", &patch])
            .await;
        let mut review = SubjectAccessReview::default();
        let namespace = &self.scope.namespace;
        review.spec.user = Some(format!("system:serviceaccount:{namespace}:cooperate"));
        review.spec.resource_attributes = Some(ResourceAttributes {
            namespace: Some(namespace.clone()),
            resource: Some(resource.to_owned()),
            name: Some("members".to_owned()),
            verb: Some("patch".to_owned()),
            ..ResourceAttributes::default()
        });
        let reviews: Api<SubjectAccessReview> = Api::all(self.scope.client.clone());
        wait::until("the API server to follow the Role", async || {
            let answer = reviews.create(&PostParams::default(), &review).await;
            answer.unwrap().status.unwrap().allowed == allowed
        })
        .await;
    }

    /// Makes a Pod Ready while no cooperator runs. A write of its labels makes the server look at it once more.
    async fn is_available_when_ready(&self, pod: &str) -> bool {
        self.scope.become_ready(pod).await;
        let now = json!({ "looked-at": "now" });
        self.scope.label(pod, now).await.unwrap();
        let written = self
            .scope
            .label(pod, json!({ "looked-at": null }))
            .await
            .unwrap();
        is_available(&written)
    }

    async fn until_any(&self, description: &str, wanted: impl Fn(&Pod) -> bool) {
        wait::until(description, async || self.pods().await.iter().any(&wanted)).await;
    }
}

async fn kill(running: &mut Process) {
    running.signal(Signal::KILL).unwrap();
    wait::until("the program to be killed", async || {
        running.exit_status().is_some()
    })
    .await;
}

/// Kills a program in the middle of its work, and starts it again.
async fn restart(example: &Example, program: &'static str, running: &mut Process) {
    kill(running).await;
    *running = example.start(program).await;
}

fn has_finalizer(pod: &Pod, finalizer: &str) -> bool {
    pod.finalizers().iter().any(|present| present == finalizer)
}

fn image_of(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0]
        .image
        .as_deref()
        .unwrap()
}

fn serves_wanted(pod: &Pod) -> bool {
    pod.annotations().get(SERVING).map(String::as_str) == Some(IMAGE)
}

/// What was stored, in its order.
enum Stored {
    Pod(Change<Pod>),
    List(Arc<ConfigMap>),
}

/// Checks each moment of a history: the Pods that are available are members, the Pods in Operate are not, and no
/// more than one Pod is not available. Returns the fewest available Pods, and for each Pod how often an operation
/// began on it.
fn judge(pods: &[Change<Pod>], lists: &[Change<ConfigMap>]) -> (usize, BTreeMap<String, usize>) {
    let pods = pods
        .iter()
        .map(|change| (change.version, Stored::Pod(change.clone())));
    let lists = lists.iter().map(|change| {
        (
            change.version,
            Stored::List(change.object.clone().expect("the list")),
        )
    });
    let mut history: Vec<_> = pods.chain(lists).collect();
    history.sort_by_key(|(version, _)| *version);

    let (mut present, mut members) = (BTreeMap::new(), BTreeSet::new());
    let mut has_begun = false;
    let (mut fewest, mut begun) = (usize::MAX, BTreeMap::<String, usize>::new());
    for (version, stored) in history {
        match stored {
            Stored::Pod(change) => {
                let operates = |pod: &Arc<Pod>| has_label(pod, &label("operating"));
                let before = present.get(&change.name).is_some_and(operates);
                let now = change.object.as_ref().is_some_and(operates);
                *begun.entry(change.name.clone()).or_default() += usize::from(now && !before);
                match change.object {
                    Some(pod) => drop(present.insert(change.name, pod)),
                    None => drop(present.remove(&change.name)),
                }
            }
            Stored::List(list) => {
                members = list.data.iter().flatten().map(|(k, _)| k.clone()).collect()
            }
        }
        has_begun |= present.len() == PODS && !members.is_empty();
        if !has_begun {
            continue; // an object that existed when the history began
        }
        for pod in present.values() {
            let (name, is_member) = (pod.name_any(), members.contains(&pod.name_any()));
            assert!(
                !is_available(pod) || is_member,
                "{version}: {name} lacks its traffic"
            );
            let operates = has_label(pod, &label("operate"));
            assert!(
                !operates || !is_member,
                "{version}: {name} is operated under traffic"
            );
        }
        fewest = fewest.min(present.values().filter(|pod| is_available(pod)).count());
    }
    assert!(
        fewest + 1 >= PODS,
        "at one moment only {fewest} Pods were available"
    );
    (fewest, begun)
}

#[tokio::test]
async fn killed_operator_changes_every_pod_once_and_within_the_rule() {
    let example = Example::new().await;
    let mut cooperate = example.start("cooperate").await;
    let before = example.until_all_serve().await;
    example.scope.until_at_rest("web", 4).await;
    let lists = Observer::<ConfigMap>::follow(&example.scope).await;
    let pods = Observer::<Pod>::follow(&example.scope).await;

    let wish = format!("{WANTED}={IMAGE}");
    example
        .kubectl(&["annotate", "pods", "-l", "app=web", &wish])
        .await;
    let mut operate = example.start("operate").await;
    example
        .until_any("an operation", |pod| has_label(pod, &label("operating")))
        .await;
    restart(&example, "operate", &mut operate).await;
    example
        .until_any("a Pod with its image", |pod| image_of(pod) == IMAGE)
        .await;
    restart(&example, "operate", &mut operate).await;
    restart(&example, "cooperate", &mut cooperate).await;
    example
        .until_any("a Pod that serves again", serves_wanted)
        .await;
    restart(&example, "operate", &mut operate).await;
    wait::until("all Pods to serve with their image", async || {
        example.pods().await.iter().all(serves_wanted)
    })
    .await;
    let after = example.until_all_serve().await;

    let uids = |pods: &[Pod]| {
        pods.iter()
            .filter_map(ResourceExt::uid)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(uids(&before), uids(&after), "no Pod was made again");
    assert!(after.iter().all(|pod| image_of(pod) == IMAGE));
    let (fewest, begun) = judge(&pods.history().await, &lists.history().await);
    assert_eq!(fewest, PODS - 1);
    assert_eq!(begun.into_values().collect::<Vec<_>>(), [1; PODS]);

    // A Pod that is deleted leaves the list before it is gone, and its successor enters it.
    example
        .kubectl(&["delete", "pod", &before[0].name_any()])
        .await;
    example.until_all_serve().await;

    // The end of the example: all Pods leave the list, and nothing keeps them.
    example.kubectl(&["delete", "deployment", "web"]).await;
    let gone = [
        "wait",
        "pods",
        "-l",
        "app=web",
        "--for=delete",
        "--timeout=170s",
    ];
    example.kubectl(&gone).await;
    assert!(example.pods().await.is_empty() && example.members().await.is_empty());
}

#[tokio::test]
async fn cooperator_killed_while_a_pod_leaves_makes_no_pod_available() {
    let example = Example::new().await;
    let scope = &example.scope;
    let mut cooperate = example.start("cooperate").await;
    let pod = example.until_all_serve().await[0].name_any();
    scope.until_at_rest("web", 4).await;
    let lists = Observer::<ConfigMap>::follow(scope).await;
    let pods = Observer::<Pod>::follow(scope).await;

    // Killed after the first write: the list has the Pod still.
    example.may_patch("configmaps", 1, false).await;
    scope.lose_readiness(&pod).await;
    let left = scope
        .until_pod(&pod, "without member", |pod| !has_finalizer(pod, MEMBER))
        .await;
    kill(&mut cooperate).await;
    assert!(has_finalizer(&left, ENTERING) && example.members().await.contains_key(&pod));
    assert!(!example.is_available_when_ready(&pod).await);

    // Killed after the second write: the list does not have the Pod any more.
    scope.lose_readiness(&pod).await;
    example.may_patch("configmaps", 1, true).await;
    example.may_patch("pods", 0, false).await;
    cooperate = example.start("cooperate").await;
    wait::until("the Pod to leave the list", async || {
        !example.members().await.contains_key(&pod)
    })
    .await;
    kill(&mut cooperate).await;
    assert!(!example.is_available_when_ready(&pod).await);
    let protected = scope.get(&pod).await;
    assert!(has_finalizer(&protected, ENTERING) && !has_finalizer(&protected, MEMBER));

    example.may_patch("pods", 0, true).await;
    cooperate = example.start("cooperate").await;
    scope.resume_kubelet(&pod).await;
    example.until_all_serve().await;
    let (fewest, _) = judge(&pods.history().await, &lists.history().await);
    assert_eq!(fewest, PODS - 1);

    // The Pods stay without the cooperator.
    let path = "/spec/template/metadata/annotations/pod.kusionstack.io~1available-conditions";
    let patch = json!([{ "op": "remove", "path": path }]).to_string();
    example
        .kubectl(&["patch", "deployment", "web", "--type=json", "-p", &patch])
        .await;
    let over = ["rollout", "status", "deploy/web", "--timeout=170s"];
    example.kubectl(&over).await;
    wait::until("the former Pods to be gone", async || {
        example.pods().await.len() == PODS
    })
    .await;
    kill(&mut cooperate).await;
    let none = r#"{"metadata":{"finalizers":null}}"#;
    for pod in example.pods().await {
        let name = pod.name_any();
        example
            .kubectl(&["patch", "pod", &name, "--type=merge", "-p", none])
            .await;
    }
    wait::until("four available Pods without finalizers", async || {
        let pods = example.pods().await;
        let kept = |pod: &Pod| is_idle(pod) && pod.finalizers().is_empty();
        pods.len() == PODS && pods.iter().all(kept)
    })
    .await;
}

#[tokio::test]
async fn operator_touches_only_its_container_and_its_operations() {
    let example = Example::new().await;
    let scope = &example.scope;
    let make = async |name: &str, labels: Value, annotations: Value, containers: &[&str]| {
        let container = |name: &&str| json!({ "name": name, "image": "web:1" });
        let containers: Vec<_> = containers.iter().map(container).collect();
        let metadata = json!({ "labels": labels, "annotations": annotations });
        scope
            .pod(
                name,
                json!({ "metadata": metadata, "spec": { "containers": containers } }),
            )
            .await
    };
    let wish = json!({ WANTED: IMAGE });
    let nothing = json!({});
    make(
        "ungated",
        json!({ keys::CONTROL: null }),
        wish.clone(),
        &["app"],
    )
    .await;
    let managed = json!({ keys::CONTROL: keys::CONTROL_VALUE });
    scope.label("ungated", managed).await.unwrap();
    make("unnamed", nothing.clone(), wish.clone(), &["main"]).await;
    make("foreign", nothing.clone(), nothing.clone(), &["app"]).await;
    let of_another = json!({ label("operating"): "1", label("operation-type"): "restart" });
    scope.label("foreign", of_another).await.unwrap();
    make("injected", nothing, wish, &["proxy", "app"]).await;

    let _operate = example.start("operate").await;
    let served = scope
        .until_pod("injected", "serving", |pod| {
            serves_wanted(pod) && is_idle(pod)
        })
        .await;
    let images = served.spec.unwrap().containers.into_iter().map(|c| c.image);
    let images: Vec<_> = images.flatten().collect();
    assert_eq!(images, ["web:1", IMAGE]);
    for (pod, operated) in [("ungated", false), ("unnamed", false), ("foreign", true)] {
        let stored = scope.get(pod).await;
        assert_eq!(has_label(&stored, &label("operating")), operated, "{pod}");
        assert_eq!(image_of(&stored), "web:1", "{pod}");
    }
}

#[tokio::test]
async fn corrected_wish_ends_an_operation_whose_image_does_not_exist() {
    let example = Example::new().await;
    let _cooperate = example.start("cooperate").await;
    let pod = example.until_all_serve().await[0].name_any();
    let _operate = example.start("operate").await;
    let wish = async |image: &str| {
        let wish = format!("{WANTED}={image}");
        example
            .kubectl(&["annotate", "pod", &pod, "--overwrite", &wish])
            .await;
    };
    wish("registry.k8s.io/pause:bad-1").await;
    let done = label("done-operation-type");
    example
        .scope
        .until_pod(&pod, "finished", |pod| has_label(pod, &done))
        .await;
    wish(IMAGE).await;
    example
        .scope
        .until_pod(&pod, "serving", |pod| serves_wanted(pod) && is_idle(pod))
        .await;
    example.until_all_serve().await;

    // A wish that is withdrawn before the rules have allowed it ends the operation.
    example
        .kubectl(&["delete", "podtransitionrule", "web"])
        .await;
    example
        .scope
        .rule(
            "none",
            serde_json::json!({ "app": "web" }),
            serde_json::json!(0),
        )
        .await;
    example.scope.until_at_rest("none", 4).await;
    wish("registry.k8s.io/pause:3.9").await;
    let waits = label("pre-check");
    example
        .scope
        .until_pod(&pod, "waiting", |pod| has_label(pod, &waits))
        .await;
    example
        .kubectl(&["annotate", "pod", &pod, &format!("{WANTED}-")])
        .await;
    example.scope.until_pod(&pod, "idle", is_idle).await;
}

#[test]
fn programs_are_formatted_short_and_pass_vet() {
    for program in OPERATOR_PROGRAMS {
        let file = folder().join(program).join("main.go");
        let lines = std::fs::read_to_string(file).unwrap().lines().count();
        assert!(lines < 100, "{program} has {lines} lines");
    }
    let go = |args: &[&str]| {
        let output = Command::new("go")
            .args(args)
            .current_dir(folder())
            .output()
            .unwrap();
        assert!(output.status.success(), "go {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    go(&["vet", "./..."]);
    let gofmt = PathBuf::from(go(&["env", "GOROOT"]).trim()).join("bin/gofmt");
    let output = Command::new(gofmt)
        .args(["-l", "."])
        .current_dir(folder())
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
}
