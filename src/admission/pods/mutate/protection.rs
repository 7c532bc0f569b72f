//! Protects a Pod in the write by which an operation takes it off traffic. The leader protects a Pod only when all its
//! members serve. But a Pod may get requests before: one of two ports is pending, or the leader has not seen it yet. With
//! the protection, the operation waits until the leader has seen that traffic is off.

use std::collections::BTreeMap;

use json_patch::PatchOperation;
use traffic::{Adapter, Control};

use super::patches::finalizer_patch;
use super::{MAX_EXPECTING_EMPLOYERS, PodMutator};
use crate::admission::review::Request;
use crate::api::keys;
use crate::cluster::traffic::employers::CachedEmployer;
use crate::domain::lifecycle::LifecycleWrite;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks;

/// The write after all steps that can be made at once, and the employers that must protect the Pod in this write.
pub struct Settled<'a> {
    /// The write.
    pub run: LifecycleWrite<'a>,
    /// The employers whose protection is added.
    pub protecting: Vec<EmployerName>,
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
        if protecting.is_empty() {
            return Settled {
                run: settled,
                protecting,
            };
        }
        let mut run = run.clone();
        run.wait_for_protection();
        Settled {
            run: advanced(run),
            protecting,
        }
    }

    /// The employers that may send requests to the Pod and do not protect it.
    fn missing_protections(&self, old: &Pod, new: &Pod) -> Vec<EmployerName> {
        if new.is_terminating() || new.is_finished() || new.status.addresses.is_empty() {
            return Vec::new(); // the API server refuses the finalizer, or no request reaches the Pod
        }
        let namespace = &old.metadata.namespace;
        let selecting = self.0.traffic.employers.selecting(namespace, new);
        let employers = selecting.iter().filter(|e| e.expects_traffic());
        let unprotected = employers.filter(|employer| {
            let has = |pod: &Pod| pod.metadata.finalizers.contains(&employer.finalizer);
            // Whoever removes it in this write has seen that traffic is off.
            !has(old)
                && !has(new)
                && may_get_requests(employer, new)
                && pod_marks::sharing_employer(&employer.name, new).is_none()
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

/// Whether requests may go to a Pod that is not protected. Where somebody else changes members, a Pod that is not Ready
/// gets none, and the leader would let a whole drain time pass for nothing.
fn may_get_requests(employer: &CachedEmployer, pod: &Pod) -> bool {
    let adapter = employer.adapter.as_ref().ok().and_then(Option::as_ref);
    adapter.is_some_and(|named| {
        named.adapter.settings().control != Control::Observes || pod.is_ready()
    })
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

/// The patch that adds the finalizers.
pub fn protection_patch(request: &Request, protecting: &[EmployerName]) -> Vec<PatchOperation> {
    let finalizers = protecting.iter().map(EmployerName::finalizer);
    finalizer_patch(request, &finalizers.collect::<Vec<_>>())
}
