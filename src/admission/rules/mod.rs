//! Reviews PodTransitionRules: sets defaults, validates, and writes the namespace enforcement label by which the API
//! server selects the webhooks for deletions and evictions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::AdmissionContext;
use super::namespace_label;
use super::overlap::{self, Overlap};
use super::responses;
use super::review::{Handler, Request, RequestOperation, Verdict};
use super::version_answer::{ASKING_RULE, AnsweringVersion};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api::{defaults, keys, validation};
use crate::api_request;
use crate::cluster::index::IndexState;
use crate::cluster::{held_rollouts, selection};
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions::{self, SelectorMatches, rollouts_held};
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::domain::rules::ignore_policy;

const KIND: &str = "PodTransitionRule";

/// Sets defaults, and labels the namespace before the rule is stored.
pub struct RuleMutator(pub Arc<AdmissionContext>);

/// Validates rules, and warns of rules that hold fewer Pods than their author may think.
pub struct RuleValidator(pub Arc<AdmissionContext>);

/// Time limit of the live read for a warning. If the read is late, the warning is left out.
const WARNING_READ_TIMEOUT: Duration = Duration::from_secs(1);

#[async_trait]
impl Handler for RuleMutator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let object: Value = match responses::parse_object(request.object.as_deref(), KIND) {
            Ok(object) => object,
            Err(denial) => return denial,
        };
        // So that `operating check` reaches the validating webhook, too.
        if request.dry_run && request.name == ASKING_RULE {
            return Verdict::allow();
        }
        // The API server checks the CRD's schema before the validating webhook, and its messages name no remedy. So
        // this webhook reports all errors first.
        let verdict = validate_spec(&self.0, request);
        if !verdict.is_allowed() {
            return verdict;
        }
        if keys::EXCLUDED_NAMESPACES.contains(&request.namespace.as_str()) {
            // The webhook configurations exclude these namespaces, so no API server calls the webhooks for them.
            let message = format!("no rule in namespace {} is enforced", request.namespace);
            return Verdict::deny(403, "Forbidden", message);
        }
        let rule =
            match responses::parse_object::<PodTransitionRule>(request.object.as_deref(), KIND) {
                Ok(rule) => rule,
                Err(denial) => return denial,
            };
        let old = stored_rule(request);
        let level = NamespaceEnforcement::for_rules([&RuleSet::compile(&rule)]);
        // An update needs a new label only if its rules need a stricter value than plain rules do.
        let asks_for_more =
            level > NamespaceEnforcement::Ruled && !is_unchanged(old.as_ref(), &rule);
        if (request.operation == RequestOperation::Create || asks_for_more)
            && !request.dry_run
            && let Err(why) = self
                .label_namespace(&request.namespace, level, deadline)
                .await
        {
            let message = format!(
                "the namespace {} could not be written ({why}): before a rule is stored, its namespace gets the label {} \
                 and a new annotation {}",
                request.namespace,
                keys::NAMESPACE_ENFORCEMENT,
                keys::RULE_ADMITTED
            );
            return Verdict::deny(503, "ServiceUnavailable", message);
        }
        let mut patch = defaults::default_podtransitionrule(&object);
        patch.extend(ignored_failures_patch(old.as_ref(), &rule));
        let unknown = ignore_policy::unknown_names(old.as_ref(), &rule).into_iter();
        let unknown = unknown.map(|name| {
            format!(
                "metadata.annotations[{}]: {name:?} is not kept: no webhook rule with failurePolicy Ignore has that name; write a JSON \
                 list of their names, such as [\"ask\"]",
                keys::IGNORES_FAILURES
            )
        });
        unknown.fold(
            Verdict::allow().with_patch(Patch(patch)),
            Verdict::with_warning,
        )
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked("the rule", why)
    }
}

/// Sets or removes the annotation that names the rules which let Pods pass while their endpoint fails. Empty if it is
/// up to date.
fn ignored_failures_patch(
    old: Option<&PodTransitionRule>,
    new: &PodTransitionRule,
) -> Vec<PatchOperation> {
    let key = keys::IGNORES_FAILURES;
    let annotations = new.metadata.annotations.as_ref();
    let has = annotations.and_then(|all| all.get(key));
    let wanted = ignore_policy::annotation_value(old, new);
    if has == wanted.as_ref() {
        return Vec::new();
    }
    let path = |tokens: &[&str]| PointerBuf::from_tokens(tokens.iter().copied());
    let at = path(&["metadata", "annotations", key]);
    let Some(wanted) = wanted else {
        return vec![PatchOperation::Remove(RemoveOperation { path: at })];
    };
    let add = |path, value| PatchOperation::Add(AddOperation { path, value });
    let empty = path(&["metadata", "annotations"]);
    let none = annotations.is_none().then(|| add(empty, json!({})));
    none.into_iter().chain([add(at, json!(wanted))]).collect()
}

impl RuleMutator {
    /// Labels the namespace. Once the API server sees the label, it sends deletions and evictions of the namespace to
    /// the server.
    async fn label_namespace(
        &self,
        name: &str,
        level: NamespaceEnforcement,
        deadline: Instant,
    ) -> Result<(), String> {
        let written = namespace_label::ensure_namespace_label(&self.0, name, level);
        let written = api_request::by(deadline, written).await;
        written.map_err(|failure| failure.text())
    }
}

#[async_trait]
impl Handler for RuleValidator {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        let verdict = validate_spec(&self.0, request);
        if !verdict.is_allowed() {
            return verdict;
        }
        let overlap = self.find_new_overlap(request).await;
        if let Some(overlap) = overlap.as_ref().filter(|overlap| overlap.is_new) {
            return Verdict::deny(403, "Forbidden", overlap.overlap_message());
        }
        let warnings = self.rule_warnings(request).await;
        let overlap = overlap.map(|overlap| overlap.overlap_message());
        let warnings = warnings.into_iter().chain(overlap);
        warnings.fold(verdict, Verdict::with_warning)
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked("the rule", why)
    }
}

impl RuleValidator {
    /// A Pod that more rule objects would cover than allowed, if the spec is new or changed.
    async fn find_new_overlap(&self, request: &Request) -> Option<Overlap> {
        let object = responses::parse_object::<PodTransitionRule>(request.object.as_deref(), KIND);
        let (mut object, old) = (object.ok()?, stored_rule(request));
        if is_unchanged(old.as_ref(), &object) {
            return None;
        }
        let namespace = &mut object.metadata.namespace;
        namespace.get_or_insert_with(|| request.namespace.clone());
        let old = old.as_ref().map(RuleSet::compile);
        overlap::find_overlap(&self.0, &RuleSet::compile(&object), old.as_ref()).await
    }

    /// The warnings, if the spec is new or changed.
    async fn rule_warnings(&self, request: &Request) -> Vec<String> {
        let Ok(mut object) =
            responses::parse_object::<PodTransitionRule>(request.object.as_deref(), KIND)
        else {
            return Vec::new();
        };
        if is_unchanged(stored_rule(request).as_ref(), &object) {
            return Vec::new();
        }
        object
            .metadata
            .namespace
            .get_or_insert_with(|| request.namespace.clone());
        let rules = RuleSet::compile(&object);
        let (cached, filtered_out, more) = {
            let state = self.0.index.read_state();
            let cached = selection::has_cached_pods(&state, &rules);
            let filtered_out = selection::is_all_filtered_out(&state, &rules);
            (
                cached,
                filtered_out,
                permanent_hold_warnings(&state, &rules),
            )
        };
        let matches = match cached {
            _ if filtered_out => Some(SelectorMatches::FilteredOut),
            true => Some(SelectorMatches::Managed),
            false => selection::query_matches(&self.0.client, &rules, WARNING_READ_TIMEOUT).await,
        };
        let mut all =
            conditions::rule_warnings(&rules, matches.as_ref(), self.0.settings.grace_delete);
        all.extend(more);
        all.extend(self.0.settings.endpoints.network_warnings(&object.spec));
        let old = stored_rule(request);
        let newly = ignore_policy::new_ignore_rules(old.as_ref(), &object);
        all.extend(newly.map(|(index, _)| {
            format!(
                "spec.rules[{index}].webhook.failurePolicy: Ignore lets Pods pass while the endpoint fails. Kuperator \
                 writes Ignore into every rule and still lets these Pods wait: set Fail if they must wait"
            )
        }));
        all
    }
}

/// Warnings about Pods and owners that the rules hold forever at this moment, by the cache.
fn permanent_hold_warnings(state: &IndexState, rules: &RuleSet) -> Vec<String> {
    let expected = state.count_expected(rules);
    let desired = rules
        .availability_limits()
        .map(|limits| limits.desired(expected))
        .max();
    let recreating = desired.map_or_else(Vec::new, |desired| {
        let limit = expected.total.saturating_sub(desired);
        let namespace_index = state.namespace(&rules.namespace).into_iter();
        let owners = namespace_index.flat_map(|namespace| namespace.workloads());
        let held_owners =
            owners.filter(|(_, owner)| held_rollouts::is_recreate_held(rules, owner, limit));
        held_owners.map(|(_, owner)| owner.name.clone()).collect()
    });
    let frozen = conditions::zero_budget_warning(rules, expected);
    frozen
        .into_iter()
        .chain(rollouts_held::recreate_warning(rules, recreating))
        .chain(conditions::expected_unknown_warning(
            rules,
            state.find_unknown_replicas_owners(rules),
        ))
        .collect()
}

/// The object before the change, if it can be parsed.
fn stored_rule(request: &Request) -> Option<PodTransitionRule> {
    let old = request.old_object.as_deref()?;
    responses::parse_object(Some(old), KIND).ok()
}

/// Whether the request leaves the spec unchanged, or the object is being deleted.
fn is_unchanged(old: Option<&PodTransitionRule>, object: &PodTransitionRule) -> bool {
    old.is_some_and(|old| old.spec == object.spec) || object.metadata.deletion_timestamp.is_some()
}

/// Validates a spec that is new or changed. Requests that do not change the spec must stay possible even if the stored
/// spec is invalid. An error that the stored spec already has becomes a warning, because it must be possible to relax a
/// rule that holds a drain.
fn validate_spec(context: &AdmissionContext, request: &Request) -> Verdict {
    use validation::podtransitionrule::check_rules;
    let object: PodTransitionRule = match responses::parse_object(request.object.as_deref(), KIND) {
        Ok(object) => object,
        Err(denial) => return denial,
    };
    let old = stored_rule(request);
    if is_unchanged(old.as_ref(), &object) {
        return Verdict::allow();
    }
    let mut errors = validation::FieldErrors::ignoring_existing(|errors| {
        old.iter().for_each(|old| check_rules(&old.spec, errors));
    });
    check_rules(&object.spec, &mut errors);
    if !errors.is_empty() && request.name == ASKING_RULE {
        let message = format!(
            "{KIND} {ASKING_RULE} is invalid: {errors} ({})",
            AnsweringVersion::own()
        );
        return Verdict::deny(422, "Invalid", message);
    }
    if !errors.is_empty() {
        return responses::deny_invalid(KIND, &request.name, &errors);
    }
    let verdict = match request.operation {
        RequestOperation::Create => {
            refuse_over_limit(context, request).unwrap_or_else(Verdict::allow)
        }
        _ => Verdict::allow(),
    };
    errors
        .existing_errors()
        .iter()
        .fold(verdict, |verdict, error| {
            verdict.with_warning(format!("stored as it was: {error}"))
        })
}

/// Denies a new object if the namespace has as many rule objects as allowed. An object that is being deleted and kept
/// by a finalizer counts too, because every cache and every live read contains it. This function counts the objects in
/// the cache, so objects that are created at the same time do not see each other.
fn refuse_over_limit(context: &AdmissionContext, request: &Request) -> Option<Verdict> {
    let most = context.settings.max_rules;
    let (live, ending) = {
        let state = context.index.read_state();
        let namespace_index = state.namespace(&request.namespace);
        namespace_index.map_or((0, 0), |index| {
            (index.rules.len(), index.ending_rules.len())
        })
    };
    let count = live + ending;
    let has_room = u32::try_from(count).is_ok_and(|count| count < most);
    (!has_room).then(|| {
        let ending_note = match ending {
            0 => String::new(),
            1 => " (1 of them is being deleted and kept by a finalizer: metadata.finalizers says whose)".into(),
            _ => format!(" ({ending} of them are being deleted and kept by a finalizer: metadata.finalizers says whose)"),
        };
        let message = format!(
            "the namespace {} has {count} PodTransitionRules and may have {most}{ending_note}: put several rules into spec.rules of one \
             object, delete objects that nobody needs, or have the server's --max-rules-per-namespace raised",
            request.namespace
        );
        Verdict::deny(403, "Forbidden", message)
    })
}

#[cfg(test)]
mod tests;
