//! Advances the lifecycle of a Pod within the request that changes it, and takes a claim when an operation begins.

mod claim;
mod patches;
mod protection;
mod stage_check;
mod update;
mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use json_patch::{Patch, PatchOperation};
use tokio::time::Instant;

use super::{parse_pod, replacement};
use crate::admission::context::AdmissionContext;
use crate::admission::denial;
use crate::admission::review::{Handler, Request, RequestOperation, Verdict};
use crate::api::keys::{self, Family};
use crate::domain::lifecycle::{LifecycleWrite, validate};
use crate::domain::pod::Pod;
use crate::domain::traffic::pod_marks;
use patches::{annotation_patch, finalizer_removal, has_spec, label_patch, readiness_gate_patch};
use protection::finalizers_of;
use warnings::{size_warning, untyped_warnings};

/// How many employers a Pod expects at most by writes of this webhook. A tenant can create thousands that select one Pod. The leader adds the
/// marks of the others later.
const MAX_EXPECTING_EMPLOYERS: usize = 16;

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
                &self.0.objects.pvcs,
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
        let deny = |change: &str| {
            let (code, reason) = denial::TOO_MANY_REQUESTS;
            let name = &new.metadata.name;
            let text = format!("Pod {name}: {change} is held: {why}; try again in a moment");
            Verdict::deny(code, reason, text)
        };
        let key = keys::AWAITS_RESTART;
        if old.annotation(key) != new.annotation(key) {
            return deny(&format!("a change of the annotation {key}"));
        }
        // The label asks for a grant. If it were stored without a decision, it would count as granted.
        let had = |key: &str| old.is_managed() && old.label(key).is_some();
        let mut brought = new.metadata.labels.keys().filter(|key| is_grant_label(key));
        if new.is_managed() && brought.any(|key| !had(key)) {
            return deny("the grant of its operation");
        }
        if new.is_managed() && !old.is_managed() && !validate(None, &new).is_empty() {
            return deny("a change that makes the Pod managed while it has lifecycle labels");
        }
        if removes_available(&old, &new) {
            return deny("taking it off traffic");
        }
        Verdict::allow().with_audit("skipped", why)
    }
}

impl PodMutator {
    fn review_create(&self, request: &Request) -> Verdict {
        let new = match parse_pod(request, request.object.as_deref()) {
            Ok(new) => new,
            Err(verdict) => return verdict,
        };
        if !new.is_managed() {
            return Verdict::allow();
        }
        let expected = self.expected_traffic(request, &new);
        let mut patch = self.new_lifecycle_patch(request, &new, &expected);
        patch.extend(readiness_gate_patch(&new).filter(|_| has_spec(request)));
        let verdict = Verdict::allow().with_patch(Patch(patch));
        let warning = size_warning(None, &new);
        warning.into_iter().fold(verdict, Verdict::with_warning)
    }

    /// Decides a write by which a Pod becomes managed. Anybody may have written its lifecycle labels before, so they
    /// are replaced. The leader advances the lifecycle afterwards, and protects the Pod when it has seen it serve.
    fn enter_management(&self, request: &Request, new: &Pod) -> Verdict {
        let mut patch = self.new_lifecycle_patch(request, new, &BTreeMap::new());
        let stale = self.0.traffic.employers.stale_protections(new);
        patch.extend(finalizer_removal(request, &finalizers_of(&stale)));
        let verdict = Verdict::allow().with_patch(Patch(patch));
        let warning = size_warning(None, new);
        warning.into_iter().fold(verdict, Verdict::with_warning)
    }

    /// The patch for a Pod that has no lifecycle yet. Lifecycle labels and annotations that it carries were copied from
    /// another Pod or forged.
    fn new_lifecycle_patch(
        &self,
        request: &Request,
        new: &Pod,
        annotations: &BTreeMap<String, String>,
    ) -> Vec<PatchOperation> {
        let mut run = LifecycleWrite::from_write(None, new, self.0.now_nanos());
        run.advance_all();
        let mut patch = label_patch(request, &run.patch());
        patch.extend(annotation_patch(
            request,
            &new.metadata.annotations,
            annotations,
        ));
        patch
    }

    /// The annotation by which a new Pod is not available before the employers that select it send traffic to it. Without
    /// it, the Pod could count as available before the leader sees it.
    fn expected_traffic(&self, request: &Request, new: &Pod) -> BTreeMap<String, String> {
        let key = keys::AVAILABLE_CONDITIONS;
        let namespace = request.namespace.as_str();
        let mut text = new.annotation(key).map(str::to_owned);
        let before = text.clone();
        let selecting = self.0.traffic.employers.selecting(namespace, new);
        let expecting = selecting
            .iter()
            .filter(|employer| employer.expects_traffic());
        for employer in expecting.take(MAX_EXPECTING_EMPLOYERS) {
            text = pod_marks::annotation_expecting(&employer.name, text.as_deref()).or(text);
        }
        let changed = text.filter(|text| before.as_ref() != Some(text));
        changed
            .map(|text| (key.to_owned(), text))
            .into_iter()
            .collect()
    }
}

/// Whether a label asks for a grant.
fn is_grant_label(key: &str) -> bool {
    let family = Family::parse(key).map(|(family, _)| family);
    matches!(family, Some(Family::PreChecked | Family::PostChecked))
}

/// Whether the write itself removes the label `service-available` from a Pod that serves.
fn removes_available(old: &Pod, new: &Pod) -> bool {
    old.is_available() && new.label(keys::SERVICE_AVAILABLE).is_none()
}

#[cfg(test)]
mod tests;
