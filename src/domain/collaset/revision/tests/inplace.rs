use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{kuperator_data, set};
use crate::domain::collaset::composition::Composition;
use crate::domain::collaset::construct;
use crate::domain::collaset::core_v1::random_values::RandomValues;
use crate::domain::collaset::core_v1::{POD_TEMPLATE, normal_form};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::revision::data;
use crate::domain::collaset::revision::inplace::{InPlaceChange, in_place_change};
use crate::domain::lifecycle::LabelPatch;

fn base_template() -> Value {
    json!({
        "metadata": { "labels": { "app": "web", "old": "1" }, "annotations": { "note": "1" } },
        "spec": {
            "initContainers": [
                { "name": "init", "image": "i:1" },
                { "name": "side", "image": "s:1", "restartPolicy": "Always" },
            ],
            "containers": [
                { "name": "app", "image": "a:1", "resources": {
                    "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "memory": "2Gi" } } },
                { "name": "log", "image": "l:1" },
            ],
        },
    })
}

fn data_of(template: &Value) -> Value {
    data::revision_data(&set(template.clone(), json!([])).spec)
}

/// The change from the base template to the base template after an edit.
fn change_after_edit(edit: impl FnOnce(&mut Value)) -> InPlaceChange {
    let mut to = base_template();
    edit(&mut to);
    in_place_change(&data_of(&base_template()), &data_of(&to))
}

fn refusal_after_edit(edit: impl FnOnce(&mut Value)) -> String {
    match change_after_edit(edit) {
        InPlaceChange::No(reason) => reason,
        yes => panic!("{yes:?}"),
    }
}

fn patches_after_edit(edit: impl FnOnce(&mut Value)) -> (Option<Value>, Option<Value>) {
    match change_after_edit(edit) {
        InPlaceChange::Yes { spec, resize, .. } => (spec, resize),
        no => panic!("{no:?}"),
    }
}

#[test]
fn labels_annotations_and_images_change_in_place() {
    let change = change_after_edit(|t| {
        t["metadata"] = json!({ "labels": { "app": "web", "new": "2" } });
        t["spec"]["containers"][1]["image"] = json!("l:2");
        t["spec"]["initContainers"][1]["image"] = json!("s:2");
    });
    assert_eq!(
        change,
        InPlaceChange::Yes {
            labels: LabelPatch([("new".into(), Some("2".into())), ("old".into(), None)].into()),
            annotations: [("note".into(), None)].into(),
            spec: Some(json!({
                "containers": [{ "name": "log", "image": "l:2" }],
                "initContainers": [{ "name": "side", "image": "s:2" }],
            })),
            resize: None,
            images: vec!["log".into(), "side".into()],
        }
    );
}

#[test]
fn notation_alone_changes_nothing() {
    assert_eq!(
        in_place_change(
            &kuperator_data(&base_template(), &[]),
            &data_of(&base_template())
        ),
        InPlaceChange::No("template.spec.initContainers[side].restartPolicy differs".into()),
        "Kuperator has lost what makes the sidecar"
    );
    let mut plain = base_template();
    plain["spec"]["initContainers"] = json!([]);
    assert_eq!(
        in_place_change(&kuperator_data(&plain, &[]), &data_of(&plain)),
        InPlaceChange::Yes {
            labels: LabelPatch::default(),
            annotations: BTreeMap::new(),
            spec: None,
            resize: None,
            images: vec![],
        }
    );
}

#[test]
fn other_changes_need_new_pod_with_reason() {
    type Edit = fn(&mut Value);
    let cases: [(&str, Edit); 12] = [
        ("template.spec.containers[app].env differs", |t| {
            t["spec"]["containers"][0]["env"] = json!([{ "name": "A" }])
        }),
        ("template.spec.containers differs", |t| {
            t["spec"]["containers"] = json!([t["spec"]["containers"][0]])
        }),
        ("template.spec.containers[0].name differs", |t| {
            if let Some(list) = t["spec"]["containers"].as_array_mut() {
                list.reverse();
            }
        }),
        (
            "template.spec.initContainers[init].image differs, and that container has run already",
            |t| t["spec"]["initContainers"][0]["image"] = json!("i:2"),
        ),
        (
            "template.spec.initContainers[side].resources differs",
            |t| {
                t["spec"]["initContainers"][1]["resources"] = json!({ "requests": { "cpu": "1" } });
            },
        ),
        ("template.spec.nodeName differs", |t| {
            t["spec"]["nodeName"] = json!("n")
        }),
        ("template.metadata differs", |t| {
            t["metadata"]["finalizers"] = json!(["f"])
        }),
        ("template.spec.containers[app].image is empty", |t| {
            t["spec"]["containers"][0]["image"] = json!("")
        }),
        (
            "template.spec.containers[app].resources.requests.cpu is removed, which needs a new Pod",
            |t| {
                t["spec"]["containers"][0]["resources"]["requests"] = json!({ "memory": "1Gi" });
            },
        ),
        (
            "template.spec.containers[app].resources.limits.memory shrinks, which needs a new Pod unless resizePolicy \
             says RestartContainer",
            |t| t["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("1Gi"),
        ),
        (
            "template.spec.containers[app].resources.limits differs, only cpu and memory can be resized",
            |t| t["spec"]["containers"][0]["resources"]["limits"]["gpu"] = json!("1"),
        ),
        (
            "template.spec.containers: their resources change the QoS class from Burstable to Guaranteed",
            |t| {
                let all = json!({ "limits": { "cpu": "1", "memory": "2Gi" }, "requests": { "cpu": "1", "memory": "2Gi" } });
                t["spec"]["containers"][0]["resources"] = all.clone();
                t["spec"]["containers"][1]["resources"] = all;
                t["spec"]["initContainers"] = t["spec"]["initContainers"].clone();
            },
        ),
    ];
    for (reason, edit) in cases.into_iter().take(11) {
        assert_eq!(refusal_after_edit(edit), reason);
    }
    let without_inits = |edit: Edit| {
        let mut from = base_template();
        from["spec"]["initContainers"] = json!([]);
        let mut to = from.clone();
        edit(&mut to);
        in_place_change(&data_of(&from), &data_of(&to))
    };
    assert_eq!(
        without_inits(cases[11].1),
        InPlaceChange::No(cases[11].0.to_owned())
    );
}

#[test]
fn default_that_is_spelt_out_is_no_change() {
    let nothing = change_after_edit(|t| {
        t["spec"]["restartPolicy"] = json!("Always");
        t["spec"]["terminationGracePeriodSeconds"] = json!(30);
        t["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        t["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1024Mi");
    });
    let InPlaceChange::Yes { spec, resize, .. } = nothing else {
        panic!("{nothing:?}");
    };
    assert_eq!((spec, resize), (None, None));
    assert!(data::is_equal_data(
        &data_of(&base_template()),
        &data_of(&{
            let mut spelt = base_template();
            spelt["spec"]["dnsPolicy"] = json!("ClusterFirst");
            spelt
        })
    ));
}

#[test]
fn pull_policies_are_compared_by_effective_value() {
    let spelt = |policy: &'static str, image: &'static str| {
        change_after_edit(move |t| {
            t["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
            t["spec"]["containers"][0]["image"] = json!(image);
        })
    };
    assert!(matches!(
        spelt("IfNotPresent", "a:2"),
        InPlaceChange::Yes { .. }
    ));
    assert_eq!(
        spelt("Always", "a:2"),
        InPlaceChange::No("template.spec.containers[app].imagePullPolicy differs".into())
    );
    let latest = change_after_edit(|t| t["spec"]["containers"][0]["image"] = json!("a:latest"));
    assert!(
        matches!(latest, InPlaceChange::Yes { .. }),
        "neither spells it"
    );
}

#[test]
fn restart_annotation_needs_new_pod() {
    for key in ["kubectl.kubernetes.io/restartedAt", "checksum/config"] {
        let reason = refusal_after_edit(|t| t["metadata"]["annotations"][key] = json!("1"));
        assert!(reason.starts_with("template.metadata"), "{reason}");
    }
}

#[test]
fn metadata_used_by_environment_needs_container_restart() {
    let with_env = |field: &str| {
        let mut from = base_template();
        let variable = json!({ "name": "V", "valueFrom": { "fieldRef": { "fieldPath": field } } });
        from["spec"]["containers"][0]["env"] = json!([variable]);
        from
    };
    let changed = |field: &str, edit: fn(&mut Value)| {
        let (from, mut to) = (with_env(field), with_env(field));
        edit(&mut to);
        in_place_change(&data_of(&from), &data_of(&to))
    };
    let reason = "template.spec.containers[app].env[V] is taken from metadata that changes, and only a new container sees that";
    let label = |t: &mut Value| t["metadata"]["labels"]["old"] = json!("2");
    let annotation = |t: &mut Value| t["metadata"]["annotations"]["note"] = json!("2");
    for (field, edit) in [
        ("metadata.labels['old']", label as fn(&mut Value)),
        ("metadata.annotations['note']", annotation),
        ("metadata.labels['controller-revision-hash']", annotation),
    ] {
        assert_eq!(
            changed(field, edit),
            InPlaceChange::No(reason.into()),
            "{field}"
        );
    }
    let with_image = |t: &mut Value| {
        t["metadata"]["labels"]["old"] = json!("2");
        t["spec"]["containers"][0]["image"] = json!("a:2");
    };
    for (field, edit) in [
        ("metadata.labels['old']", with_image as fn(&mut Value)),
        ("metadata.labels['app']", label),
        ("metadata.annotations['note']", label),
        ("status.podIP", label),
    ] {
        let change = changed(field, edit);
        assert!(
            matches!(change, InPlaceChange::Yes { .. }),
            "{field}: {change:?}"
        );
    }
}

#[test]
fn different_pvc_templates_need_new_pod() {
    let with =
        |pvc_templates: Value| data::revision_data(&set(base_template(), pvc_templates).spec);
    let pvc_template = |name: &str| json!({ "metadata": { "name": name } });
    assert_eq!(
        in_place_change(&with(json!([])), &with(json!([pvc_template("d")]))),
        InPlaceChange::No("volumeClaimTemplates differ".into())
    );
    let reordered = in_place_change(
        &with(json!([pvc_template("d"), pvc_template("e")])),
        &with(json!([pvc_template("e"), pvc_template("d")])),
    );
    assert!(matches!(reordered, InPlaceChange::Yes { .. }));
}

#[test]
fn data_that_cannot_be_read_needs_a_new_pod() {
    let reason = InPlaceChange::No("spec.template is missing".into());
    assert_eq!(
        in_place_change(&json!({}), &data_of(&base_template())),
        reason
    );
    assert_eq!(
        in_place_change(&data_of(&base_template()), &json!({})),
        reason
    );
}

#[test]
fn changed_resources_become_resize_patch() {
    let (spec, resize) = patches_after_edit(|t| {
        t["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1", "memory": "1024Mi" }, "limits": { "memory": "4Gi", "cpu": "2" } });
    });
    assert_eq!(spec, None);
    assert_eq!(
        resize,
        Some(json!({ "containers": [{ "name": "app", "resources": {
            "requests": { "cpu": "1", "memory": "1024Mi" }, "limits": { "cpu": "2", "memory": "4Gi" },
        } }] }))
    );
    // A missing request defaults to the limit, in the running Pod too.
    let limits = |memory: &str| json!({ "spec": { "containers": [{ "name": "a", "resources": { "limits": { "memory": memory } } }] } });
    let InPlaceChange::Yes { resize, .. } =
        in_place_change(&data_of(&limits("1Gi")), &data_of(&limits("2Gi")))
    else {
        panic!("a limit can grow");
    };
    let amounts = json!({ "memory": "2Gi" });
    assert_eq!(
        resize,
        Some(
            json!({ "containers": [{ "name": "a", "resources": { "requests": amounts, "limits": amounts } }] })
        )
    );
}

#[test]
fn memory_limit_shrinks_where_container_restarts_for_it() {
    let template = |memory: &str| {
        json!({ "spec": { "containers": [{
            "name": "a",
            "resources": { "limits": { "memory": memory } },
            "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
        }] } })
    };
    let change = in_place_change(&data_of(&template("2Gi")), &data_of(&template("1Gi")));
    assert!(
        matches!(
            change,
            InPlaceChange::Yes {
                resize: Some(_),
                ..
            }
        ),
        "{change:?}"
    );
}

/// Applies the patches as the API server does, as far as these tests need: containers by name, amounts by resource.
fn apply_change(pod: &mut Value, change: InPlaceChange) {
    let InPlaceChange::Yes {
        labels,
        annotations,
        spec,
        resize,
        ..
    } = change
    else {
        panic!("{change:?}");
    };
    for (key, entries) in [("labels", labels.0), ("annotations", annotations)] {
        let entries = serde_json::to_value(entries).unwrap();
        json_patch::merge(pod, &json!({ "metadata": { key: entries } }));
    }
    for patch in [spec, resize].into_iter().flatten() {
        for (list, containers) in patch.as_object().unwrap() {
            for container in containers.as_array().unwrap() {
                let mut all = pod["spec"][list].as_array_mut().unwrap().iter_mut();
                let target = all.find(|c| c["name"] == container["name"]).unwrap();
                json_patch::merge(target, container);
            }
        }
    }
}

fn pod(name: &str, data: Value) -> Value {
    let revision = Revision {
        name: name.into(),
        data,
        ..Revision::default()
    };
    let none = BTreeMap::new();
    construct::pod_manifest(
        &set(json!({}), json!([])),
        &Composition::plain(&Arc::new(revision)),
        0,
        true,
        &none,
        &none,
        1,
    )
    .unwrap()
}

/// The fields that an in-place change covers, in normal form. Requests are completed as by the API server.
fn in_place_fields(pod: &Value) -> Option<Value> {
    let mut pod = pod.clone();
    pod["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .shift_remove(crate::api::keys::REVISION);
    for container in pod["spec"]["containers"].as_array_mut().unwrap() {
        let limits = container["resources"]["limits"].clone();
        for (name, limit) in limits.as_object().into_iter().flatten() {
            let requests = &mut container["resources"]["requests"];
            if requests.get(name).is_none() {
                requests[name] = limit.clone();
            }
        }
    }
    normal_form(&POD_TEMPLATE, &pod)
}

proptest! {
    #[test]
    fn changed_pod_equals_newly_created_pod(seed in any::<u64>()) {
        let mut random = RandomValues(seed);
        let mut from = random.random_value(&POD_TEMPLATE);
        from["spec"]["containers"] = json!([]);
        for name in ["a", "b"] {
            let cpu = ["1", "500m"][random.next_below(2) as usize];
            from["spec"]["containers"].as_array_mut().unwrap().push(json!({
                "name": name, "image": "x:1", "resources": { "limits": { "cpu": cpu }, "requests": { "memory": "1Gi" } },
            }));
        }
        from["metadata"] = json!({ "labels": { "a": "1", "b": "1" }, "annotations": { "a": "1" } });
        let mut to = from.clone();
        for key in ["a", "b", "c"] {
            match random.next_below(3) {
                0 => { to["metadata"]["labels"].as_object_mut().unwrap().shift_remove(key); }
                1 => to["metadata"]["labels"][key] = json!("2"),
                _ => to["metadata"]["annotations"][key] = json!("2"),
            }
        }
        for i in 0..2 {
            let container = &mut to["spec"]["containers"][i];
            if random.next_below(2) == 0 {
                container["image"] = json!("x:2");
            }
            if random.next_below(2) == 0 {
                container["resources"]["limits"]["cpu"] = json!("3");
                container["resources"]["requests"]["memory"] = json!("2048Mi");
            }
        }
        let (from, to) = (data_of(&from), data_of(&to));
        let mut changed = pod("r", from.clone());
        apply_change(&mut changed, in_place_change(&from, &to));
        prop_assert_eq!(in_place_fields(&changed), in_place_fields(&pod("r", to)));
    }
}

/// Charts set `GOMAXPROCS` and `GOMEMLIMIT` this way: the kubelet resolves them when it starts the container.
#[test]
fn environment_variable_from_changed_resource_needs_container_restart() {
    let with = |memory: &str, policy: &str, field: &Value, image: &str| {
        let mut template = base_template();
        let containers = template["spec"]["containers"].as_array_mut().unwrap();
        let mut side = containers[0].clone();
        side["name"] = json!("side");
        side["env"] = json!([]);
        let container = &mut containers[0];
        container["image"] = image.into();
        container["env"] = json!([{ "name": "LIMIT", "valueFrom": { "resourceFieldRef": field } }]);
        for container in [&mut side, container] {
            container["resources"] = json!({ "limits": { "memory": memory, "cpu": "4" } });
            container["resizePolicy"] =
                json!([{ "resourceName": "memory", "restartPolicy": policy }]);
        }
        containers.push(side);
        data_of(&template)
    };
    let of = |resource: &str| json!({ "resource": resource });
    let of_side = json!({ "resource": "limits.memory", "containerName": "side" });
    let in_gi = json!({ "resource": "limits.memory", "divisor": "4Gi" });
    let (free, restarts) = ("NotRequired", "RestartContainer");
    for (field, policy, to, image, is_in_place) in [
        (of("limits.memory"), free, "4Gi", "x:1", false),
        (of("requests.memory"), free, "4Gi", "x:1", false),
        (of("limits.memory"), restarts, "4Gi", "x:1", true),
        (of("requests.memory"), restarts, "4Gi", "x:1", true),
        (of("limits.cpu"), free, "4Gi", "x:1", true),
        (of("limits.memory"), free, "2048Mi", "x:1", true),
        (in_gi.clone(), free, "4Gi", "x:1", true),
        (in_gi, free, "5Gi", "x:1", false),
        (of_side, restarts, "4Gi", "x:1", false),
        // The node may defer the resize and still restart the container for the image.
        (of("limits.memory"), free, "4Gi", "x:2", false),
    ] {
        let change = in_place_change(
            &with("2Gi", policy, &field, "x:1"),
            &with(to, policy, &field, image),
        );
        let is_yes = matches!(change, InPlaceChange::Yes { .. });
        assert_eq!(is_yes, is_in_place, "{field} {policy} {to}: {change:?}");
    }
}
