//! Carries out the actions of a walk. At the end it reverts what only users revert.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::scope::PAUSED;
use testbed::wait;

use super::acts::Act;
use super::judge::Excuses;
use super::requests::{is_taken, passed};
use super::{decorations, jobs, rewriting};
use crate::admission_policies::Policy;
use crate::fixtures::{Set, condition, label};
use crate::pvcs;

const KEEPER: &str = "walk.test/keeper";

/// A set, and the changes that the walk has made in its namespace.
pub struct World<'a> {
    pub set: Set<'a>,
    policy: Option<Policy<'a>>,
    pub excuses: Excuses,
    /// PVCs that the walk itself has deleted.
    pub deleted: BTreeSet<String>,
    /// How many actions succeeded.
    pub done: usize,
    /// Whether Pods may carry revisions that do not exist.
    unknown_revisions: bool,
}

impl<'a> World<'a> {
    pub fn new(set: Set<'a>) -> World<'a> {
        World {
            set,
            policy: None,
            excuses: Excuses::default(),
            deleted: BTreeSet::new(),
            done: 0,
            unknown_revisions: false,
        }
    }

    /// Carries out an action. The API server may refuse it, and its Pod may be gone.
    pub async fn act(&mut self, act: &Act) {
        let scope = self.set.scope;
        let done = match act {
            Act::Edit(spec) => self.edit(spec.clone()).await,
            Act::List(list, pod) => {
                let name = match pod {
                    Some(pod) => self.pod(*pod).await.map(|pod| pod.name_any()),
                    None => None,
                };
                let mut part = json!({});
                part[*list] = json!(name.into_iter().collect::<Vec<_>>());
                self.edit(json!({ "scaleStrategy": part })).await
            }
            Act::Quota(resource, most) => self.quota(resource, *most).await,
            Act::Refuse(operation, resource, passes) => {
                self.allow().await;
                let policy = Policy::new(scope, (operation, resource), passes, "Forbidden").await;
                self.policy = Some(policy);
                true
            }
            Act::Allow => self.allow().await,
            Act::Rewrite(true) => rewriting::begin(scope).await,
            Act::Rewrite(false) => rewriting::end(scope).await,
            Act::Command(command) => self.command(command).await,
            Act::Remake(pod) => {
                self.remake(*pod).await;
                true
            }
            Act::Decorate(name, spec) => decorations::decorate(scope, name, spec).await,
            Act::Undecorate(name) => decorations::undecorate(scope, name).await,
            Act::Job(action, place, count) => {
                let pods = scope.pods().list(&ListParams::default()).await.unwrap();
                let pods = pods.iter().skip(*place).take(*count);
                let names: Vec<String> = pods.map(ResourceExt::name_any).collect();
                !names.is_empty() && jobs::create(scope, action, &names).await
            }
            Act::EndJobs => jobs::delete_all(scope).await,
            Act::Kill(place)
            | Act::Fail(place)
            | Act::Label(place, ..)
            | Act::Orphan(place)
            | Act::Kubelet(place, _)
            | Act::Keep(place, _) => match self.pod(*place).await {
                Some(pod) => self.act_on(&pod, act).await,
                None => false,
            },
        };
        self.done += usize::from(done);
    }

    async fn pod(&self, place: usize) -> Option<Pod> {
        let pods = self.set.scope.pods();
        let pods = pods.list(&ListParams::default()).await.unwrap();
        pods.items.into_iter().nth(place)
    }

    async fn act_on(&mut self, pod: &Pod, act: &Act) -> bool {
        let patch = match act {
            Act::Kill(_) => return passed(self.set.scope.delete(&pod.name_any()).await),
            Act::Fail(_) => {
                let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
                let api = self.set.scope.pods();
                let params = PatchParams::default();
                let written = api.patch_status(&pod.name_any(), &params, &failed).await;
                return self.excuse(pod, written);
            }
            Act::Label(_, key, value) => {
                self.unknown_revisions |= *key == keys::REVISION;
                if *key == keys::SERVICE_AVAILABLE && value.is_some() {
                    self.excuses.lives.insert(pod.uid().unwrap());
                }
                json!({ "labels": { *key: value } })
            }
            Act::Orphan(_) => json!({ "ownerReferences": null }),
            Act::Kubelet(_, slow) => json!({ "annotations": { PAUSED: slow.then_some("true") } }),
            Act::Keep(_, keeps) => json!({ "finalizers": keeps.then_some([KEEPER]) }),
            _ => return false,
        };
        self.write(pod, patch).await
    }

    /// Merges into the metadata of a Pod, and excuses the losses of the Pod that follow.
    async fn write(&mut self, pod: &Pod, metadata: Value) -> bool {
        let patch = json!({ "metadata": metadata });
        let written = self.set.scope.patch(&pod.name_any(), patch).await;
        self.excuse(pod, written)
    }

    fn excuse(&mut self, pod: &Pod, written: kube::Result<Pod>) -> bool {
        match written {
            Ok(written) => {
                let version = written.resource_version().unwrap().parse().unwrap();
                // Another Pod may have this name by now.
                self.excuses
                    .writes
                    .insert((written.uid().unwrap(), version));
                true
            }
            failed => {
                // The API server may have carried out the request although it answered with an error.
                if matches!(&failed, Err(kube::Error::Api(status)) if status.code >= 500) {
                    self.excuses.lives.insert(pod.uid().unwrap());
                }
                passed(failed)
            }
        }
    }

    /// Merges into the spec. Repeats the request while the webhooks are down.
    async fn edit(&self, part: Value) -> bool {
        let patch = Patch::Merge(json!({ "spec": part }));
        let params = PatchParams::default();
        is_taken(&part.to_string(), async || {
            self.set.api.patch(self.set.name, &params, &patch).await
        })
        .await
    }

    async fn command(&self, command: &str) -> bool {
        let patch = json!({ "metadata": { "annotations": { keys::ROLLOUT: command } } });
        let params = PatchParams::default();
        let api = &self.set.api;
        passed(
            api.patch(self.set.name, &params, &Patch::Merge(patch))
                .await,
        )
    }

    async fn quota(&self, resource: &str, most: Option<u32>) -> bool {
        let scope = self.set.scope;
        let quotas: Api<ResourceQuota> = Api::namespaced(scope.client.clone(), &scope.namespace);
        let Some(most) = most else {
            return passed(quotas.delete(resource, &DeleteParams::default()).await);
        };
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": resource },
            "spec": { "hard": { resource: most.to_string() } },
        });
        let force = PatchParams::apply("test").force();
        passed(quotas.patch(resource, &force, &Patch::Apply(quota)).await)
    }

    async fn allow(&mut self) -> bool {
        match self.policy.take() {
            Some(policy) => {
                policy.lift().await;
                true
            }
            None => false,
        }
    }

    /// Deletes the set without its Pods, and creates it again.
    async fn remake(&mut self, pod: Option<usize>) {
        let set = &self.set;
        let former = set.get().await;
        let from = former.resource_version().unwrap().parse().unwrap();
        let orphan = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        wait::until("the set to be deleted", async || {
            match set.api.get_opt(set.name).await {
                Ok(None) => true,
                Ok(Some(found)) if found.metadata.deletion_timestamp.is_none() => {
                    passed(set.api.delete(set.name, &orphan).await);
                    false
                }
                _ => false,
            }
        })
        .await;
        if let Some(pod) = pod
            && let Some(pod) = self.pod(pod).await
        {
            passed(set.scope.delete(&pod.name_any()).await);
        }
        let again: CollaSet = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": set.name }, "spec": former.spec,
        }))
        .unwrap();
        let made = wait::value("the set to be made again", async || {
            let made = set.api.create(&PostParams::default(), &again).await;
            match made {
                Ok(made) => Some(made),
                // The answer may have been lost.
                failed => {
                    passed(failed);
                    set.api.get_opt(set.name).await.ok().flatten()
                }
            }
        })
        .await;
        let to = made.resource_version().unwrap().parse().unwrap();
        self.excuses.absences.push((from, to));
    }

    /// Ends all faults.
    pub async fn lift(&mut self) {
        self.allow().await;
        rewriting::end(self.set.scope).await;
        for resource in ["pods", "persistentvolumeclaims"] {
            self.quota(resource, None).await;
        }
        let mut end = json!({
            "paused": false, "updateStrategy": { "rollingUpdate": { "steps": null } },
            "scaleStrategy": { "podToDelete": null, "podToInclude": null, "podToExclude": null },
        });
        if self.unknown_revisions {
            end["updateStrategy"]["rollingUpdate"] = json!(null);
        }
        assert!(self.edit(end).await, "the end is refused");
        self.retry().await;
        let begun = std::time::Instant::now();
        while self.free_pods().await > 0 {
            assert!(begun.elapsed() < wait::PATIENCE, "Pods cannot be freed");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        self.set.settled().await;
        self.delete_pvcs().await;
    }

    /// Starts an aborted rollout again.
    async fn retry(&self) {
        wait::until("the rollout to be retried", async || {
            let set = self.set.get().await;
            let annotations = set.metadata.annotations.as_ref();
            if annotations.is_some_and(|all| all.contains_key(keys::ROLLOUT)) {
                return false;
            }
            let status = set.status.as_ref();
            let rollout = status.and_then(|s| s.rollout.as_ref());
            let aborted = rollout.is_some_and(|rollout| rollout.aborted)
                || condition(&set, "Stalled").is_some_and(|c| c.reason == "RolloutAborted");
            if aborted {
                self.command("retry").await;
            }
            !aborted && status.map(|s| s.observed_generation) == set.metadata.generation
        })
        .await;
    }

    /// Reverts what actions did to Pods, and deletes Pods that do not belong to the set. Returns how many such Pods
    /// there were.
    async fn free_pods(&mut self) -> usize {
        let set = self.set.get().await;
        let pods = self.set.scope.pods();
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let mut count = 0;
        for pod in &pods {
            let finalizers = pod.metadata.finalizers.iter().flatten();
            let has_keeper = finalizers.into_iter().any(|f| f == KEEPER);
            let mut owners = pod.owner_references().iter();
            let owned = owners.any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref());
            // With persistent names no Pod can be excluded.
            let marks = [keys::ORPHANED, keys::TO_EXCLUDE];
            let marked = marks.iter().any(|key| label(pod, key).is_some());
            let foreign = !owned || label(pod, "app") != Some("web");
            let paused = pod.annotations().contains_key(PAUSED);
            // A set does not see an unmanaged Pod, and finds out only when it needs the ID.
            let unmanaged = label(pod, keys::CONTROL) != Some(keys::CONTROL_VALUE);
            if !has_keeper && !paused && !foreign && !marked && !unmanaged {
                continue;
            }
            count += 1;
            let mut metadata = json!({ "annotations": { PAUSED: null }, "labels": { keys::ORPHANED: null, keys::TO_EXCLUDE: null, keys::CONTROL: keys::CONTROL_VALUE } });
            if has_keeper {
                metadata["finalizers"] = json!(null);
            }
            if foreign {
                // No rule may hold the deletion of this Pod, because the rule may wait for the Pod itself.
                let skips = json!({ "skipRules": ["availability"] }).to_string();
                let skips = json!({ "annotations": { keys::SKIP_RULE_CONDITIONS: skips } });
                self.write(pod, skips).await;
                self.excuses.lives.insert(pod.uid().unwrap());
                metadata["labels"] = json!({ keys::CONTROL: null });
            }
            self.write(pod, metadata).await;
            if foreign && pod.metadata.deletion_timestamp.is_none() {
                passed(self.set.scope.delete(&pod.name_any()).await);
            }
        }
        count
    }

    /// Deletes PVCs that no set owns and no Pod mounts.
    async fn delete_pvcs(&mut self) {
        let pods = self.set.scope.pods();
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let mounted: BTreeSet<_> = pods.iter().flat_map(pvcs::mounted).collect();
        for pvc in pvcs::list_live(self.set.scope).await {
            let name = pvc.name_any();
            if pvc.owner_references().is_empty() && !mounted.contains(&name) {
                self.deleted.insert(name.clone());
                let api = pvcs::api(self.set.scope);
                passed(api.delete(&name, &DeleteParams::default()).await);
            }
        }
    }

    /// Describes the Pods of a set that does not settle.
    pub async fn describe(&self) -> String {
        let pods = self.set.scope.pods();
        let pods = pods.list(&ListParams::default()).await.unwrap();
        let describe = |pod: &Pod| {
            format!(
                "{} {}",
                is_available(pod),
                testbed::observer::describe_pod("", Some(pod))
            )
        };
        let pods: Vec<_> = pods.iter().map(describe).collect();
        pods.join("\n")
    }
}
