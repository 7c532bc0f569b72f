//! Functions that several of these tests use.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::Family;
use operating::api::podtransitionrule::{PodTransitionRuleStatus as RuleStatus, WebhookStatus};
use serde_json::{Value, json};
use testbed::Scope;
use testbed::pods::{is_available, is_idle, may_operate, names};

/// A webhook rule `ask` with this `clientConfig`; `extra` is merged into `webhook`.
pub fn ask(config: Value, extra: Value) -> Value {
    let mut rule = json!({"name": "ask", "webhook": {"clientConfig": config}});
    json_patch::merge(&mut rule["webhook"], &extra);
    rule
}

/// A rule object over the Pods labelled `app=<app>`.
pub fn spec(app: &str, rules: Value) -> Value {
    json!({"selector": {"matchLabels": {"app": app}}, "rules": rules})
}

/// Whether an operation waits in PreCheck on a Pod that still serves.
pub fn waits(pod: &Pod, id: &str) -> bool {
    pod.labels().contains_key(&Family::PreCheck.key(id)) && is_available(pod)
}

/// Whether an operation has left PreCheck.
pub fn is_past_precheck(pod: &Pod, id: &str) -> bool {
    let has = |family: Family| pod.labels().contains_key(&family.key(id));
    has(Family::Preparing) || has(Family::Operate)
}

/// The reason for which a rule keeps a Pod waiting in a stage.
pub fn reason(status: &RuleStatus, pod: &str, stage: &str, rule: &str) -> Option<String> {
    let details = status.details.iter();
    let mut detail = details.filter(|d| d.name == pod && d.stage == stage);
    let rejected = detail.next()?.reject_info.iter();
    let mut found = rejected.filter(|r| r.rule_name == rule);
    found.next().map(|r| r.reason.clone())
}

/// The stored state of a webhook rule.
pub fn webhook_status(status: &RuleStatus, rule: &str) -> WebhookStatus {
    let state = status.rule_states.iter().find(|s| s.name == rule);
    state
        .and_then(|s| s.webhook_status.clone())
        .unwrap_or_default()
}

/// Functions for a scope that only these tests need.
#[allow(async_fn_in_trait)] // for the tests of this binary alone
pub trait RuleScope {
    /// A Deployment and the names of its Pods, all available.
    async fn deployed(&self, app: &str, count: usize) -> Vec<String>;

    /// Creates a rule object over `app=<app>` with the name `app`.
    async fn create_rule(&self, app: &str, rules: Value);

    /// Waits until a rule reports a reason that contains `text` for a Pod in PreCheck.
    async fn until_reason(&self, object: &str, pod: &str, rule: &str, text: &str);

    /// The Pod after the begin of an operation, in a dry run.
    async fn dry_begin(&self, pod: &str, id: &str) -> Pod;

    /// Begins an operation that a new rule must hold. A replica enforces an additional rule only once its watch has
    /// delivered it. Until then, this function ends the operation and begins it again.
    async fn begin_under_rule(&self, object: &str, pod: &str, id: &str);

    async fn until_past_precheck(&self, pod: &str, id: &str) -> Pod;

    /// Waits until the operation may be carried out, and finishes it.
    async fn operate(&self, pod: &str, id: &str);

    async fn until_idle(&self, pod: &str);

    /// Changes the first rule of an object.
    async fn edit_rule(&self, object: &str, change: Value);
}

impl RuleScope for Scope {
    async fn deployed(&self, app: &str, count: usize) -> Vec<String> {
        self.deploy(app, count, json!({})).await;
        names(&self.all_available(&format!("app={app}"), count).await)
    }

    async fn create_rule(&self, app: &str, rules: Value) {
        self.try_rule(app, spec(app, rules)).await.unwrap();
    }

    async fn until_reason(&self, object: &str, pod: &str, rule: &str, text: &str) {
        self.until_status(
            object,
            &format!("{pod} waits as: {text}"),
            |s: &RuleStatus| reason(s, pod, "PreCheck", rule).is_some_and(|why| why.contains(text)),
        )
        .await;
    }

    async fn dry_begin(&self, pod: &str, id: &str) -> Pod {
        let labels = json!({Family::Operating.key(id): "1", Family::OperationType.key(id): id});
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.pods().patch(pod, &params, &patch).await.unwrap()
    }

    async fn begin_under_rule(&self, object: &str, pod: &str, id: &str) {
        self.until_status(object, "a look of the leader", |s: &RuleStatus| {
            s.observed_generation >= 1
        })
        .await;
        for _ in 0..20 {
            let begun = self.begin(pod, id).await.unwrap();
            if waits(&begun, id) {
                return;
            }
            self.operate(pod, id).await;
            self.until_idle(pod).await;
        }
        panic!("{pod} is held by no rule");
    }

    async fn until_past_precheck(&self, pod: &str, id: &str) -> Pod {
        self.until_pod(pod, "past PreCheck", |p| is_past_precheck(p, id))
            .await
    }

    async fn operate(&self, pod: &str, id: &str) {
        self.until_pod(pod, "to operate", |p| may_operate(p, id))
            .await;
        self.finish(pod, id).await.unwrap();
    }

    async fn until_idle(&self, pod: &str) {
        self.until_pod(pod, "idle", is_idle).await;
    }

    async fn edit_rule(&self, object: &str, change: Value) {
        let mut rules = self.rules().get(object).await.unwrap().data["spec"]["rules"].take();
        json_patch::merge(&mut rules[0], &change);
        let patch = Patch::Merge(json!({"spec": {"rules": rules}}));
        self.rules()
            .patch(object, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}
