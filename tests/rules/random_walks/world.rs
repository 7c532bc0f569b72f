//! Carries out the actions of a walk, and ends all its faults.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::endpoint::now;
use testbed::pods::{in_flight, is_available, is_idle};
use testbed::{Scope, wait};

use super::acts::{Act, Change, Draft, Kind};
use super::endpoints::{Endpoint, Mood};
use super::history::Undone;
use crate::helpers::spec;

const OBJECTS: [&str; super::acts::OBJECTS] = ["a", "b", "c"];

/// A rule as the walk wants it.
#[derive(Clone, Debug)]
struct Rule {
    draft: Draft,
    name: String,
    disabled: bool,
    /// Part of the paths of the endpoint's URL.
    version: u32,
}

pub struct World {
    pub scope: Scope,
    pub endpoints: Vec<Endpoint>,
    pub pods: Vec<String>,
    /// By object.
    rules: [Vec<Rule>; super::acts::OBJECTS],
    versions: u32,
    pub undone: Vec<Undone>,
    pub acts: Vec<(u64, String)>,
    /// How many actions succeeded.
    pub done: usize,
}

impl World {
    pub fn new(scope: Scope, endpoints: Vec<Endpoint>, pods: Vec<String>) -> World {
        World {
            scope,
            endpoints,
            pods,
            rules: Default::default(),
            versions: 0,
            undone: Vec::new(),
            acts: Vec::new(),
            done: 0,
        }
    }

    /// Creates a Pod. Every third Pod has no readiness gate, like Pods that became managed only after their creation.
    pub async fn make(&self, index: usize) {
        let name = &self.pods[index];
        let labels = json!({"app": "web", "fit": "yes", "tier": if index.is_multiple_of(2) { "a" } else { "b" }});
        let mut extra = json!({"metadata": {"labels": labels}});
        let is_adopted = index % 3 == 2;
        if is_adopted {
            extra["metadata"]["labels"][keys::CONTROL] = Value::Null;
        }
        // A webhook may just have been killed.
        wait::until("a Pod to be made", async || {
            self.try_make(name, &extra).await
        })
        .await;
        if is_adopted {
            let adopt = json!({keys::CONTROL: keys::CONTROL_VALUE});
            wait::until("a Pod to be adopted", async || {
                passed(self.scope.label(name, adopt.clone()).await)
            })
            .await;
        }
    }

    async fn try_make(&self, name: &str, extra: &Value) -> bool {
        let mut pod = json!({
            "metadata": {"name": name, "labels": testbed::pods::labels("web")},
            "spec": {
                "containers": [{"name": "main", "image": "web:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        });
        json_patch::merge(&mut pod, extra);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let made = self.scope.pods().create(&Default::default(), &pod).await;
        passed(made) || self.scope.pods().get_opt(name).await.unwrap().is_some()
    }

    pub async fn act(&mut self, act: &Act) {
        self.acts.push((now(), format!("ACT {act:?}")));
        let done = self.try_act(act).await;
        self.acts.push((now(), format!("ACT done: {done}")));
        self.done += usize::from(done);
    }

    async fn try_act(&mut self, act: &Act) -> bool {
        match act {
            Act::Begin(pod, ids, kind) => self.begin(*pod, ids, kind).await,
            Act::Finish(pod, early) => self.finish(&self.pods[*pod], *early).await,
            Act::Undo(pod, id) => self.undo(*pod, id).await,
            Act::Again(pod, id) => {
                self.undo(*pod, id).await && self.begin(*pod, &[*id], "upgrade").await
            }
            Act::Remake(index) => {
                let pod = &self.pods[*index];
                let Ok(Some(old)) = self.scope.pods().get_opt(pod).await else {
                    return false;
                };
                if !passed(self.scope.delete(pod).await) {
                    return false;
                }
                self.scope.until_gone(&old).await;
                self.make(*index).await;
                true
            }
            Act::Label(pod, key, value) => passed(
                self.scope
                    .label(&self.pods[*pod], json!({*key: value}))
                    .await,
            ),
            Act::Edit(object, rule, change) => self.edit(*object, *rule, change).await,
            Act::Drop(object) => {
                self.rules[*object].clear();
                let rules = self.scope.rules();
                passed(
                    rules
                        .delete(OBJECTS[*object], &DeleteParams::default())
                        .await,
                )
            }
            Act::Make(object, drafts) => self.rule(*object, drafts).await,
            Act::Turn(endpoint, mood) => {
                self.endpoints[*endpoint].turn(*mood);
                true
            }
        }
    }

    async fn begin(&self, pod: usize, ids: &[&str], kind: &str) -> bool {
        let labels = ids.iter().flat_map(|id| {
            let since = (Family::Operating.key(id), json!(now().to_string()));
            [since, (Family::OperationType.key(id), json!(kind))]
        });
        let labels: Value = labels.collect::<serde_json::Map<_, _>>().into();
        passed(self.scope.label(&self.pods[pod], labels).await)
    }

    async fn undo(&mut self, pod: usize, id: &str) -> bool {
        let pod = self.pods[pod].clone();
        self.undone.push(Undone {
            pod: pod.clone(),
            id: id.to_owned(),
            at: now(),
        });
        let undo = json!({Family::UndoOperationType.key(id): "upgrade"});
        passed(self.scope.label(&pod, undo).await)
    }

    /// Finishes the operations of a Pod that may be carried out.
    async fn finish(&self, pod: &str, early: bool) -> bool {
        let Ok(Some(found)) = self.scope.pods().get_opt(pod).await else {
            return false;
        };
        let family = if early {
            Family::Operating
        } else {
            Family::Operate
        };
        let labels = found.labels().keys().filter_map(|key| Family::parse(key));
        let ids = labels
            .filter(|(f, _)| *f == family)
            .map(|(_, id)| id.to_owned());
        let mut all = serde_json::Map::new();
        all.extend(ids.map(|id| (Family::Operating.key(&id), Value::Null)));
        !all.is_empty() && passed(self.scope.label(pod, all.into()).await)
    }

    /// Creates an object, or replaces its rules.
    pub async fn rule(&mut self, object: usize, drafts: &[Draft]) -> bool {
        let rules = drafts.iter().enumerate().map(|(index, draft)| {
            self.versions += 1;
            Rule {
                draft: draft.clone(),
                name: format!("r{index}"),
                disabled: false,
                version: self.versions,
            }
        });
        self.rules[object] = rules.collect();
        self.write(object).await
    }

    async fn edit(&mut self, object: usize, rule: usize, change: &Change) -> bool {
        self.versions += 1;
        let version = self.versions;
        let Some(rule) = self.rules[object].get_mut(rule) else {
            return false;
        };
        match (change, &mut rule.draft.kind) {
            (Change::Limit(new), Kind::Limit(limit)) => *limit = *new,
            (Change::Stage, Kind::Webhook { .. } | Kind::Label) => {
                rule.draft.after = !rule.draft.after;
            }
            (Change::Limit(_) | Change::Path | Change::Stage, _) => rule.version = version,
            (Change::Policy, Kind::Webhook { ignores, .. }) => *ignores = !*ignores,
            (Change::Disable(disabled), _) => rule.disabled = *disabled,
            (Change::Rename | Change::Policy, _) => rule.name = format!("n{version}"),
            (Change::Filter(filtered), _) => rule.draft.filtered = *filtered,
        }
        self.write(object).await
    }

    async fn write(&self, object: usize) -> bool {
        let name = OBJECTS[object];
        let rules: Vec<_> = self.rules[object]
            .iter()
            .map(|r| self.written(name, r))
            .collect();
        let spec = spec("web", json!(rules));
        let patch = Patch::Merge(json!({"spec": spec}));
        let rules = self.scope.rules();
        if passed(rules.patch(name, &PatchParams::default(), &patch).await) {
            return true;
        }
        passed(self.scope.try_rule(name, spec).await)
    }

    fn written(&self, object: &str, rule: &Rule) -> Value {
        let mut all = match &rule.draft.kind {
            Kind::Limit(limit) => json!({"availablePolicy": {"maxUnavailableValue": limit}}),
            Kind::Label => json!({"labelCheck": {"requires": {"matchLabels": {"fit": "yes"}}}}),
            Kind::Webhook {
                endpoint,
                polls,
                ignores,
            } => {
                let server = &self.endpoints[*endpoint].server;
                let path = format!("{object}/{}", rule.version);
                let poll = server.url(&format!("/poll/{path}"));
                let mut config = match polls {
                    true => server.polled(json!({"url": poll, "timeoutSeconds": 5})),
                    false => server.config(),
                };
                config["url"] = json!(server.url(&format!("/check/{path}")));
                let policy = if *ignores { "Ignore" } else { "Fail" };
                json!({"webhook": {"failurePolicy": policy, "clientConfig": config}})
            }
        };
        all["name"] = json!(rule.name);
        if rule.draft.after {
            all["stage"] = json!("PostCheck");
        }
        if rule.disabled {
            all["disabled"] = json!(true);
        }
        if rule.draft.filtered {
            all["filter"] = json!({"labelSelector": {"matchLabels": {"tier": "a"}}});
        }
        all
    }

    /// Ends all faults: endpoints approve, budgets are open, labels are right.
    pub async fn lift(&mut self) {
        self.acts.push((now(), "ALL TROUBLES END".to_owned()));
        for endpoint in &self.endpoints {
            endpoint.turn(Mood::Healed);
        }
        // The walk writes nothing more: waiting operations must continue without a write that wakes the leader.
        for object in 0..OBJECTS.len() {
            let mut limited = false;
            for rule in &mut self.rules[object] {
                if let Kind::Limit(limit) = &mut rule.draft.kind {
                    (*limit, limited) = (100, true);
                }
            }
            let description = "the budgets to be opened";
            wait::until(description, async || !limited || self.write(object).await).await;
        }
        let fit = json!({"fit": "yes"});
        for pod in &self.pods {
            wait::until("a Pod's labels to be right", async || {
                let found = self.scope.pods().get_opt(pod).await.unwrap();
                let is_fit = |p: Pod| p.labels().get("fit").is_some_and(|fit| fit == "yes");
                found.is_none_or(is_fit) || passed(self.scope.label(pod, fit.clone()).await)
            })
            .await;
        }
    }

    /// Finishes each operation once it may be carried out, and waits until no Pod has an operation. Returns the Pods
    /// that are stuck.
    pub async fn until_idle(&self) -> Vec<Pod> {
        let at_rest = wait::found(async || {
            let mut idle = true;
            for pod in self.scope.pods().list(&Default::default()).await.ok()? {
                idle &= is_idle(&pod);
                let may = |key: &String| key.starts_with(Family::Operate.prefix());
                // If the kubelet has not noticed yet that traffic is off, the Pod would become unready for a moment.
                if pod.labels().keys().any(may) && (!is_available(&pod)) {
                    self.finish(&pod.name_any(), false).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            idle.then_some(())
        });
        if at_rest.await.is_some() {
            return Vec::new();
        }
        let all = self.scope.pods().list(&Default::default()).await.unwrap();
        let stuck = all.items.into_iter();
        stuck
            .filter(|p| !is_idle(p) || !in_flight(p).is_empty())
            .collect()
    }
}

/// Whether a request succeeded. It may fail while a webhook is being killed, while a rule holds it, or when the object
/// is gone.
fn passed<T: Debug>(outcome: kube::Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(kube::Error::Api(status)) => {
            assert!(
                [400, 403, 404, 409, 422, 429, 500, 504].contains(&status.code),
                "{status:?}"
            );
            false
        }
        Err(other) => panic!("{other:?}"),
    }
}
