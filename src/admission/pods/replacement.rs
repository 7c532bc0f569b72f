//! Warns a user who has a Pod replaced that the PVCs of the Pod are deleted with it (contract 6.4), whatever the
//! retention policy of its CollaSet says.

use super::parse_pod;
use crate::admission::review::Request;
use crate::api::keys;
use crate::cluster::objects::object_cache::ObjectCache;
use crate::domain::collaset::observed::Pvc;

/// The warning for a request that has a Pod replaced whose CollaSet owns PVCs that the Pod mounts.
pub fn replacement_warning(pvcs: &ObjectCache<Pvc>, request: &Request) -> Option<String> {
    let raw = request.object.as_deref();
    if request.sub_resource.is_some() || !raw?.get().contains(keys::TO_REPLACE) {
        return None;
    }
    let new = parse_pod(request, raw).ok()?;
    let old = parse_pod(request, request.old_object.as_deref()).ok()?;
    if old.label(keys::TO_REPLACE).is_some() || new.label(keys::TO_REPLACE).is_none() {
        return None;
    }
    let owner = new.controller().filter(|owner| owner.is_collaset())?;
    let is_lost = |name: &&String| {
        let pvc = pvcs.get(&request.namespace, name);
        pvc.is_some_and(|pvc| pvc.controller.as_deref() == Some(&*owner.uid))
    };
    let lost = new.spec.pvcs.iter().filter(is_lost);
    let lost: Vec<&str> = lost.map(String::as_str).collect();
    (!lost.is_empty()).then(|| {
        format!(
            "Pod {}: the Pod that replaces it gets new, empty PVCs; {} will be deleted with this Pod, even with whenScaled: Retain. \
             Copy the data before, or remove the label {} now",
            new.metadata.name,
            lost.join(", "),
            keys::TO_REPLACE
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::objects::object_cache::ObjectKey;

    fn request(old: &Value, new: &Value) -> Request {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web-1",
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "userInfo": { "username": "alice" }, "oldObject": old, "object": new,
            },
        });
        Request::parse(review.to_string().as_bytes()).unwrap()
    }

    fn pod(labels: Value) -> Value {
        let owner = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "set", "controller": true,
        });
        let volumes = ["data", "shared"]
            .map(|pvc| json!({ "name": pvc, "persistentVolumeClaim": { "claimName": pvc } }));
        json!({
            "metadata": { "name": "web-1", "labels": labels, "ownerReferences": [owner] },
            "spec": { "volumes": volumes, "containers": [] },
        })
    }

    #[test]
    fn replacement_of_pod_warns_of_mounted_pvcs() {
        let pvcs = ObjectCache::default();
        for (name, owner) in [("data", Some("set")), ("shared", None)] {
            let key = ObjectKey {
                namespace: "shop".into(),
                name: name.into(),
                uid: name.into(),
                version: 1,
                controller: owner.unwrap_or_default().into(),
            };
            let pvc = Pvc {
                name: name.into(),
                controller: owner.map(str::to_owned),
                ..Pvc::default()
            };
            pvcs.apply(key, Some(pvc));
        }
        let (idle, asked) = (pod(json!({})), pod(json!({ keys::TO_REPLACE: "true" })));
        let warning = replacement_warning(&pvcs, &request(&idle, &asked)).unwrap();
        assert!(
            warning.contains("empty PVCs; data will be deleted"),
            "{warning}"
        );
        assert_eq!(replacement_warning(&pvcs, &request(&asked, &asked)), None);
        assert_eq!(replacement_warning(&pvcs, &request(&asked, &idle)), None);
        assert_eq!(
            replacement_warning(&ObjectCache::default(), &request(&idle, &asked)),
            None
        );
    }
}
