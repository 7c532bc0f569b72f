use serde_json::{Value, json};

use super::{apply_to_spec, revision, try_apply};

fn terms(terms: Value) -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } })
}

#[test]
fn volume_replaces_volume_of_same_name() {
    let spec =
        json!({ "volumes": [{ "name": "a", "emptyDir": {} }, { "name": "b", "emptyDir": {} }] });
    let added = json!([{ "name": "c", "secret": { "secretName": "c" } }, { "name": "a", "hostPath": { "path": "/a" } }]);
    assert_eq!(
        apply_to_spec(spec, json!({ "volumes": added })),
        json!({ "volumes": [
            { "name": "a", "hostPath": { "path": "/a" } },
            { "name": "b", "emptyDir": {} },
            { "name": "c", "secret": { "secretName": "c" } },
        ] })
    );
    let added = json!([{ "name": "c" }]);
    for empty in [json!({}), json!({ "volumes": null })] {
        assert_eq!(
            apply_to_spec(empty, json!({ "volumes": added })),
            json!({ "volumes": added })
        );
    }
}

#[test]
fn toleration_replaces_that_of_same_key_and_effect() {
    let old = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
    let new = |key: &str, effect: &str| json!({ "key": key, "effect": effect, "value": "new" });
    let spec = json!({ "tolerations": [old("a", "NoSchedule"), old("a", "NoExecute"), { "operator": "Exists" }] });
    let added = json!([new("b", ""), new("a", "NoExecute"), { "value": "all" }, new("b", "")]);
    assert_eq!(
        apply_to_spec(spec, json!({ "tolerations": added })),
        json!({ "tolerations": [
            old("a", "NoSchedule"), new("a", "NoExecute"), { "value": "all" }, new("b", ""), new("b", ""),
        ] })
    );
}

#[test]
fn node_selector_terms_follow_override_of_affinity() {
    let own = json!({ "nodeAffinity": { "preferred": 1 }, "podAffinity": {} });
    let mut both = own.clone();
    json_patch::merge(&mut both, &terms(json!([{ "new": 1 }])));
    for (present, patch, wanted) in [
        (
            Value::Null,
            json!({ "nodeSelectorTerms": [{ "new": 1 }] }),
            terms(json!([{ "new": 1 }])),
        ),
        (
            own.clone(),
            json!({ "nodeSelectorTerms": [{ "new": 1 }] }),
            both,
        ),
        (
            terms(json!([{ "old": 1 }])),
            json!({ "nodeSelectorTerms": [{ "new": 1 }, { "new": 2 }] }),
            terms(json!([{ "old": 1 }, { "new": 1 }, { "new": 2 }])),
        ),
        (
            terms(json!([{ "old": 1 }])),
            json!({ "overrideAffinity": terms(json!([{ "over": 1 }])), "nodeSelectorTerms": [{ "new": 1 }] }),
            terms(json!([{ "over": 1 }, { "new": 1 }])),
        ),
        (own.clone(), json!({ "overrideAffinity": {} }), json!({})),
        (
            own.clone(),
            json!({ "overrideAffinity": null }),
            own.clone(),
        ),
        (own.clone(), json!({}), own),
    ] {
        let spec = apply_to_spec(json!({ "affinity": present }), json!({ "affinity": patch }));
        assert_eq!(spec, json!({ "affinity": wanted }), "{patch}");
    }
}

#[test]
fn runtime_class_is_set() {
    for (class, wanted) in [
        (json!("kata"), "kata"),
        (json!(""), "runc"),
        (Value::Null, "runc"),
    ] {
        let spec = apply_to_spec(
            json!({ "runtimeClassName": "runc" }),
            json!({ "runtimeClassName": class }),
        );
        assert_eq!(spec, json!({ "runtimeClassName": wanted }));
    }
}

#[test]
fn later_decoration_overrides_earlier_one() {
    let decoration = |name: &str, weight, class: &str| {
        let volume = json!({ "name": "v", "hostPath": { "path": class } });
        let affinity = json!({ "nodeSelectorTerms": [{ "class": class }] });
        revision(
            name,
            weight,
            json!({ "runtimeClassName": class, "volumes": [volume], "affinity": affinity }),
        )
    };
    let pod = try_apply(
        &json!({}),
        &[decoration("a", 2, "kata"), decoration("b", 1, "runc")],
    );
    let spec = json!({
        "volumes": [{ "name": "v", "hostPath": { "path": "kata" } }],
        "affinity": terms(json!([{ "class": "runc" }, { "class": "kata" }])),
        "runtimeClassName": "kata",
    });
    assert_eq!(pod, Ok(json!({ "spec": spec })));
}
