#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::hash::{TemplateHashes, hash_template};
use super::{
    delete_or_release, have_templates_changed, leftover_pvcs, missing_pvcs, plan_instance_pvcs,
};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::plan::PvcChange;
use crate::domain::pod::Pod;

fn set_with_policy(policy: Value) -> CollaSet {
    serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "CollaSet",
        "metadata": { "name": "web", "uid": "u1" },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": policy },
        },
    }))
    .unwrap()
}

fn template(name: &str, size: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "tier": "db" }, "annotations": { "note": "x" } },
        "spec": { "resources": { "requests": { "storage": size } }, "newer": [1] },
    })
}

fn pvc(name: &str, id: i64, template: &Value) -> Pvc {
    let labels = [
        ("app", "web".to_owned()),
        (keys::CONTROL, "true".to_owned()),
        (keys::INSTANCE_ID, id.to_string()),
        (
            keys::PVC_TEMPLATE_NAME,
            template["metadata"]["name"].as_str().unwrap().to_owned(),
        ),
        (keys::PVC_TEMPLATE_HASH, hash_template(template)),
    ];
    Pvc {
        name: name.to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
        controller: Some("u1".to_owned()),
        ..Pvc::default()
    }
}

fn edited(pvc: Pvc, edit: impl FnOnce(&mut Pvc)) -> Pvc {
    let mut pvc = pvc;
    edit(&mut pvc);
    pvc
}

fn hashes_of(templates: &[&Value]) -> TemplateHashes {
    TemplateHashes::from_templates(templates.iter().copied())
}

fn to_arcs(pvcs: Vec<Pvc>) -> Vec<Arc<Pvc>> {
    pvcs.into_iter().map(Arc::new).collect()
}

#[test]
fn missing_pvc_is_created_from_template() {
    let data = template("data", "1Gi");
    let wanted = plan_instance_pvcs(
        &set_with_policy(json!({})),
        std::slice::from_ref(&data),
        7,
        &[],
        &hashes_of(&[&data]),
    );
    assert!(!wanted.ready);
    assert_eq!(
        wanted.create,
        [PvcChange::Create {
            id: 7,
            template: "data".into(),
            body: json!({
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "generateName": "web-data-",
                    "labels": {
                        "tier": "db",
                        "app": "web",
                        "kusionstack.io/control": "true",
                        "collaset.kusionstack.io/instance-id": "7",
                        "collaset.kusionstack.io/pvc-template-name": "data",
                        "collaset.kusionstack.io/pvc-template-hash": hash_template(&data),
                    },
                    "annotations": { "note": "x" },
                    "ownerReferences": [{
                        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "u1",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": { "resources": { "requests": { "storage": "1Gi" } }, "newer": [1] },
            }),
        }]
    );
}

#[test]
fn deleted_pvcs_are_recreated_under_their_names() {
    let set = |name: &str| {
        let mut set = set_with_policy(json!({}));
        set.metadata.name = Some(name.to_owned());
        set
    };
    let names = |set: &CollaSet, templates: &[Value], pvc_names: &[&str], given: &str| {
        let pod: Pod = serde_json::from_value(
            json!({ "spec": { "volumes": pvc_names.iter().map(|pvc_name| {
            json!({ "name": pvc_name, "persistentVolumeClaim": { "claimName": pvc_name } })
        }).collect::<Vec<_>>() } }),
        )
        .unwrap();
        let revision = json!({ "spec": {
            "volumeClaimTemplates": templates,
            "template": { "spec": { "volumes": [{ "name": "g", "persistentVolumeClaim": { "claimName": given } }] } },
        } });
        let hashes = hashes_of(&templates.iter().collect::<Vec<_>>());
        let exists = |name: &str| name.ends_with("there");
        let missing = missing_pvcs(set, &revision, 7, &pod, exists, &hashes);
        let names = missing.into_iter().map(|change| match change {
            PvcChange::Create {
                id: 7,
                template,
                body,
            } => (
                template,
                body["metadata"]["name"].as_str().unwrap().to_owned(),
            ),
            other => panic!("{other:?}"),
        });
        names.collect::<Vec<_>>()
    };
    let (data, logs) = (template("data", "1Gi"), template("data-logs", "1Gi"));
    let both = [data.clone(), logs.clone()];
    let web = set("web");
    let missing = |template: &str, name: &str| (template.to_owned(), name.to_owned());
    assert_eq!(
        names(
            &web,
            &both,
            &["web-data-a", "web-data-logs-b", "web-other-c", "db-data-a"],
            ""
        ),
        [
            missing("data", "web-data-a"),
            missing("data-logs", "web-data-logs-b")
        ]
    );
    assert_eq!(names(&web, &both, &["web-data-there"], ""), []);
    assert_eq!(
        names(&web, &both, &["web-data-given"], "web-data-given"),
        []
    );
    let long = set(&"w".repeat(60));
    let cut = "w".repeat(58) + "abcde";
    assert_eq!(names(&long, &both, &[&cut], ""), [], "it may be of either");
}

#[test]
fn pvc_serves_by_template_owner_and_id() {
    let (data, bigger) = (template("data", "1Gi"), template("data", "2Gi"));
    let hashes = hashes_of(&[&data, &bigger]);
    let serving = |pvcs: Vec<Pvc>| {
        let wanted = plan_instance_pvcs(
            &set_with_policy(json!({})),
            std::slice::from_ref(&data),
            7,
            &to_arcs(pvcs),
            &hashes,
        );
        assert_eq!(wanted.ready, wanted.volumes.contains_key("data"));
        wanted.volumes.get("data").cloned()
    };
    let good = || pvc("web-data-b", 7, &data);
    let foreign = |name: &str| {
        edited(pvc(name, 7, &data), |c| {
            _ = c
                .labels
                .insert(keys::PVC_TEMPLATE_HASH.into(), "foreign".into())
        })
    };
    assert_eq!(serving(vec![good()]).as_deref(), Some("web-data-b"));
    assert_eq!(
        serving(vec![good(), pvc("a", 7, &data)]).as_deref(),
        Some("a"),
        "the first by name"
    );
    let made_at = |pvc: Pvc, second| {
        edited(pvc, |c| {
            c.creation_timestamp = jiff::Timestamp::from_second(second).ok();
        })
    };
    assert_eq!(
        serving(vec![made_at(good(), 1), made_at(pvc("a", 7, &data), 2)]).as_deref(),
        Some("web-data-b"),
        "the oldest"
    );
    assert_eq!(serving(vec![foreign("a")]).as_deref(), Some("a"));
    assert_eq!(
        serving(vec![foreign("a"), good()]).as_deref(),
        Some("web-data-b"),
        "the wanted hash goes first"
    );
    assert_eq!(
        serving(vec![pvc("a", 8, &data), pvc("c", 7, &bigger)]),
        None
    );
    assert_eq!(
        serving(vec![edited(good(), |c| c.terminating = true)]),
        None
    );
    assert_eq!(
        serving(vec![edited(good(), |c| c.controller = Some("u2".into()))]),
        None
    );
    assert_eq!(
        serving(vec![edited(good(), |c| c.controller = None)]).as_deref(),
        Some("web-data-b"),
        "left by Retain"
    );
    let released = |name: &str| edited(pvc(name, 7, &data), |c| c.controller = None);
    assert_eq!(
        serving(vec![released("web-data-a"), foreign("web-data-c")]).as_deref(),
        Some("web-data-c"),
        "an own one goes first"
    );
    for other in ["db-data-a", "web-data-logs-a", "data", "web-data-"] {
        assert_eq!(
            serving(vec![released(other)]),
            None,
            "{other} is of another set"
        );
    }
    assert_eq!(
        serving(vec![edited(good(), |c| {
            c.controller = None;
            c.labels.insert(keys::ORPHANED.into(), "true".into());
        })]),
        None
    );
}

#[test]
fn changed_pvc_template_recreates_pod_but_missing_pvc_does_not() {
    let (data, bigger) = (template("data", "1Gi"), template("data", "2Gi"));
    let hashes = hashes_of(&[&data, &bigger]);
    let is_changed = |pvcs: Vec<Pvc>| {
        have_templates_changed(
            &set_with_policy(json!({})),
            std::slice::from_ref(&bigger),
            7,
            &to_arcs(pvcs),
            &hashes,
        )
    };
    assert!(is_changed(vec![pvc("a", 7, &data)]));
    assert!(!is_changed(vec![]));
    assert!(!is_changed(vec![pvc("a", 7, &bigger)]));
    assert!(!is_changed(vec![pvc("a", 8, &data)]));
    assert!(!is_changed(vec![edited(pvc("a", 7, &data), |c| c
        .terminating =
        true)]));
    assert!(
        !is_changed(vec![pvc("a", 7, &data), pvc("b", 7, &bigger)]),
        "the old one is retained"
    );
    let terminating = edited(pvc("b", 7, &bigger), |c| c.terminating = true);
    assert!(!is_changed(vec![pvc("a", 7, &data), terminating]));
}

fn kept_pvc(name: &str, id: i64, template: &Value) -> Arc<Pvc> {
    Arc::new(edited(pvc(name, id, template), |pvc| {
        let mark = (keys::KEPT_FOR.to_owned(), pvc.controller.take().unwrap());
        pvc.labels.extend([mark]);
    }))
}

fn pvc_names(pvcs: &[Arc<Pvc>]) -> Vec<&str> {
    pvcs.iter().map(|pvc| &*pvc.name).collect()
}

#[test]
fn unneeded_pvc_is_deleted_unless_retained() {
    let (data, bigger, logs) = (
        template("data", "1Gi"),
        template("data", "2Gi"),
        template("logs", "1Gi"),
    );
    let hashes = hashes_of(&[&data, &bigger, &logs]);
    let pvcs = to_arcs(vec![
        pvc("z-gone", 9, &data),
        pvc("old", 1, &data),
        pvc("new", 1, &bigger),
        pvc("removed", 1, &logs),
        pvc("still-used", 2, &data),
        edited(pvc("going", 9, &data), |c| c.terminating = true),
        edited(pvc("foreign", 2, &data), |c| {
            _ = c.labels.insert(keys::PVC_TEMPLATE_HASH.into(), "?".into())
        }),
        edited(pvc("strange", 9, &data), |c| {
            c.controller = Some("u2".into())
        }),
        edited(pvc("unlabelled", 9, &data), |c| c.labels.clear()),
        Pvc::clone(&kept_pvc("kept-for-the-way-back", 1, &data)),
    ]);
    let needed: BTreeMap<_, _> = [(1, vec![&bigger]), (2, vec![&data, &bigger])].into();
    let all = |policy: Value| leftover_pvcs(&set_with_policy(policy), &pvcs, &needed, &hashes);
    assert_eq!(pvc_names(&all(json!({}))), ["old", "removed", "z-gone"]);
    assert_eq!(pvc_names(&all(json!({ "whenScaled": "Delete" }))).len(), 3);
    assert_eq!(all(json!({ "whenScaled": "Retain" })), []);
    // A kept PVC is left over with its instance, and is released.
    let last = kept_pvc("kept", 9, &data);
    let leftover = leftover_pvcs(
        &set_with_policy(json!({})),
        &[Arc::clone(&last)],
        &needed,
        &hashes,
    );
    assert_eq!(pvc_names(&leftover), ["kept"]);
    assert_eq!(
        delete_or_release(&set_with_policy(json!({})), &last),
        PvcChange::Retain(Arc::clone(&last))
    );
}

#[test]
fn retained_pvc_serves_only_its_instance() {
    let data = template("data", "1Gi");
    let released = |id| edited(pvc("web-data-a", id, &data), |c| c.controller = None);
    let serving = |set: &CollaSet, pvcs: Vec<Pvc>| {
        let (pvcs, hashes) = (to_arcs(pvcs), hashes_of(&[&data]));
        let needed = [(1, vec![&data])].into();
        let leftover = leftover_pvcs(set, &pvcs, &needed, &hashes);
        assert_eq!(leftover, [], "whoever left it may need it");
        let wanted = plan_instance_pvcs(set, std::slice::from_ref(&data), 1, &pvcs, &hashes);
        wanted.volumes.get("data").cloned()
    };
    let serves = |set: &CollaSet, pvc| serving(set, vec![pvc]).is_some();
    let web = set_with_policy(json!({}));
    assert!(serves(&web, released(1)));
    assert!(!serves(&web, released(2)));
    assert!(!serves(
        &web,
        edited(released(1), |c| _ =
            c.labels.insert(keys::ORPHANED.into(), "true".into()))
    ));
    assert!(!serves(
        &web,
        edited(released(1), |c| _ =
            c.labels.insert("app".into(), "db".into()))
    ));
    let older = edited(pvc("web-data-b", 1, &data), |c| c.controller = None);
    let at = |pvc: Pvc, second| {
        edited(pvc, |c| {
            c.creation_timestamp = jiff::Timestamp::from_second(second).ok();
        })
    };
    let oldest = serving(&web, vec![at(released(1), 2), at(older, 1)]);
    assert_eq!(oldest.as_deref(), Some("web-data-b"));
    for (operator, adopts) in [("Exists", true), ("DoesNotExist", false)] {
        let mut set = web.clone();
        let key = if adopts { "app" } else { "other" };
        let expressions = json!([{ "key": key, "operator": operator }]);
        set.spec.selector =
            serde_json::from_value(json!({ "matchExpressions": expressions })).unwrap();
        assert_eq!(serves(&set, released(1)), adopts, "{operator}");
    }
}

proptest! {
    /// Whatever PVCs exist, one that serves an instance is never deleted, and the order in which they are observed does
    /// not matter.
    #[test]
    fn serving_pvc_is_not_deleted(picks in proptest::collection::vec((0..4_i64, 0..3_usize, 0..4), 0..12), rotate in 0..12_usize) {
        let sizes = ["1Gi", "2Gi"].map(|size| template("data", size));
        let hashes = hashes_of(&[&sizes[0], &sizes[1]]);
        let pvcs = picks.iter().enumerate().map(|(i, (id, size, state))| {
            edited(pvc(&format!("c{i:02}"), *id, sizes.get(*size).unwrap_or(&sizes[0])), |c| {
                if *size == 2 {
                    c.labels.insert(keys::PVC_TEMPLATE_HASH.into(), "foreign".into());
                }
                c.terminating = *state == 1;
                if *state == 2 {
                    c.controller = None;
                }
            })
        });
        let pvcs = to_arcs(pvcs.collect());
        let mut rotated = pvcs.clone();
        rotated.rotate_left(rotate.min(pvcs.len()));
        let needed: BTreeMap<_, _> = [(0, vec![&sizes[0]]), (1, vec![&sizes[1]])].into();
        let web = set_with_policy(json!({}));
        let leftover = leftover_pvcs(&web, &pvcs, &needed, &hashes);
        prop_assert_eq!(&leftover, &leftover_pvcs(&web, &rotated, &needed, &hashes));
        for (id, templates) in &needed {
            let templates: Vec<_> = templates.iter().map(|t| (*t).clone()).collect();
            let wanted = plan_instance_pvcs(&web, &templates, *id, &pvcs, &hashes);
            prop_assert_eq!(&wanted, &plan_instance_pvcs(&web, &templates, *id, &rotated, &hashes));
            for name in wanted.volumes.values() {
                prop_assert!(!leftover.iter().any(|c| c.name == *name));
            }
            if wanted.ready {
                prop_assert!(!have_templates_changed(&web, &templates, *id, &pvcs, &hashes));
            }
        }
    }
}

#[test]
fn retained_pvc_is_adopted_by_selector_expressions() {
    let mut set = set_with_policy(json!({ "whenDeleted": "Retain" }));
    let expressions = json!([{ "key": "app", "operator": "In", "values": ["web"] }]);
    set.spec.selector = serde_json::from_value(json!({ "matchExpressions": expressions })).unwrap();
    set.spec.template = json!({ "metadata": { "labels": { "app": "web", "tier": "front" } } });
    let data = template("data", "1Gi");
    let hashes = TemplateHashes::from_templates([&data]);
    let wanted = plan_instance_pvcs(&set, std::slice::from_ref(&data), 0, &[], &hashes);
    let PvcChange::Create { body, .. } = &wanted.create[0] else {
        panic!("{wanted:?}");
    };
    assert_eq!(body["metadata"]["labels"]["app"], "web");
    let labels = serde_json::from_value(body["metadata"]["labels"].clone()).unwrap();
    let released = Pvc {
        name: "web-data-abcde".to_owned(),
        labels,
        ..Pvc::default()
    };
    let existing = [Arc::new(released)];
    let again = plan_instance_pvcs(&set, &[data], 0, &existing, &hashes);
    assert_eq!((again.ready, again.create.len()), (true, 0));
    // A selector that only excludes labels adopts nothing.
    let none = json!([{ "key": "other", "operator": "DoesNotExist" }]);
    set.spec.selector = serde_json::from_value(json!({ "matchExpressions": none })).unwrap();
    let again = plan_instance_pvcs(&set, &[template("data", "1Gi")], 0, &existing, &hashes);
    assert!(!again.ready);
}
