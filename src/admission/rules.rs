//! PodTransitionRules: defaults, validation, and the mark on the namespace that makes the claiming webhooks see it.

use std::sync::Arc;

use async_trait::async_trait;
use json_patch::Patch;
use kube::api::{Api, Patch as ApiPatch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::answers;
use super::context::Context;
use super::review::{Handler, Operation, Request, Verdict};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api::{defaults, keys, validation};
use crate::cluster::path;
use crate::domain::rules::RuleSet;
use crate::domain::rules::mark::Mark;

const KIND: &str = "PodTransitionRule";

/// Defaults, and labels the namespace before the rule is stored.
pub struct Mutate(pub Arc<Context>);

/// Validation.
pub struct Validate;

#[async_trait]
impl Handler for Mutate {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let object: Value = match answers::read(request.object.as_deref(), KIND) {
            Ok(object) => object,
            Err(denial) => return denial,
        };
        // Here and not only in the validation behind: the CRD's schema is checked in between, and names no remedy.
        let verdict = judge(request);
        if !verdict.is_allowed() {
            return verdict;
        }
        let mark = match answers::read::<PodTransitionRule>(request.object.as_deref(), KIND) {
            Ok(object) => Mark::for_rules([&RuleSet::compile(&object)]),
            Err(denial) => return denial,
        };
        // A change can only ask for more than any rule does.
        if (request.operation == Operation::Create || mark > Mark::Ruled)
            && !request.dry_run
            && let Err(why) = self
                .mark_namespace(&request.namespace, mark, deadline)
                .await
        {
            let message = format!(
                "the namespace {} could not be labelled {} ({why}), without which the rule would hold nothing; try again in \
                 a moment",
                request.namespace,
                keys::NAMESPACE_HAS_RULES
            );
            return Verdict::deny(503, "ServiceUnavailable", message);
        }
        Verdict::allow().with_patch(Patch(defaults::podtransitionrule(&object)))
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        answers::unchecked("the rule", why)
    }
}

impl Mutate {
    /// Labels the namespace: from now on the API server sends its deletions and evictions here.
    async fn mark_namespace(
        &self,
        name: &str,
        mark: Mark,
        deadline: Instant,
    ) -> Result<(), String> {
        let marked = self.0.index.read().namespace(name).is_some_and(|n| {
            n.labels
                .as_ref()
                .is_some_and(|labels| Mark::of(labels) >= mark)
        });
        // The cached label may be about to be removed with the last rule before this one; the controller sees the new
        // rule and puts it back.
        if marked {
            return Ok(());
        }
        let patch =
            json!({ "metadata": { "labels": { (keys::NAMESPACE_HAS_RULES): mark.value() } } });
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> =
            Api::all(self.0.client.clone());
        let (params, patch) = (PatchParams::default(), ApiPatch::Merge(patch));
        let write = async {
            let name = path::checked(name)?;
            namespaces.patch_metadata(name, &params, &patch).await
        };
        match timeout_at(deadline, write).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err("no answer in time".into()),
        }
    }
}

#[async_trait]
impl Handler for Validate {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        judge(request)
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        answers::unchecked("the rule", why)
    }
}

/// Judges a spec that is new or changed; whatever else is done to an object with an odd stored spec must stay possible.
fn judge(request: &Request) -> Verdict {
    let object: PodTransitionRule = match answers::read(request.object.as_deref(), KIND) {
        Ok(object) => object,
        Err(denial) => return denial,
    };
    let old = request.old_object.as_deref();
    let old = old.and_then(|raw| answers::read::<PodTransitionRule>(Some(raw), KIND).ok());
    let unchanged = old.is_some_and(|old| old.spec == object.spec);
    if unchanged || object.metadata.deletion_timestamp.is_some() {
        return Verdict::allow();
    }
    let errors = validation::podtransitionrule::validate(&object.spec);
    if errors.is_empty() {
        return Verdict::allow();
    }
    answers::invalid(KIND, &request.name, &errors)
}
