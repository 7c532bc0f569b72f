//! Decides an UPDATE of a Pod: advances its operations, asks the rules of their stages, and takes a claim when the Pod
//! goes off traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use json_patch::{Patch, PatchOperation};
use tokio::time::Instant;
use tracing::warn;

use super::patches::{annotation_patch, label_patch};
use super::protection::{Settled, expect_protections, finalizers_of, protection_patch};
use super::warnings::size_warning;
use super::{PodMutator, removes_available};
use crate::admission::bypass::{AGAINST_RULE, Approval, BypassCheck};
use crate::admission::pods::{deny_invalid_pod, parse_pod, pod_updates, service_ready};
use crate::admission::review::{Request, Verdict};
use crate::admission::{cache_freshness, denial, exempt, own_requests};
use crate::api::keys::{self, Family};
use crate::domain::grace_delete::is_deletion_in_flight;
use crate::domain::lifecycle::restarts::{self, PendingRestarts};
use crate::domain::lifecycle::{LabelPatch, LifecycleWrite, Stage, manual_label, validate};
use crate::domain::pod::Pod;

/// An UPDATE of a managed Pod under review.
struct PodUpdate<'a> {
    request: &'a Request,
    /// The stored Pod.
    old: &'a Arc<Pod>,
    /// The Pod that the request would store, with the restarts and the manual label that this webhook writes.
    new: &'a Pod,
    deadline: Instant,
}

/// What the rules of the stages say about the operations of an UPDATE.
struct StageOutcome<'a> {
    /// The write, in which each operation has passed its stage or is kept waiting.
    run: LifecycleWrite<'a>,
    /// The IDs for which this UPDATE asks for the grant of PreCheck.
    asking: Vec<String>,
    /// The IDs that wait for PostCheck.
    leaving: Vec<String>,
    /// What the operations wait for.
    waits: Vec<String>,
    /// Names of the rule objects that were bypassed in PreCheck.
    bypassed_before: BTreeSet<String>,
    /// Names of the rule objects that were bypassed in PostCheck.
    bypassed_after: BTreeSet<String>,
}

struct AdmittedUpdate<'a> {
    /// The write after all steps that can be made at once.
    settled: Settled<'a>,
    /// The claims, if the Pod goes off traffic.
    approval: Approval,
    /// Why the Pod may go off traffic without a claim.
    exemption: Option<&'static str>,
}

impl PodUpdate<'_> {
    fn is_status_write(&self) -> bool {
        is_status_write(self.request)
    }

    /// Whether this UPDATE begins or ends an operation.
    fn begins_or_ends(&self, id: &str) -> bool {
        let key = Family::Operating.key(id);
        self.old.label(&key) != self.new.label(&key)
    }

    /// Whether the bypass reason of the Pod applies to an operation. It applies to a write that sets it, and to
    /// operations that begin or end with this write. Otherwise any later write of an authorised user would become a
    /// bypass for operations of other users.
    fn asks_for_bypass<'i>(&self, ids: impl IntoIterator<Item = &'i String>) -> bool {
        let gives_reason = self.old.annotation(keys::BYPASS) != self.new.annotation(keys::BYPASS);
        gives_reason || ids.into_iter().any(|id| self.begins_or_ends(id))
    }

    /// The IDs that ask for the grant of PreCheck with this UPDATE. A write of the status may report that the Pod is
    /// Ready again. It does not advance an operation that waits for PreCheck: the leader asks for the grant in a write
    /// of its own, which shows the state of that moment.
    fn ids_asking_for_grant(&self, run: &LifecycleWrite<'_>) -> Vec<String> {
        let mut ids = run.ids_awaiting_stage(Stage::PreCheck);
        ids.retain(|id| {
            !self.is_status_write()
                || is_grant_request(self.old, self.new, id)
                || is_operation_begin(self.old, self.new, id)
        });
        ids
    }
}

impl PodMutator {
    pub(super) async fn review_update(&self, request: &Request, deadline: Instant) -> Verdict {
        let (old, mut new) = match (
            parse_pod(request, request.old_object.as_deref()),
            parse_pod(request, request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (Arc::new(old), new),
            (Err(verdict), _) | (_, Err(verdict)) => return verdict,
        };
        let key = keys::AWAITS_RESTART;
        let asks_nothing = old.metadata.labels == new.metadata.labels
            && old.annotation(key) == new.annotation(key);
        if is_status_write(request) && asks_nothing && request.user_info.is_node() {
            // NodeRestriction would refuse the kubelet's write if this webhook changed a label. The leader advances the
            // lifecycle instead. Only webhook configurations of an older version still send such writes.
            return Verdict::allow();
        }
        if !new.is_managed() || old.is_terminating() {
            return Verdict::allow(); // the validating webhook judges a Pod that stops being managed
        }
        if !old.is_managed() {
            return self.enter_management(request, &new);
        }
        let asked_annotations = new.metadata.annotations.clone();
        self.record_restarts(request, &old, &mut new);
        let asked_labels = new.metadata.labels.clone();
        let manual_label = manual_label::take_manual_label(&old, &mut new, self.0.now_nanos());
        let errors = validate(Some(&old), &new);
        if !errors.is_empty() {
            return deny_invalid_pod(&new, &errors);
        }
        let update = PodUpdate {
            request,
            old: &old,
            new: &new,
            deadline,
        };
        let mut stages = self.check_stages(&update).await;
        let admitted = match self.claim_if_lost(&update, &mut stages).await {
            Ok(admitted) => admitted,
            Err(denied) => return denied,
        };
        let patch = self.update_patch(
            &update,
            &admitted.settled,
            &asked_labels,
            &asked_annotations,
        );
        let waits = std::mem::take(&mut stages.waits);
        let verdict = self
            .audit_update(&update, stages, admitted)
            .with_patch(Patch(patch));
        let warning = match request.sub_resource {
            Some(_) => None, // a controller writes it, and cannot change the size
            None => size_warning(Some(&old), &new),
        };
        let warnings = waits.into_iter().chain(manual_label).chain(warning);
        warnings.fold(verdict, Verdict::with_warning)
    }

    /// Asks the rules of PostCheck and then of PreCheck about the operations that wait for them.
    async fn check_stages<'a>(&self, update: &PodUpdate<'a>) -> StageOutcome<'a> {
        let run = LifecycleWrite::from_write(Some(update.old), update.new, self.0.now_nanos());
        let asking = update.ids_asking_for_grant(&run);
        let leaving = run.ids_awaiting_stage(Stage::PostCheck);
        let namespace = &update.new.metadata.namespace;
        let knows_rules = (asking.is_empty() && leaving.is_empty())
            || cache_freshness::ensure_rules_current(&self.0, namespace, update.deadline)
                .await
                .is_ok();
        let mut outcome = StageOutcome {
            run,
            asking: Vec::new(),
            leaving: Vec::new(),
            waits: Vec::new(),
            bypassed_before: BTreeSet::new(),
            bypassed_after: BTreeSet::new(),
        };
        outcome.bypassed_after = self
            .check_operations(
                update,
                &mut outcome,
                Stage::PostCheck,
                &leaving,
                knows_rules,
            )
            .await;
        outcome.bypassed_before = self
            .check_operations(update, &mut outcome, Stage::PreCheck, &asking, knows_rules)
            .await;
        StageOutcome {
            asking,
            leaving,
            ..outcome
        }
    }

    /// Passes these operations, or keeps them waiting. The result has the names of the rule objects that were bypassed.
    async fn check_operations(
        &self,
        update: &PodUpdate<'_>,
        outcome: &mut StageOutcome<'_>,
        stage: Stage,
        ids: &[String],
        knows_rules: bool,
    ) -> BTreeSet<String> {
        let mut bypassed = BTreeSet::new();
        for id in ids {
            let bypass = self.bypass_check(update, update.asks_for_bypass([id]));
            let run = &mut outcome.run;
            match self.check_stage(&bypass, run, stage, id, knows_rules).await {
                Ok(objects) => {
                    bypassed.extend(objects);
                    run.pass_stage(stage, id);
                }
                Err(waits) => {
                    run.hold_stage(stage, id);
                    for wait in waits {
                        if !outcome.waits.contains(&wait) {
                            outcome.waits.push(wait);
                        }
                    }
                }
            }
        }
        bypassed
    }

    /// Takes a claim if the Pod goes off traffic. If the claim is denied, the operations that ask for a grant go on
    /// waiting. If that does not keep the Pod on traffic, the error is the verdict that denies the UPDATE.
    async fn claim_if_lost<'a>(
        &self,
        update: &PodUpdate<'a>,
        stages: &mut StageOutcome<'a>,
    ) -> Result<AdmittedUpdate<'a>, Verdict> {
        let (old, new) = (update.old, update.new);
        let settled = self.settle(&stages.run, old, new);
        let begins = (stages.asking.iter()).any(|id| settled.run.phase_of(id).holds_offline());
        // A Pod that is down for a moment would become available by itself, and an operation prevents this. So it needs
        // a claim.
        let prolongs = begins && self.0.index.read_state().is_briefly_down(old);
        let mut admitted = AdmittedUpdate {
            settled,
            approval: Approval::default(),
            exemption: None,
        };
        if !admitted.settled.run.takes_offline() && !prolongs {
            return Ok(admitted);
        }
        if is_deletion_in_flight(new)
            && exempt::is_deleted_with_collaset(&self.0, old, update.deadline).await
        {
            admitted.exemption = Some(exempt::COLLASET_DELETED);
            return Ok(admitted);
        }
        let ids = stages.asking.iter().chain(&stages.leaving);
        let bypass = self.bypass_check(update, update.asks_for_bypass(ids));
        let is_granted = (stages.asking.iter()).any(|id| is_grant_request(old, new, id));
        match self.claim_operation(&bypass, old, is_granted).await {
            Ok(approval) => admitted.approval = approval,
            // The begin of the operation is stored. The Pod waits and gets its grant later.
            Err(denied) if !stages.asking.is_empty() && !removes_available(old, new) => {
                for id in &stages.asking {
                    stages.run.hold_stage(Stage::PreCheck, id);
                }
                stages.bypassed_before.clear();
                stages.waits.push(denied);
                admitted.settled = self.settle(&stages.run, old, new);
                if admitted.settled.run.takes_offline() {
                    return Err(deny_takes_offline(&stages.waits));
                }
            }
            Err(denied) => {
                stages.waits.push(denied);
                return Err(deny_takes_offline(&stages.waits));
            }
        }
        Ok(admitted)
    }

    /// The verdict on an UPDATE that is admitted, without patch and warnings. Reports the rules that were bypassed.
    fn audit_update(
        &self,
        update: &PodUpdate<'_>,
        stages: StageOutcome<'_>,
        admitted: AdmittedUpdate<'_>,
    ) -> Verdict {
        let ids = stages.asking.iter().chain(&stages.leaving);
        let bypass = self.bypass_check(update, update.asks_for_bypass(ids));
        let mut approval = admitted.approval;
        let mut bypassed_checks = stages.bypassed_after;
        bypassed_checks.extend(stages.bypassed_before);
        bypass.announce_bypass(update.old, &bypassed_checks, AGAINST_RULE);
        approval.bypassed_checks = bypassed_checks;
        let verdict = approval.audit_bypass(Verdict::allow(), &bypass);
        match admitted.exemption {
            Some(reason) => verdict.with_audit("free", reason),
            None => verdict,
        }
    }

    /// The patch that gives the Pod its labels, annotations, finalizers and readiness condition after this UPDATE.
    fn update_patch(
        &self,
        update: &PodUpdate<'_>,
        settled: &Settled<'_>,
        asked_labels: &BTreeMap<String, String>,
        asked_annotations: &BTreeMap<String, String>,
    ) -> Vec<PatchOperation> {
        let request = update.request;
        let mut stored = update.new.clone();
        settled.run.patch().apply(&mut stored.metadata.labels);
        expect_protections(&settled.protecting, &mut stored.metadata.annotations);
        let released = finalizers_of(&settled.releasing);
        let finalizers = &mut stored.metadata.finalizers;
        finalizers.retain(|finalizer| !released.contains(finalizer));
        let follows_readiness = update.is_status_write() && settled.run.has_passed_stage();
        let condition = follows_readiness
            .then(|| service_ready::service_ready_patch(request, &mut stored, (self.0.now)()));
        let labels = LabelPatch::between(asked_labels, &stored.metadata.labels);
        let mut patch = label_patch(request, &labels);
        let annotations = &stored.metadata.annotations;
        patch.extend(annotation_patch(request, asked_annotations, annotations));
        patch.extend(protection_patch(request, settled));
        patch.extend(condition.flatten());
        patch
    }

    fn bypass_check<'a>(&'a self, update: &PodUpdate<'a>, is_asked_for: bool) -> BypassCheck<'a> {
        BypassCheck {
            context: &self.0,
            request: update.request,
            carrier: update.new,
            dry_run: update.request.dry_run,
            is_asked_for: is_asked_for && !own_requests::is_own_write(update.request),
            deadline: update.deadline,
        }
    }

    /// Sets in `new` the restarts for which the Pod has to wait. A value from the request is ignored.
    fn record_restarts(&self, request: &Request, old: &Pod, new: &mut Pod) {
        if let Err(problem) = PendingRestarts::from_pod(old) {
            // This write drops the annotation, so the warning is logged once.
            warn!(namespace = %old.metadata.namespace, pod = %old.metadata.name, problem, "the annotation {} can't be read; it is removed and treated as absent", keys::AWAITS_RESTART);
        }
        let with_status = match is_status_write(request) {
            true => &*new,
            false => old,
        };
        let is_lost = old.spec != new.spec && pod_updates::is_lost(&self.0, old);
        let value =
            restarts::restarts_after_write(old, new, with_status, is_lost, self.0.restart_moment())
                .annotation_value();
        let annotations = &mut new.metadata.annotations;
        match value {
            Some(value) => annotations.insert(keys::AWAITS_RESTART.to_owned(), value),
            None => annotations.remove(keys::AWAITS_RESTART),
        };
    }
}

fn is_status_write(request: &Request) -> bool {
    request.sub_resource.as_deref() == Some("status")
}

fn deny_takes_offline(waits: &[String]) -> Verdict {
    let (code, reason) = denial::TOO_MANY_REQUESTS;
    Verdict::deny(code, reason, waits.join("; ")).with_audit("held", "takes-offline")
}

/// Whether this write carries the label by which the controller asks for the grant of an ID that already waits.
fn is_grant_request(old: &Pod, new: &Pod, id: &str) -> bool {
    let granted = Family::PreChecked.key(id);
    old.label(&Family::PreCheck.key(id)).is_some()
        && old.label(&granted).is_none()
        && new.label(&granted).is_some()
}

/// Whether this write begins an operation and leaves the status unchanged.
pub fn is_operation_begin(old: &Pod, new: &Pod, id: &str) -> bool {
    let key = Family::Operating.key(id);
    old.label(&key).is_none() && new.label(&key).is_some() && old.status == new.status
}
