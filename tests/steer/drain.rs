//! `operating drain` beside the real `kubectl drain`, each on a plane of its own, because a drain is about all Pods of a
//! node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{EvictParams, ListParams, PostParams};
use operating::api::podtransitionrule::PodTransitionRule;
use serde_json::{Value, json};
use testbed::kubectl::{DRAINED, SPARE, Said};
use testbed::plane::audit::Event;
use testbed::pods::node_of;
use testbed::{Bed, Scope, wait};

/// User agent of the commands that only read.
const READER: &str = "kubectl-operating/";
/// User agent of kubectl.
const KUBECTL: &str = "kubectl/";

/// How many Pods each application of the scene has, and how many of them the first evictions get.
const APPS: [(&str, usize, usize); 6] = [
    ("web", 4, 2),
    ("set", 3, 1),
    ("both", 3, 1),
    ("pdb", 3, 1),
    ("zero", 2, 0),
    ("two", 1, 0),
];

/// `operating drain NODE -o json` as the administrator, with its exit code.
fn preview(bed: &Bed, flags: &[&str]) -> (Value, i32) {
    let said: Said = bed
        .operating(&[&["drain", DRAINED, "-o", "json"][..], flags].concat())
        .into();
    let json = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    (json, said.code.unwrap())
}

/// All applications, on one node. The node takes no new Pods for these applications, so no replacement gives a budget back
/// while the test compares.
async fn scene(bed: &Bed) -> Scope {
    let scope = bed.scope("drain").await;
    let _ = bed.ask_kubectl(&["cordon", SPARE]).await.success();
    scope.open_nodes().await;
    // The scheduler may not know yet that the other node is cordoned.
    let placed = json!({
        "nodeSelector": { scope.namespace.clone(): "open", "kubernetes.io/hostname": DRAINED },
    });
    let unmanaged = |app: &str| json!({ "metadata": { "labels": { "app": app, "kusionstack.io/control": null } } });
    for (app, replicas, _) in APPS {
        let mut template = json!({ "spec": placed });
        match app {
            "set" => {
                collaset(&scope, replicas, &placed).await;
                continue;
            }
            "pdb" | "two" => json_patch::merge(&mut template, &unmanaged(app)),
            "web" => json_patch::merge(
                &mut template,
                &json!({ "spec": { "volumes": [{ "name": "scratch", "emptyDir": {} }] } }),
            ),
            _ => {}
        }
        scope.deploy(app, replicas, template).await;
    }
    apply(bed, &scope, &daemon_set()).await;
    let mut alone = json!({ "metadata": { "labels": { "kusionstack.io/control": null } } });
    alone["spec"] = placed.clone();
    scope.pod("alone", alone).await;
    let rule = |name: &'static str, app: &'static str, max: Value| {
        let scope = scope.clone();
        async move { scope.rule(name, json!({ "app": app }), max).await }
    };
    rule("web", "web", json!(2)).await;
    rule("set", "set", json!("30%")).await;
    rule("loose", "both", json!(2)).await;
    rule("tight", "both", json!("10%")).await;
    rule("zero", "zero", json!(0)).await;
    for (name, app) in [("pdb", "pdb"), ("two-a", "two"), ("two-b", "two")] {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": name },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": app } } },
        });
        apply(bed, &scope, &budget).await;
    }
    for (rule, expected) in [
        ("web", 4),
        ("set", 3),
        ("loose", 3),
        ("tight", 3),
        ("zero", 2),
    ] {
        scope.until_at_rest(rule, expected).await;
    }
    let total: usize = APPS.iter().map(|(_, replicas, _)| replicas).sum();
    wait::until(
        "all Pods to run, and the budgets to be counted",
        async || {
            let pods = scope.list("").await;
            let budgets = [
                "get",
                "pdb",
                "-o",
                "jsonpath={.items[*].status.disruptionsAllowed}",
            ];
            let allowed = bed.ask_kubectl_in(&scope, &budgets).await.out;
            let on_node = pods.iter().filter(|pod| node_of(pod) == Some(DRAINED));
            let ready = pods
                .iter()
                .all(|pod| testbed::pods::condition(pod, "Ready") == Some(true));
            ready && on_node.count() >= total + 2 && allowed == "1 1 1"
        },
    )
    .await;
    scope.close_nodes().await;
    bed.uncordon(SPARE).await;
    scope
}

async fn apply(bed: &Bed, scope: &Scope, object: &Value) {
    let args = ["apply", "-n", &scope.namespace];
    let _ = bed.ask_kubectl_about(&args, object).await.success();
}

/// A CollaSet `set`.
async fn collaset(scope: &Scope, replicas: usize, placed: &Value) {
    let mut spec = json!({ "containers": [{ "name": "main", "image": "web:1" }] });
    json_patch::merge(&mut spec, placed);
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "set" },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "set" } },
            "template": { "metadata": { "labels": { "app": "set" } }, "spec": spec },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    let sets = super::commands::sets(scope);
    sets.create(&PostParams::default(), &set).await.unwrap();
    let _ = scope.all_available("app=set", replicas).await;
}

fn daemon_set() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": {
                "metadata": { "labels": { "app": "agent" } },
                "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
            },
        },
    })
}

/// The names of Pods, by their applications. The name of a Pod begins with that of its application.
fn by_app<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, BTreeSet<String>> {
    let mut apps: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in names {
        let app = name.split('-').next().unwrap().to_owned();
        apps.entry(app).or_default().insert(name.to_owned());
    }
    apps
}

fn names(pods: &Value) -> impl Iterator<Item = &str> {
    let pods = pods.as_array().unwrap().iter();
    pods.map(|pod| pod["name"].as_str().unwrap())
}

fn counts(apps: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<&str, usize> {
    apps.iter()
        .map(|(app, pods)| (app.as_str(), pods.len()))
        .collect()
}

/// The requests of this user agent after the first `since` requests.
async fn requests_of(bed: &Bed, agent: &str, since: usize) -> Vec<Event> {
    let events = bed.audit_events().await.unwrap().into_iter().skip(since);
    events
        .filter(|event| event.user_agent.starts_with(agent))
        .collect()
}

/// What an eviction changes: the versions of the Pods, and the claims of the rules.
async fn pods_and_claims(scope: &Scope) -> (BTreeMap<String, Option<String>>, Value) {
    let pods = scope.list("").await.into_iter();
    let versions = pods.map(|pod| (pod.name_any(), pod.resource_version()));
    let rules = scope.api::<PodTransitionRule>();
    let rules = rules
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter();
    let claims = rules.map(|rule| {
        let ledger = rule.status.and_then(|status| status.ledger);
        let claims = ledger.map(|ledger| ledger.claims);
        (
            rule.metadata.name.unwrap(),
            json!(claims.unwrap_or_default()),
        )
    });
    (versions.collect(), Value::Object(claims.collect()))
}

/// The HTTP status of a dry-run eviction.
async fn dry_run_code(scope: &Scope, pod: &str) -> u16 {
    let post_options = PostParams {
        dry_run: true,
        field_manager: None,
    };
    let params = EvictParams {
        post_options,
        ..EvictParams::default()
    };
    match scope.pods().evict(pod, &params).await {
        Ok(_) => 201,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_wave_is_what_the_first_evictions_of_kubectl_get() {
    let bed = Bed::own().await;
    let scope = scene(&bed).await;
    let before = pods_and_claims(&scope).await;
    let since = bed.audit_events().await.unwrap().len();
    let (found, code) = preview(&bed, &["--force"]);
    let requests = requests_of(&bed, READER, since).await;

    // Nothing is written, and nothing is asked twice.
    let is_eviction = |event: &Event| {
        let object = event.object_ref.as_ref();
        object.is_some_and(|object| object.subresource == "eviction")
    };
    let (evictions, reads): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_eviction);
    let evicted = APPS.iter().map(|(_, replicas, _)| replicas).sum::<usize>() + 1;
    assert!(
        evictions
            .iter()
            .all(|event| event.request_uri.contains("dryRun=All"))
    );
    assert!(
        reads
            .iter()
            .all(|event| ["get", "list"].contains(&&*event.verb))
    );
    // The node, its Pods and the DaemonSet; of the namespace the rules, the budgets, the Pods and the namespace itself.
    assert_eq!((evictions.len(), reads.len()), (evicted, 7), "{reads:#?}");
    assert_eq!(pods_and_claims(&scope).await, before);

    // Each answer is that of the API server.
    assert_eq!(
        (code, &found["outcome"], &found["begins"]),
        (1, &json!("held"), &json!(true))
    );
    let waves = found["waves"].as_array().unwrap();
    let in_waves = waves
        .iter()
        .flat_map(|wave| wave["pods"].as_array().unwrap());
    let answered: Vec<_> = in_waves.chain(found["held"].as_array().unwrap()).collect();
    assert_eq!(answered.len(), evicted, "{found:#}");
    for pod in answered {
        let answer = dry_run_code(&scope, pod["name"].as_str().unwrap()).await;
        assert_eq!(pod["answer"]["code"], json!(answer), "{pod:#}");
    }
    let held = by_app(names(&found["held"]));
    assert_eq!(counts(&held), BTreeMap::from([("two", 1), ("zero", 2)]));
    for pod in found["held"].as_array().unwrap() {
        let by = pod["by"]
            .as_array()
            .unwrap()
            .iter()
            .map(|by| by["name"].as_str().unwrap());
        let by: Vec<_> = by.collect();
        let is_of_two = pod["name"].as_str().unwrap().starts_with("two-");
        assert_eq!(
            by,
            if is_of_two {
                vec!["two-a", "two-b"]
            } else {
                vec!["zero"]
            }
        );
    }
    assert!(names(&found["skipped"]).all(|name| name.starts_with("agent-")));
    assert_eq!(found["skipped"][0]["reason"], "daemonSet");

    // kubectl retries after 5 s, so each Pod is evicted once.
    let first = by_app(names(&waves[0]["pods"]));
    let since = bed.audit_events().await.unwrap().len();
    let drain = [
        "drain",
        DRAINED,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
        "--timeout=3s",
    ];
    let drained = bed.ask_kubectl(&drain).await;
    let requests = requests_of(&bed, KUBECTL, since).await;
    let asked: Vec<_> = requests.into_iter().filter(is_eviction).collect();
    assert_eq!(
        asked.len(),
        evicted,
        "each Pod is asked about once: {drained:?}"
    );
    let gone = asked
        .iter()
        .filter(|event| event.response_status.as_ref().unwrap().code == 201);
    let gone = by_app(gone.map(|event| event.object_ref.as_ref().unwrap().name.as_str()));
    let mut wanted: BTreeMap<&str, usize> =
        APPS.iter().map(|(app, _, gone)| (*app, *gone)).collect();
    wanted.insert("alone", 1);
    wanted.retain(|_, count| *count > 0);
    assert_eq!(counts(&gone), wanted);
    assert_eq!(counts(&gone), counts(&first));
    let certain = waves[0]["pods"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|pod| pod["certain"] == true);
    for pod in certain {
        let name = pod["name"].as_str().unwrap();
        assert!(
            gone.values().any(|names| names.contains(name)),
            "{name} stayed: {gone:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_kubectl_refuses_and_users_without_rights_get_no_ok() {
    let bed = Bed::own().await;
    let scope = bed.scope("drain").await;
    let _ = bed.ask_kubectl(&["cordon", SPARE]).await.success();
    scope.deploy("web", 2, json!({})).await;
    scope.all_available("app=web", 2).await;
    let alone = json!({ "spec": { "volumes": [{ "name": "scratch", "emptyDir": {} }] } });
    scope.pod("alone", alone).await;
    scope.all_available("app=alone", 1).await;
    let refuses = async |flags: &[&str], because: &str| {
        let (found, code) = preview(&bed, flags);
        assert_eq!((code, &found["begins"]), (1, &json!(false)), "{found:#}");
        assert_eq!(names(&found["refused"]).collect::<Vec<_>>(), ["alone"]);
        let drain = ["drain", DRAINED, "--dry-run=server", "--ignore-daemonsets"];
        let said = bed.ask_kubectl(&[&drain[..], flags].concat()).await;
        assert!(!said.succeeded() && said.err.contains(because), "{said:?}");
    };
    refuses(&["--delete-emptydir-data"], "declare no controller").await;
    refuses(
        &["--delete-emptydir-data=false", "--force"],
        "local storage",
    )
    .await;
    let (found, code) = preview(&bed, &["--force"]);
    assert_eq!((code, &found["outcome"]), (0, &json!("ok")), "{found:#}");
    let selected = ["--pod-selector", "app=web"];
    let (found, code) = preview(&bed, &selected);
    assert_eq!((code, names(&found["waves"][0]["pods"]).count()), (0, 2));
    let text: Said = bed.operating(&["drain", DRAINED, "--force"]).into();
    let first = text.out.lines().next().unwrap();
    assert_eq!(
        first,
        format!("node {DRAINED}: 3 Pods go in 1 wave"),
        "{text:?}"
    );
    let missing: Said = bed.operating(&["drain", "nowhere"]).into();
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.err.contains("there is no node nowhere"),
        "{missing:?}"
    );

    // A user who may look, and may not evict.
    let user = format!("{}:looker", scope.namespace);
    let name = format!("looker-{}", scope.namespace);
    let commands: [&[&str]; 3] = [
        &["create", "serviceaccount", "looker", "-n", &scope.namespace],
        &[
            "create",
            "clusterrole",
            &name,
            "--verb=get,list",
            "--resource=pods,nodes,daemonsets.apps",
        ],
        &[
            "create",
            "clusterrolebinding",
            &name,
            "--clusterrole",
            &name,
            "--serviceaccount",
            &user,
        ],
    ];
    let file = bed.kubeconfig_for_service_account(&scope.namespace, "looker");
    for command in commands {
        let _ = bed.ask_kubectl(command).await.success();
    }
    let file = file.await.unwrap();
    let as_looker = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_operating"));
        command
            .args(["drain", DRAINED, "--force", "-o", "json"])
            .env("KUBECONFIG", &file);
        Said::from(command.output().unwrap())
    };
    let said = wait::value("the user to have its rights", async || {
        Some(as_looker()).filter(|said| !said.out.is_empty())
    })
    .await;
    let found: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (said.code, &found["outcome"]),
        (Some(2), &json!("unknown")),
        "{said:?}"
    );
    assert_eq!(names(&found["notChecked"]).count(), 3);
    let reason = found["notChecked"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("you may not evict"), "{reason}");
    let _ = bed
        .ask_kubectl(&["delete", "clusterrolebinding", &name])
        .await
        .success();
    let said = wait::value("the user to lose its rights", async || {
        Some(as_looker()).filter(|said| said.out.is_empty())
    })
    .await;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("you may not list pods in all namespaces"),
        "{said:?}"
    );
}

/// Without a server, the API server refuses evictions in namespaces with rules.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_server_holds_pods_under_rules() {
    let bed = Bed::own().await;
    let scope = bed.scope("drain").await;
    let _ = bed.ask_kubectl(&["cordon", SPARE]).await.success();
    scope.web_under_rule(2, json!(1)).await;
    bed.kill_all().await;
    let (found, code) = preview(&bed, &[]);
    assert_eq!(code, 1, "{found:#}");
    let pods = scope.pods().list(&ListParams::default()).await.unwrap();
    let pods: BTreeSet<String> = pods.iter().map(Pod::name_any).collect();
    assert_eq!(
        names(&found["held"])
            .map(str::to_owned)
            .collect::<BTreeSet<_>>(),
        pods
    );
    let held = &found["held"][0];
    assert!(
        held["reason"]
            .as_str()
            .unwrap()
            .contains("failed calling webhook"),
        "{held:#}"
    );
    assert!(held["remedy"].as_str().unwrap().contains("operating check"));
    assert!(found["waves"].as_array().unwrap().is_empty());
}
