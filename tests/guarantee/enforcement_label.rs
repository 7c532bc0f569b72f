//! The enforcement label of a namespace, by which the API server knows that requests must be reviewed: no rule is
//! stored without it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use operating::api::keys;
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::proxy::{Asked, Effect, Fault};
use testbed::{Bed, Scope, wait};
use tokio_util::task::AbortOnDropHandle;

/// Request timeout of the API server. The leader removes the enforcement label some time after it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Something that was stored.
#[derive(Clone, Debug, PartialEq)]
enum Stored {
    /// The namespace, with or without the enforcement label.
    Namespace { has_label: bool },
    /// A rule.
    Rule(String),
    /// The deletion of a rule.
    RuleGone(String),
}

/// Every version of a namespace and of the rules in it, by resourceVersion.
struct History {
    versions: Arc<Mutex<Vec<(u64, Stored)>>>,
    _watching: Vec<AbortOnDropHandle<()>>,
}

impl History {
    /// Begins with the namespace as it is; there must be no rule yet.
    async fn start(scope: &Scope) -> History {
        let namespaces: Api<Namespace> = Api::all(scope.client.clone());
        let name = format!("metadata.name={}", scope.namespace);
        let versions = Arc::default();
        let namespace = follow(&namespaces, Some(name), &versions, |namespace, _| {
            Stored::Namespace {
                has_label: namespace.labels().contains_key(keys::NAMESPACE_ENFORCEMENT),
            }
        })
        .await;
        let rules = follow(
            &scope.api::<PodTransitionRule>(),
            None,
            &versions,
            |rule, is_deleted| {
                let stored = if is_deleted {
                    Stored::RuleGone
                } else {
                    Stored::Rule
                };
                stored(rule.name_any())
            },
        )
        .await;
        History {
            versions,
            _watching: vec![namespace, rules],
        }
    }

    /// All that has been delivered, in the order in which it was stored.
    fn list_delivered(&self) -> Vec<(u64, Stored)> {
        let mut all = self.versions.lock().clone();
        all.sort_by_key(|(version, _)| *version);
        all
    }

    fn has(&self, stored: &Stored) -> bool {
        self.versions
            .lock()
            .iter()
            .any(|(_, version)| version == stored)
    }

    fn has_label(&self) -> bool {
        let all = self.list_delivered();
        let mut labels = all.iter().rev().filter_map(|(_, stored)| match stored {
            Stored::Namespace { has_label } => Some(*has_label),
            _ => None,
        });
        labels.next().unwrap()
    }

    /// Fails if a rule was stored at a version at which the enforcement label was absent.
    fn assert_no_rule_without_label(&self) {
        let (mut is_labelled, mut rules) = (false, Vec::new());
        for (version, stored) in self.list_delivered() {
            match stored {
                Stored::Namespace { has_label } => is_labelled = has_label,
                Stored::Rule(name) if !rules.contains(&name) => rules.push(name),
                Stored::Rule(_) => {}
                Stored::RuleGone(name) => rules.retain(|rule| *rule != name),
            }
            let why = format!(
                "at {version}: rules {rules:?}, {:#?}",
                self.list_delivered()
            );
            assert!(is_labelled || rules.is_empty(), "{why}");
        }
    }
}

/// Follows the metadata of the objects of a kind.
async fn follow<K>(
    api: &Api<K>,
    fields: Option<String>,
    versions: &Arc<Mutex<Vec<(u64, Stored)>>>,
    read: fn(&PartialObjectMeta<K>, bool) -> Stored,
) -> AbortOnDropHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let push = {
        let versions = versions.clone();
        move |object: &PartialObjectMeta<K>, is_deleted| {
            let version = object.resource_version().unwrap().parse().unwrap();
            versions.lock().push((version, read(object, is_deleted)));
        }
    };
    let (list, watch) = (
        ListParams {
            field_selector: fields.clone(),
            ..ListParams::default()
        },
        WatchParams {
            field_selector: fields,
            ..WatchParams::default()
        },
    );
    let listed = api.list_metadata(&list).await.unwrap();
    listed.items.iter().for_each(|object| push(object, false));
    let from = listed.metadata.resource_version.unwrap();
    let events = api.watch_metadata(&watch, &from).await.unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut events = events.boxed();
        while let Some(event) = events.next().await {
            match event.unwrap() {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => push(&object, false),
                WatchEvent::Deleted(object) => push(&object, true),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(status) => panic!("{status:?}"),
            }
        }
    }))
}

/// Whether the request removes the enforcement label from a namespace.
fn removes_label(asked: &Asked) -> bool {
    let body = || serde_json::from_slice::<Value>(&asked.body).unwrap();
    asked.method == Method::PATCH
        && asked.uri.path().starts_with("/api/v1/namespaces/")
        && body()["metadata"]["labels"].get(keys::NAMESPACE_ENFORCEMENT) == Some(&Value::Null)
}

#[tokio::test]
async fn rule_created_during_label_removal_keeps_the_enforcement_label() {
    let bed = Bed::with_faults(TIMEOUT).await;
    let scope = bed.scope("label").await;
    let history = History::start(&scope).await;
    let end = async |rule: &str| {
        let now = DeleteParams::default();
        scope.rules().delete(rule, &now).await.unwrap();
    };
    scope.rule("first", json!({"app": "web"}), json!(1)).await;
    bed.faults()
        .set(Fault::new(Effect::Freeze).on(removes_label));
    end("first").await;
    wait::until("the leader to remove the label", async || {
        bed.faults().affected_requests() > 0
    })
    .await;
    scope.rule("second", json!({"app": "web"}), json!(1)).await;
    bed.faults().end_fault();
    // By the time that the leader has written this status, the API server has answered the request that was held.
    scope.rule("third", json!({"app": "web"}), json!(1)).await;
    scope
        .until_status("third", "enforcement", |s: &RuleStatus| {
            let mut conditions = s.conditions.iter();
            conditions.any(|c| c.type_ == "Enforced" && c.status == "True")
        })
        .await;
    for rule in ["second", "third"] {
        end(rule).await;
    }
    wait::until("the removal of the label", async || {
        let ended = ["second", "third"].map(|rule| Stored::RuleGone(rule.to_owned()));
        ended.iter().all(|ended| history.has(ended)) && !history.has_label()
    })
    .await;
    history.assert_no_rule_without_label();

    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let unlabelled = namespaces.get(&scope.namespace).await.unwrap();
    assert!(!unlabelled.annotations().contains_key(keys::RULE_ADMITTED));
}

#[tokio::test]
async fn rule_admission_writes_namespace_and_keeps_strict_label() {
    let scope = Bed::shared().await.scope("label").await;
    let namespace = async || {
        let namespaces: Api<Namespace> = Api::all(scope.client.clone());
        let found = namespaces.get(&scope.namespace).await.unwrap();
        let strict = keys::NAMESPACE_ENFORCEMENT_STRICT;
        assert_eq!(found.labels()[keys::NAMESPACE_ENFORCEMENT], strict);
        let admitted = found.annotations()[keys::RULE_ADMITTED].clone();
        (found.resource_version().unwrap(), admitted)
    };
    let strict = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [{
        "name": "availability",
        "availablePolicy": {"maxUnavailableValue": 1, "unhealthyPodPolicy": "IfHealthyBudget"},
    }]});
    scope.try_rule("strict", strict).await.unwrap();
    let first = namespace().await;
    let mut rule = scope.rule("usual", json!({"app": "web"}), json!(1)).await;
    let second = namespace().await;
    assert!(first.0 != second.0 && first.1 != second.1, "{second:?}");

    rule.metadata.name = Some("tried".to_owned());
    (rule.metadata.uid, rule.metadata.resource_version) = (None, None);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    scope.rules().create(&dry_run, &rule).await.unwrap();
    assert_eq!(
        namespace().await,
        second,
        "a dry-run wrote to the namespace"
    );
}

#[tokio::test]
async fn enforcement_label_is_removed_while_rule_is_terminating() {
    let bed = Bed::with_faults(TIMEOUT).await;
    let scope = bed.scope("ending").await;
    let history = History::start(&scope).await;
    scope.rule("ending", json!({"app": "web"}), json!(1)).await;
    let (rules, params) = (scope.rules(), PatchParams::default());
    let finalizer = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/held"] } }));
    rules.patch("ending", &params, &finalizer).await.unwrap();
    rules
        .delete("ending", &DeleteParams::default())
        .await
        .unwrap();
    wait::until("the removal of the label", async || !history.has_label()).await;
    assert!(rules.get_opt("ending").await.unwrap().is_some(), "held up");
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    rules.patch("ending", &params, &free).await.unwrap();
}
