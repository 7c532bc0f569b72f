//! Advances the lifecycle of a Pod within the request that changes it, and takes a claim when an operation begins.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::{deny_invalid_pod, parse_pod, pod_updates, replacement, service_ready, wait_messages};
use crate::admission::bypass::{AGAINST_RULE, Approval, BypassCheck};
use crate::admission::context::AdmissionContext;
use crate::admission::review::{Handler, Request, RequestOperation, Verdict};
use crate::admission::{denial, exempt, overlap, rule_check};
use crate::api::keys::{self, Family};
use crate::cluster::index::RuleEntry;
use crate::domain::grace_delete::is_deletion_in_flight;
use crate::domain::lifecycle::restarts::{self, PendingRestarts};
use crate::domain::lifecycle::{
    LabelPatch, LifecycleWrite, Stage, ids_without_type, manual_label, validate,
};
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::pod_size;
use crate::domain::rules::stage::{new_candidate, operation_rejections};
use crate::domain::rules::webhook::Candidate;
use crate::domain::rules::{SkipAnnotation, unreadable_skips_message};
use crate::ledger::protocol::ClaimOperation as Claimed;

/// Maximum number of Pods of a wait queue that are checked for a Pod that waits longer. If rules keep all of these Pods
/// waiting for other reasons than the budget, a Pod behind them may go first, and the ledger decides.
const MAX_QUEUED_PODS: usize = 50;

/// Advances the lifecycle of Pods.
pub struct PodMutator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for PodMutator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let verdict = match request.operation {
            RequestOperation::Create => self.review_create(request),
            RequestOperation::Update => self.review_update(request, deadline).await,
            RequestOperation::Delete | RequestOperation::Connect => return Verdict::allow(),
        };
        let warnings = self
            .skip_warning(request)
            .into_iter()
            .chain(untyped_warnings(request))
            .chain(replacement::replacement_warning(
                &self.0.objects.claims,
                request,
            ));
        warnings.fold(verdict, Verdict::with_warning)
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        // The controller advances the lifecycle later, so most writes can pass without this webhook. The writes that
        // are held below would have an effect that nobody has decided.
        let (Ok(old), Ok(new)) = (
            parse_pod(request, request.old_object.as_deref()),
            parse_pod(request, request.object.as_deref()),
        ) else {
            return Verdict::allow();
        };
        let held = |what: &str| {
            let (code, reason) = denial::TOO_MANY_REQUESTS;
            let name = &new.metadata.name;
            let text = format!("Pod {name}: {what} is held: {why}; try again in a moment");
            Verdict::deny(code, reason, text)
        };
        let key = keys::AWAITS_RESTART;
        if old.annotation(key) != new.annotation(key) {
            return held(&format!("a change of the annotation {key}"));
        }
        // The label asks for a grant. If it were stored without a decision, it would count as granted.
        let had = |key: &str| old.is_managed() && old.label(key).is_some();
        let mut brought = new.metadata.labels.keys().filter(|key| is_grant_mark(key));
        if new.is_managed() && brought.any(|key| !had(key)) {
            return held("a grant");
        }
        if new.is_managed() && !old.is_managed() && !validate(None, &new).is_empty() {
            return held("coming under the management with labels of the lifecycle");
        }
        if removes_available(&old, &new) {
            return held("taking it off traffic");
        }
        Verdict::allow().with_audit("skipped", why)
    }
}

/// The warning for a managed Pod that becomes too large to be cached.
fn size_warning(old: Option<&Pod>, new: &Pod) -> Option<String> {
    let bytes = new.pod_bytes();
    let is_news = bytes > pod_size::MAX_POD_BYTES
        && old.is_none_or(|old| old.pod_bytes() <= pod_size::MAX_POD_BYTES);
    is_news.then(|| {
        let excess = pod_size::excess_message(bytes);
        match new.metadata.name.as_str() {
            "" => format!("the Pod {excess}"),
            name => format!("Pod {name} {excess}"),
        }
    })
}

impl PodMutator {
    /// The warning for a request that sets a skip annotation which cannot be parsed.
    fn skip_warning(&self, request: &Request) -> Option<String> {
        let key = keys::SKIP_RULE_CONDITIONS;
        let raw = request.object.as_deref()?;
        if self.0.index.skips() == SkipAnnotation::Ignored || !raw.get().contains(key) {
            return None;
        }
        let new = parse_pod(request, Some(raw)).ok()?;
        let problem = unreadable_skips_message(&new)?;
        let old = request.old_object.as_deref();
        let old = old.and_then(|raw| parse_pod(request, Some(raw)).ok());
        let is_old = old.is_some_and(|old| old.annotation(key) == new.annotation(key));
        (!is_old).then(|| format!("Pod {}: {problem}", new.metadata.name))
    }

    fn review_create(&self, request: &Request) -> Verdict {
        let new = match parse_pod(request, request.object.as_deref()) {
            Ok(new) => new,
            Err(verdict) => return verdict,
        };
        if !new.is_managed() {
            return Verdict::allow();
        }
        let mut patch = self.new_lifecycle_patch(request, &new);
        patch.extend(readiness_gate_patch(&new).filter(|_| has_spec(request)));
        let verdict = Verdict::allow().with_patch(Patch(patch));
        let warning = size_warning(None, &new);
        warning.into_iter().fold(verdict, Verdict::with_warning)
    }

    /// Decides a write by which a Pod becomes managed. Anybody may have written its lifecycle labels before, so they
    /// are replaced. The leader advances the lifecycle afterwards.
    fn enter_management(&self, request: &Request, new: &Pod) -> Verdict {
        let verdict = Verdict::allow().with_patch(Patch(self.new_lifecycle_patch(request, new)));
        let warning = size_warning(None, new);
        warning.into_iter().fold(verdict, Verdict::with_warning)
    }

    /// The patch for a Pod that has no lifecycle yet. Lifecycle labels and annotations that it carries were copied from
    /// another Pod or forged.
    fn new_lifecycle_patch(&self, request: &Request, new: &Pod) -> Vec<PatchOperation> {
        let mut run = LifecycleWrite::from_write(None, new, self.0.now_nanos());
        run.advance_all();
        let mut patch = lifecycle_label_patch(request, &run);
        let nothing = BTreeMap::new();
        patch.extend(annotation_patch(
            request,
            &new.metadata.annotations,
            &nothing,
        ));
        patch
    }

    async fn review_update(&self, request: &Request, deadline: Instant) -> Verdict {
        let of_status = request.sub_resource.as_deref() == Some("status");
        let (old, new) = match (
            parse_pod(request, request.old_object.as_deref()),
            parse_pod(request, request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (Arc::new(old), new),
            (Err(verdict), _) | (_, Err(verdict)) => return verdict,
        };
        let key = keys::AWAITS_RESTART;
        let asks_nothing = old.metadata.labels == new.metadata.labels
            && old.annotation(key) == new.annotation(key);
        if of_status && asks_nothing && request.user_info.is_node() {
            // NodeRestriction would refuse the kubelet's write if this webhook changed a label. The leader advances the
            // lifecycle instead. Only webhook configurations of an older version still send such writes.
            return Verdict::allow();
        }
        let mut new = new;
        if !new.is_managed() || old.is_terminating() {
            return Verdict::allow(); // the validating webhook judges a Pod that stops being managed
        }
        if !old.is_managed() {
            return self.enter_management(request, &new);
        }
        let asked_annotations = new.metadata.annotations.clone();
        self.record_restarts(request, &old, &mut new);
        let asked = new.metadata.labels.clone();
        let by_hand = manual_label::take_manual_label(&old, &mut new, self.0.now_nanos());
        let errors = validate(Some(&old), &new);
        if !errors.is_empty() {
            return deny_invalid_pod(&new, &errors);
        }
        let mut run = LifecycleWrite::from_write(Some(&old), &new, self.0.now_nanos());
        let mut waits = Vec::new();
        // A write of the status may report that the Pod is Ready again. It does not advance an operation that waits for
        // PreCheck: the leader asks for the grant in a write of its own, which shows the state of that moment.
        let mut asking = run.ids_awaiting_stage(Stage::PreCheck);
        asking.retain(|id| {
            !of_status || is_grant_request(&old, &new, id) || is_operation_begin(&old, &new, id)
        });
        let known = match asking.is_empty() && run.ids_awaiting_stage(Stage::PostCheck).is_empty() {
            true => Ok(()),
            false => {
                rule_check::ensure_rules_current(&self.0, &new.metadata.namespace, deadline).await
            }
        };
        let known = known.is_ok();
        // The bypass reason applies to a write that sets it, and to operations that begin or end with this write.
        // Otherwise any later write of an authorised user would become a bypass for operations of other users.
        let gives_reason = old.annotation(keys::BYPASS) != new.annotation(keys::BYPASS);
        let asks_now = |id: &str| {
            let key = Family::Operating.key(id);
            old.label(&key) != new.label(&key)
        };
        let bypass = |is_asked_for: bool| BypassCheck {
            context: &self.0,
            request,
            carrier: &new,
            dry_run: request.dry_run,
            is_asked_for,
            deadline,
        };
        let mut past = BTreeSet::new();
        let leaving = run.ids_awaiting_stage(Stage::PostCheck);
        for id in leaving.clone() {
            match self
                .check_stage(
                    &bypass(gives_reason || asks_now(&id)),
                    &run,
                    Stage::PostCheck,
                    &id,
                    known,
                )
                .await
            {
                Ok(bypassed) => {
                    past.extend(bypassed);
                    run.pass_stage(Stage::PostCheck, &id);
                }
                Err(told) => hold_operation(&mut run, Stage::PostCheck, &id, told, &mut waits),
            }
        }
        let mut past_before = BTreeSet::new();
        for id in &asking {
            let bypass = bypass(gives_reason || asks_now(id));
            match self
                .check_stage(&bypass, &run, Stage::PreCheck, id, known)
                .await
            {
                Ok(bypassed) => {
                    past_before.extend(bypassed);
                    run.pass_stage(Stage::PreCheck, id);
                }
                Err(told) => hold_operation(&mut run, Stage::PreCheck, id, told, &mut waits),
            }
        }
        let bypass = bypass(gives_reason || asking.iter().chain(&leaving).any(|id| asks_now(id)));
        let mut free = None;
        let mut approval = Approval::default();
        let mut settled = run.clone();
        settled.advance_all();
        let begins = asking.iter().any(|id| settled.phase_of(id).holds_offline());
        // A Pod that is down for a moment would become available by itself, and an operation prevents this. So it needs
        // a claim.
        let prolongs = begins && self.0.index.read_state().is_briefly_down(&old);
        let is_lost = settled.takes_offline() || prolongs;
        let is_free = is_lost
            && is_deletion_in_flight(&new)
            && exempt::is_deleted_with_collaset(&self.0, &old, deadline).await;
        if is_free {
            free = Some(exempt::COLLASET_DELETED);
        } else if is_lost {
            let granted = asking.iter().any(|id| is_grant_request(&old, &new, id));
            match self.claim_operation(&bypass, &old, granted).await {
                Ok(given) => approval = given,
                // The begin of the operation is stored. The Pod waits and gets its grant later.
                Err(denied) if !asking.is_empty() && !removes_available(&old, &new) => {
                    for id in &asking {
                        run.hold_stage(Stage::PreCheck, id);
                    }
                    past_before.clear();
                    waits.push(denied);
                    settled = run;
                    settled.advance_all();
                    if settled.takes_offline() {
                        return self.deny_takes_offline(&waits);
                    }
                }
                Err(denied) => {
                    waits.push(denied);
                    return self.deny_takes_offline(&waits);
                }
            }
        }
        past.append(&mut past_before);
        bypass.announce_bypass(&old, &past, AGAINST_RULE);
        approval.bypassed_checks = past;
        let verdict = approval.audit_bypass(Verdict::allow(), &bypass);
        let verdict = free
            .into_iter()
            .fold(verdict, |v, why| v.with_audit("free", why));
        let mut became = new.clone();
        settled.patch().apply(&mut became.metadata.labels);
        let goes_on = of_status && settled.has_passed_stage();
        let condition = goes_on
            .then(|| service_ready::service_ready_patch(request, &mut became, (self.0.now)()));
        let changed = LabelPatch::between(&asked, &became.metadata.labels);
        let mut patch = label_patch(request, &changed);
        patch.extend(annotation_patch(
            request,
            &asked_annotations,
            &new.metadata.annotations,
        ));
        patch.extend(condition.flatten());
        let verdict = verdict.with_patch(Patch(patch));
        let warning = match request.sub_resource {
            Some(_) => None, // a controller writes it, and cannot change the size
            None => size_warning(Some(&old), &new),
        };
        let warnings = waits.into_iter().chain(by_hand).chain(warning);
        warnings.fold(verdict, Verdict::with_warning)
    }

    /// Sets in `new` the restarts for which the Pod has to wait. A value from the request is ignored.
    fn record_restarts(&self, request: &Request, old: &Pod, new: &mut Pod) {
        if let Err(problem) = PendingRestarts::from_pod(old) {
            // This write drops the annotation, so the warning is logged once.
            warn!(namespace = %old.metadata.namespace, pod = %old.metadata.name, problem, "annotation {} can't be read and is dropped", keys::AWAITS_RESTART);
        }
        let seen = match request.sub_resource.as_deref() {
            Some("status") => &*new,
            _ => old,
        };
        let lost = old.spec != new.spec && pod_updates::is_lost(&self.0, old);
        let value = restarts::restarts_after_write(old, new, seen, lost, self.0.restart_moment())
            .annotation_value();
        let annotations = &mut new.metadata.annotations;
        match value {
            Some(value) => annotations.insert(keys::AWAITS_RESTART.to_owned(), value),
            None => annotations.remove(keys::AWAITS_RESTART),
        };
    }

    /// Takes the claim that an operation needs to take the Pod offline, or to keep it there. The error says why the
    /// operation waits.
    async fn claim_operation(
        &self,
        bypass: &BypassCheck<'_>,
        old: &Arc<Pod>,
        granted: bool,
    ) -> Result<Approval, String> {
        let context = &self.0;
        let rules = context.index.rules_covering_pod(old);
        let queues = if granted
            || overlap::check_overlap(&context.index, &rules, &BTreeSet::new(), old).is_err()
        {
            Vec::new() // such a claim is denied
        } else {
            self.queue_heads(old)
        };
        for (rule, head) in queues {
            if let Err(note) = bypass.may_bypass(Some(&rule)).await {
                let text = format!(
                    "Pod {} {}, which waits longer for the budget of PodTransitionRule {rule}",
                    old.metadata.name,
                    messages::queue_position(&head)
                );
                return Err(note.map_or(text.clone(), |note| format!("{text}; {note}")));
            }
        }
        let approval = bypass
            .claim_or_bypass(context.new_disruption(old, Claimed::Begin))
            .await;
        approval.map_err(|refused| refused.denial_message(&old.metadata.name, (context.now)()))
    }

    /// The rule objects in whose wait queue other Pods wait, each with the Pod that is next. The Pod that waits longest
    /// goes first, so an operation that begins now joins the queue. A Pod that a rule keeps waiting whatever the budget
    /// has no turn.
    fn queue_heads(&self, pod: &Pod) -> Vec<(String, String)> {
        let state = self.0.index.read_state();
        let limiting = state
            .rules_covering(pod)
            .filter(|entry| entry.snapshot.rules.availability_limits().next().is_some());
        let head = |entry: &RuleEntry| {
            let others = entry.tally.pre_check_waiting().take(MAX_QUEUED_PODS);
            let mut others = others
                .filter(|uid| ***uid != *pod.metadata.uid)
                .filter_map(|uid| state.pod(&pod.metadata.namespace, uid))
                .filter(|other| !state.is_deleted_with_collaset(other));
            let next = others.find(|other| state.has_passing_operation(Stage::PreCheck, other))?;
            Some((
                entry.snapshot.rules.name.clone(),
                next.metadata.name.clone(),
            ))
        };
        limiting.filter_map(head).collect()
    }

    /// What these operations wait for by the rules of a stage, as texts; empty if they pass. The second part has the
    /// names of the rule objects that keep them waiting; it is complete only with `all`.
    fn stage_waits(
        &self,
        stage: Stage,
        pod: &Pod,
        waiting: &[Candidate],
        all: bool,
    ) -> (Vec<String>, BTreeSet<String>) {
        let state = self.0.index.read_state();
        let namespace = state.namespace(&pod.metadata.namespace).into_iter();
        let rules = namespace.flat_map(|namespace| namespace.rules.values());
        let objects = RefCell::new(BTreeSet::new());
        let mut rejections = rules.flat_map(|entry| {
            let of =
                operation_rejections(&entry.snapshot.rules, stage, pod, waiting, &entry.verdicts);
            of.inspect(|rejection| {
                objects.borrow_mut().insert(rejection.object.clone());
            })
        });
        let told = wait_messages::describe_waits(rejections.by_ref());
        if all {
            rejections.for_each(drop);
        }
        (told, objects.take())
    }

    /// Whether an ID passes the rules of a stage: the rule objects that were bypassed for it, or the texts of what it
    /// waits for. `known` says whether the cache has all rules.
    async fn check_stage(
        &self,
        bypass: &BypassCheck<'_>,
        run: &LifecycleWrite<'_>,
        stage: Stage,
        id: &str,
        known: bool,
    ) -> Result<BTreeSet<String>, Vec<String>> {
        if !known || !self.0.index.listed_kinds().has_decision_kinds() {
            let reason = "this replica has not yet seen all rules; try again in a moment";
            return Err(vec![format!(
                "waiting for PodTransitionRule (unknown): {reason}"
            )]);
        }
        let pod = bypass.carrier;
        // By the stored label. A value from the request does not count.
        let since = run.waits_since(stage, id);
        let waiting: Vec<_> = since
            .map(|since| new_candidate(pod, id, since))
            .into_iter()
            .collect();
        let (mut told, objects) = self.stage_waits(stage, pod, &waiting, bypass.is_requested());
        if told.is_empty() {
            return Ok(BTreeSet::new());
        }
        if bypass.is_requested() {
            match bypass.may_bypass_all(&objects).await {
                Ok(()) => return Ok(objects),
                Err(note) => told.extend(note),
            }
        }
        Err(told)
    }

    fn deny_takes_offline(&self, waits: &[String]) -> Verdict {
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(code, reason, waits.join("; ")).with_audit("held", "takes-offline")
    }
}

/// Keeps an ID waiting, and adds what it waits for to `waits`.
fn hold_operation(
    run: &mut LifecycleWrite<'_>,
    stage: Stage,
    id: &str,
    told: Vec<String>,
    waits: &mut Vec<String>,
) {
    run.hold_stage(stage, id);
    for wait in told {
        if !waits.contains(&wait) {
            waits.push(wait);
        }
    }
}

/// Whether this write carries the label by which the controller asks for the grant of an ID that already waits.
fn is_grant_request(old: &Pod, new: &Pod, id: &str) -> bool {
    let mark = Family::PreChecked.key(id);
    old.label(&Family::PreCheck.key(id)).is_some()
        && old.label(&mark).is_none()
        && new.label(&mark).is_some()
}

/// Whether this write begins an operation and leaves the status unchanged.
fn is_operation_begin(old: &Pod, new: &Pod, id: &str) -> bool {
    let key = Family::Operating.key(id);
    old.label(&key).is_none() && new.label(&key).is_some() && old.status == new.status
}

/// Whether a label asks for a grant.
fn is_grant_mark(key: &str) -> bool {
    let family = Family::parse(key).map(|(family, _)| family);
    matches!(family, Some(Family::PreChecked | Family::PostChecked))
}

/// The warnings for operations that this request leaves or brings without a type.
fn untyped_warnings(request: &Request) -> Vec<String> {
    let raw = request.object.as_deref();
    let prefix = Family::Operating.prefix();
    if !raw.is_some_and(|raw| raw.get().contains(prefix)) {
        return Vec::new();
    }
    let Ok(new) = parse_pod(request, raw) else {
        return Vec::new();
    };
    if !new.is_managed() || new.is_terminating() {
        return Vec::new();
    }
    let old = request.old_object.as_deref();
    let old = old.and_then(|raw| parse_pod(request, Some(raw)).ok());
    let known = old.map_or_else(Vec::new, |old| ids_without_type(&old));
    let name = &new.metadata.name;
    let fresh = ids_without_type(&new)
        .into_iter()
        .filter(|id| !known.contains(id));
    fresh
        .map(|id| format!("Pod {name}: {}", messages::missing_operation_type(&id)))
        .collect()
}

/// Whether the write itself removes the label `service-available` from a Pod that serves.
fn removes_available(old: &Pod, new: &Pod) -> bool {
    old.is_available() && new.label(keys::SERVICE_AVAILABLE).is_none()
}

fn lifecycle_label_patch(request: &Request, run: &LifecycleWrite<'_>) -> Vec<PatchOperation> {
    label_patch(request, &run.patch())
}

fn label_patch(request: &Request, change: &LabelPatch) -> Vec<PatchOperation> {
    let object = request
        .object
        .as_deref()
        .and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    change.to_json_patch(object.as_ref().and_then(|o| o.pointer("/metadata/labels")))
}

/// Annotations that this program writes into the objects of requests.
const OWN_ANNOTATIONS: [&str; 2] = [keys::AWAITS_RESTART, keys::REPLACES];

/// The patch that gives the [`OWN_ANNOTATIONS`] the wanted values. `asked` are the annotations of the object in the
/// request.
fn annotation_patch(
    request: &Request,
    asked: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Vec<PatchOperation> {
    let mut changes = Vec::new();
    for key in OWN_ANNOTATIONS
        .into_iter()
        .filter(|key| asked.get(*key) != wanted.get(*key))
    {
        let path = PointerBuf::from_tokens(["metadata", "annotations", key]);
        changes.push(match wanted.get(key) {
            Some(value) => {
                let value = json!(value);
                PatchOperation::Add(AddOperation { path, value })
            }
            None => PatchOperation::Remove(RemoveOperation { path }),
        });
    }
    let raw = request.object.as_deref().filter(|_| !changes.is_empty());
    let object = raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let annotations = object
        .as_ref()
        .and_then(|o| o.pointer("/metadata/annotations"));
    if !changes.is_empty() && !annotations.is_some_and(Value::is_object) {
        let path = PointerBuf::from_tokens(["metadata", "annotations"]);
        let value = json!({});
        changes.insert(0, PatchOperation::Add(AddOperation { path, value }));
    }
    changes
}

/// Whether the Pod of the request has a `spec` to patch. The API server stores no Pod without a spec.
fn has_spec(request: &Request) -> bool {
    #[derive(serde::Deserialize)]
    struct Outline {
        #[serde(default)]
        spec: Option<serde::de::IgnoredAny>,
    }
    let object = request.object.as_deref();
    let outline = object.and_then(|raw| serde_json::from_str::<Outline>(raw.get()).ok());
    outline.is_some_and(|outline| outline.spec.is_some())
}

fn readiness_gate_patch(pod: &Pod) -> Option<PatchOperation> {
    if pod.has_service_ready_gate() {
        return None;
    }
    let gate = json!({ "conditionType": keys::SERVICE_READY });
    let (path, value) = if pod.spec.readiness_gates.is_empty() {
        ("/spec/readinessGates", json!([gate]))
    } else {
        ("/spec/readinessGates/-", gate)
    };
    Some(PatchOperation::Add(AddOperation {
        path: path.parse().ok()?,
        value,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use kube::client::Body;

    use super::*;

    fn pod(skips: Option<&str>) -> Value {
        let annotations = skips.map(|text| json!({ (keys::SKIP_RULE_CONDITIONS): text }));
        json!({ "metadata": { "name": "web-1", "annotations": annotations } })
    }

    /// An UPDATE, or a CREATE if `old` is null.
    fn review(old: &Value, new: &Value) -> Request {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": if old.is_null() { "CREATE" } else { "UPDATE" },
                "namespace": "shop", "name": "web-1",
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "userInfo": { "username": "alice" }, "oldObject": old, "object": new,
            },
        });
        Request::parse(review.to_string().as_bytes()).unwrap()
    }

    fn deadline_in_future() -> Instant {
        Instant::now() + std::time::Duration::from_secs(5)
    }

    #[tokio::test]
    async fn operation_without_its_type_is_warned_of_once() {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let client = kube::Client::new(service, "default");
        let mutate = PodMutator(Arc::new(AdmissionContext::at_epoch(client)));
        let (operating, type_) = (Family::Operating.key("x1"), Family::OperationType.key("x1"));
        let pod = |mut labels: Value| {
            labels[keys::CONTROL] = json!(keys::CONTROL_VALUE);
            json!({ "metadata": { "name": "web-1", "labels": labels } })
        };
        let (idle, alone) = (pod(json!({})), pod(json!({ &operating: "1" })));
        let complete = pod(json!({ &operating: "1", &type_: "update" }));
        for (old, new, warned) in [
            (&idle, &alone, true),
            (&Value::Null, &alone, true),
            (&complete, &alone, true),
            (&alone, &alone, false),
            (&idle, &complete, false),
            (&alone, &idle, false),
        ] {
            let verdict = mutate.review(&review(old, new), deadline_in_future()).await;
            let said = verdict.warnings().join(" ");
            let names_it = said.contains(&format!("the label {type_} is missing"));
            assert_eq!(names_it, warned, "{old} {new}: {said}");
        }
    }

    fn mutate() -> PodMutator {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let client = kube::Client::new(service, "default");
        PodMutator(Arc::new(AdmissionContext::at_epoch(client)))
    }

    fn labelled(mut labels: Value) -> Value {
        labels[keys::CONTROL] = json!(keys::CONTROL_VALUE);
        json!({ "metadata": { "name": "web-1", "labels": labels } })
    }

    /// NodeRestriction refuses a write of the kubelet if admission changes its labels.
    #[tokio::test]
    async fn kubelet_status_write_is_not_patched() {
        let preparing = Family::Preparing.key("x1");
        let old = labelled(json!({ &preparing: "1", (Family::Operating.key("x1")): "1" }));
        let mut new = old.clone();
        new["status"] = json!({ "conditions": [{ "type": "Ready", "status": "False" }] });
        for (groups, patched) in [(json!(["system:nodes"]), false), (json!([]), true)] {
            let mut request = review(&old, &new);
            request.sub_resource = Some("status".to_owned());
            request.user_info.groups = serde_json::from_value(groups).unwrap();
            let verdict = mutate().review(&request, deadline_in_future()).await;
            assert!(verdict.is_allowed());
            let changes = verdict.patch().map_or(0, |patch| patch.0.len());
            assert_eq!(changes > 0, patched, "{verdict:?}");
        }
    }

    #[test]
    fn status_write_starts_only_operations_it_adds() {
        let pod = |operates: bool, ready: bool| {
            let mut pod = labelled(json!({}));
            if operates {
                pod["metadata"]["labels"][Family::Operating.key("x1")] = json!("1");
            }
            if ready {
                pod["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
            }
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        for (old, new, begins) in [
            (pod(false, true), pod(true, true), true),
            (pod(false, false), pod(true, true), false),
            (pod(true, false), pod(true, true), false),
            (pod(true, true), pod(true, true), false),
        ] {
            assert_eq!(
                is_operation_begin(&old, &new, "x1"),
                begins,
                "{old:?} {new:?}"
            );
        }
    }

    #[tokio::test]
    async fn fallback_denies_unchecked_grant_mark() {
        let mutate = mutate();
        let old = labelled(json!({ (Family::PreCheck.key("x1")): "1" }));
        for (family, allowed) in [
            (Family::PreChecked, false),
            (Family::PostChecked, false),
            (Family::Operating, true),
        ] {
            let mut new = old.clone();
            new["metadata"]["labels"][family.key("x1")] = json!("1");
            let verdict = mutate.fallback(&review(&old, &new), "overload");
            assert_eq!(verdict.is_allowed(), allowed, "{family:?}");
            assert!(
                mutate
                    .fallback(&review(&new, &new), "overload")
                    .is_allowed()
            );
        }
    }

    #[tokio::test]
    async fn unreadable_skip_annotation_is_warned_once() {
        let service = tower::service_fn(async |_: http::Request<Body>| {
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        });
        let client = kube::Client::new(service, "default");
        let mutate = PodMutator(Arc::new(AdmissionContext::at_epoch(client)));
        let (fine, odd) = (Some(r#"{"skipRules":["a"]}"#), Some("all"));
        for (old, new, warned) in [
            (pod(None), pod(odd), true),
            (Value::Null, pod(odd), true),
            (pod(odd), pod(odd), false),
            (pod(odd), pod(fine), false),
            (pod(None), pod(None), false),
        ] {
            let verdict = mutate
                .review(&review(&old, &new), deadline_in_future())
                .await;
            let said = verdict.warnings().join(" ");
            assert_eq!(
                said.contains("skips no rule"),
                warned,
                "{old} {new}: {said}"
            );
        }
    }

    #[test]
    fn update_to_oversized_pod_warns_once() {
        let sized = |bytes: usize| {
            let pod = json!({ "metadata": { "name": "web-1" }, "spec": { "restartPolicy": "x".repeat(bytes) } });
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let (small, large) = (sized(10), sized(pod_size::MAX_POD_BYTES));
        let said = size_warning(None, &large).unwrap();
        for part in [
            "Pod web-1 takes 9",
            "more than 98304",
            "counts as not available",
            "Give it fewer",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(size_warning(Some(&small), &large), Some(said));
        assert_eq!(size_warning(Some(&large), &large), None);
        assert_eq!(size_warning(None, &small), None);
    }

    #[tokio::test]
    async fn creation_of_oversized_pod_warns() {
        let service = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, Infallible>>()
        });
        let context = AdmissionContext::at_epoch(kube::Client::new(service, "default"));
        let mut new = pod(None);
        new["metadata"]["labels"] = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
        new["spec"] = json!({ "containers": [{ "name": "a", "image": "x".repeat(pod_size::MAX_POD_BYTES) }] });
        let request = review(&Value::Null, &new);
        let verdict = PodMutator(Arc::new(context))
            .review(&request, Instant::now())
            .await;
        assert!(verdict.is_allowed());
        assert_eq!(verdict.warnings().len(), 1, "{:?}", verdict.warnings());
    }
}
