//! Writes the namespace enforcement label before a rule is stored.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams};

use super::context::AdmissionContext;
use crate::api::keys;
use crate::cluster::request_path;
use crate::domain::rules::enforcement::{self, NamespaceEnforcement, ObservedNamespace};

/// Maximum number of patches for one rule. A mutating policy in the cluster may remove the label from every patched
/// object.
const MAX_PATCHES: usize = 5;

/// Returns when the namespace has at least this value of the namespace enforcement label, at a version that was written
/// during this call.
///
/// This function also writes a namespace that already has the label. The leader removes the label on condition of the
/// resourceVersion that it has seen, and this write makes that condition fail (ADR 4).
///
/// The cache only says whether the label is likely to be there, and the API server's answer decides. So this function
/// sends one request, or two if the cache is behind.
///
/// # Errors
/// The API server refuses a patch, for example because the namespace does not exist, or it stores every patch without
/// the label.
pub async fn ensure_namespace_label(
    context: &AdmissionContext,
    name: &str,
    needed: NamespaceEnforcement,
) -> kube::Result<()> {
    let name = request_path::checked_namespace(name)?;
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let params = PatchParams::default();
    let mut cached_label = context
        .index
        .read_state()
        .namespace(name)
        .and_then(|n| n.observed_label());
    for _ in 0..MAX_PATCHES {
        let patch = Patch::Merge(enforcement::admission_patch(
            cached_label.as_ref(),
            needed,
            &unique_stamp(),
        ));
        match namespaces.patch_metadata(name, &params, &patch).await {
            Ok(namespace) => {
                let written = namespace.metadata;
                let labels = written.labels.unwrap_or_default();
                if NamespaceEnforcement::from_labels(&labels) >= needed {
                    return Ok(());
                }
                let uid = written.uid.unwrap_or_default();
                let version = written.resource_version.and_then(|v| v.parse().ok());
                cached_label = ObservedNamespace::new(&uid, version.unwrap_or_default(), &labels);
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => cached_label = None,
            Err(error) => return Err(error),
        }
    }
    let message = format!(
        "the API server stores it without the label {}, or others keep writing it",
        keys::NAMESPACE_ENFORCEMENT
    );
    Err(kube::Error::Service(message.into()))
}

/// A unique value. A patch that changes nothing would not change the resourceVersion.
fn unique_stamp() -> String {
    format!("{}-{:016x}", Timestamp::now(), rand::random::<u64>())
}
