//! Protects a Pod in the write by which an operation takes it off traffic. The leader protects a Pod only when all its
//! members serve. But a Pod may get requests before: one of two ports is pending, or the leader has not seen it yet. With
//! the protection, the operation waits until the leader has seen that traffic is off.
//!
//! When no operation keeps the Pod off traffic any more, the protections go in the same write. Members of the Pod may be
//! off, and by the protections the Pod would count as available. The leader adds them again when the members serve.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use json_patch::PatchOperation;
use traffic::{Adapter, Control};

use super::patches::{finalizer_patch, finalizer_removal};
use super::{MAX_EXPECTING_EMPLOYERS, PodMutator};
use crate::admission::review::Request;
use crate::api::keys;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::domain::lifecycle::LifecycleWrite;
use crate::domain::pod::{Pod, PodCondition};
use crate::domain::traffic::adapter_in_use::AdapterInUse;
use crate::domain::traffic::drain_seconds::asked_drain_time;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::{self, marking_employers, sharing_employer};

/// How far the clock of a node may be from that of the server.
const CLOCK_SKEW: Duration = Duration::from_secs(30);

/// The write after all steps that can be made at once, and what it changes about the protection of the Pod.
pub struct Settled<'a> {
    /// The write.
    pub run: LifecycleWrite<'a>,
    /// The employers whose protection is added.
    pub protecting: Vec<EmployerName>,
    /// The employers whose protection is removed.
    pub releasing: Vec<EmployerName>,
}

impl PodMutator {
    /// Makes all steps that can be made at once.
    pub(super) fn settle<'a>(&self, run: &LifecycleWrite<'a>, old: &Pod, new: &Pod) -> Settled<'a> {
        let advanced = |mut run: LifecycleWrite<'a>| {
            run.advance_all();
            run
        };
        let settled = advanced(run.clone());
        let protecting = match settled.begins_off_traffic() {
            true => self.missing_protections(old, new),
            false => Vec::new(),
        };
        let releasing = match settled.returns_to_traffic() {
            true => self.0.traffic.employers.stale_protections(new),
            false => Vec::new(),
        };
        let mut run = run.clone();
        match (protecting.is_empty(), releasing.is_empty()) {
            (true, true) => run = settled,
            (false, _) => run.wait_for_protection(),
            (true, false) => run.wait_for_traffic(),
        }
        Settled {
            run: advanced(run),
            protecting,
            releasing,
        }
    }

    /// The employers that may send requests to the Pod and do not protect it.
    fn missing_protections(&self, old: &Pod, new: &Pod) -> Vec<EmployerName> {
        if new.is_terminating() || new.is_finished() || new.status.addresses.is_empty() {
            return Vec::new(); // the API server refuses the finalizer, or no request reaches the Pod
        }
        let namespace = &old.metadata.namespace;
        let employers = &self.0.traffic.employers;
        let mut serving = employers.selecting(namespace, new);
        serving.retain(|employer| employer.expects_traffic());
        // They may have registered the Pod before their adapter became wrong.
        let expecting = marking_employers(new).into_iter();
        let expecting = expecting.filter_map(|name| employers.get(&name));
        let expecting = expecting.filter(|employer| employer.may_have_members());
        let unprotected = serving.into_iter().chain(expecting).filter(|employer| {
            let has = |pod: &Pod| pod.metadata.finalizers.contains(&employer.finalizer);
            // Whoever removes it in this write has seen that traffic is off.
            !has(old)
                && !has(new)
                && may_get_requests(employer, new, (self.0.now)())
                && sharing_employer(&employer.name, new).is_none()
        });
        let mut names: Vec<EmployerName> = Vec::new();
        for employer in unprotected {
            // Employers of two kinds may have one name, and so one finalizer.
            if names.len() == MAX_EXPECTING_EMPLOYERS {
                break;
            }
            if !names.iter().any(|name| name.name == employer.name.name) {
                names.push(employer.name.clone());
            }
        }
        names
    }
}

/// Whether requests may go to a Pod that is not protected. Where somebody else changes members, a Pod gets none that has
/// not been Ready for the drain time, and the leader would let this time pass for nothing.
fn may_get_requests(employer: &CachedEmployer, pod: &Pod, now: Timestamp) -> bool {
    let settings = match &employer.adapter {
        Ok(Some(named)) => named.adapter.settings(),
        Ok(None) => return false,
        Err(_) => return true, // nobody can say who changes members
    };
    let asked = asked_drain_time(&employer.state.employer.annotations);
    let drain_time = asked.ok().flatten().unwrap_or(settings.drain_time);
    let chosen = employer.adapter.as_ref().ok().and_then(Option::as_ref);
    let in_use = AdapterInUse::of(&employer.state.employer.annotations);
    let moves = chosen.is_some_and(|named| in_use.formers(&named.name).next().is_some());
    settings.control != Control::Observes
        || moves
        || may_have_been_ready(pod, now, drain_time + CLOCK_SKEW)
}

/// Whether the Pod is Ready, or may have been within this time. The condition does not tell whether a Pod that is not
/// Ready has ever been.
fn may_have_been_ready(pod: &Pod, now: Timestamp, within: Duration) -> bool {
    let ready = |condition: &&PodCondition| condition.type_ == "Ready";
    let Some(condition) = pod.status.conditions.iter().find(ready) else {
        return false; // no kubelet has reported it
    };
    let since = condition.last_transition_time.as_deref();
    let since = since.and_then(|text| text.parse::<Timestamp>().ok());
    let is_long_ago = |since: Timestamp| {
        let ago = Duration::try_from(now.duration_since(since));
        ago.is_ok_and(|ago| ago >= within)
    };
    condition.status == "True" || !since.is_some_and(is_long_ago)
}

/// The annotation by which the Pod also expects these protections. By it the leader finds a Pod whose employer is gone.
pub fn expect_protections(protecting: &[EmployerName], annotations: &mut BTreeMap<String, String>) {
    let key = keys::AVAILABLE_CONDITIONS;
    for employer in protecting {
        let text = annotations.get(key).map(String::as_str);
        if let Some(text) = pod_marks::annotation_expecting(employer, text) {
            annotations.insert(key.to_owned(), text);
        }
    }
}

/// The patch that adds and removes the finalizers.
pub fn protection_patch(request: &Request, settled: &Settled<'_>) -> Vec<PatchOperation> {
    let mut patch = finalizer_patch(request, &finalizers_of(&settled.protecting));
    patch.extend(finalizer_removal(
        request,
        &finalizers_of(&settled.releasing),
    ));
    patch
}

/// The finalizers of these employers.
pub fn finalizers_of(names: &[EmployerName]) -> Vec<String> {
    names.iter().map(EmployerName::finalizer).collect()
}
