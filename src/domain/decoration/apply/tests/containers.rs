use serde_json::{Value, json};

use super::{apply_to_spec, failure, revision, try_apply};

/// Applies a decoration to the containers `app`, `proxy` and `last`, and returns the containers.
fn decorated_containers(decoration: Value) -> Value {
    let spec =
        json!({ "containers": [{ "name": "app" }, { "name": "proxy" }, { "name": "last" }] });
    apply_to_spec(spec, decoration)["containers"].take()
}

fn names(containers: &Value) -> Vec<&str> {
    let containers = containers.as_array().unwrap().iter();
    containers.map(|c| c["name"].as_str().unwrap()).collect()
}

#[test]
fn sidecars_are_placed_by_policy_in_their_order() {
    let before = |name: &str| json!({ "name": name, "injectPolicy": "BeforePrimaryContainer" });
    let after = |name: &str| json!({ "name": name, "injectPolicy": "AfterPrimaryContainer" });
    let cases: [(Value, &[&str]); 5] = [
        (
            json!([before("a"), before("b")]),
            &["a", "b", "app", "proxy", "last"],
        ),
        (
            json!([after("a"), after("b")]),
            &["app", "proxy", "last", "a", "b"],
        ),
        (
            json!([after("a"), before("b"), after("c"), before("d")]),
            &["b", "d", "app", "proxy", "last", "a", "c"],
        ),
        (json!([{ "name": "a" }]), &["a", "app", "proxy", "last"]),
        (
            json!([{ "name": "a", "injectPolicy": "" }]),
            &["a", "app", "proxy", "last"],
        ),
    ];
    for (sidecars, wanted) in cases {
        let containers = decorated_containers(json!({ "containers": sidecars }));
        assert_eq!(names(&containers), wanted, "{sidecars}");
        assert!(!containers.to_string().contains("injectPolicy"));
    }
}

#[test]
fn sidecars_of_later_decoration_are_outside_of_earlier_ones() {
    let decoration = |name: &str, weight| {
        let before = |n: i32| json!({ "name": format!("{name}{n}") });
        let after =
            json!({ "name": format!("{name}-end"), "injectPolicy": "AfterPrimaryContainer" });
        revision(
            name,
            weight,
            json!({ "containers": [before(1), after, before(2)] }),
        )
    };
    let template = json!({ "spec": { "containers": [{ "name": "app" }] } });
    let pod = try_apply(&template, &[decoration("b", 1), decoration("a", 2)]).unwrap();
    let wanted = ["a1", "a2", "b1", "b2", "app", "b-end", "a-end"];
    assert_eq!(names(&pod["spec"]["containers"]), wanted);
}

#[test]
fn sidecar_with_name_of_container_replaces_it() {
    for policy in ["BeforePrimaryContainer", "AfterPrimaryContainer"] {
        let sidecar = |name: &str| json!({ "name": name, "injectPolicy": policy, "image": "new" });
        let containers = decorated_containers(json!({ "containers": [sidecar("proxy")] }));
        assert_eq!(names(&containers), ["app", "proxy", "last"]);
        assert_eq!(containers[1], json!({ "name": "proxy", "image": "new" }));
        let twice = json!([{ "name": "x", "injectPolicy": policy }, sidecar("x")]);
        let containers = decorated_containers(json!({ "containers": twice }));
        assert_eq!(containers.as_array().unwrap().len(), 4);
        assert!(
            containers
                .to_string()
                .contains(r#"{"name":"x","image":"new"}"#)
        );
    }
}

#[test]
fn sidecars_of_template_without_containers_are_added() {
    let sidecars =
        json!({ "containers": [{ "name": "a", "injectPolicy": "AfterPrimaryContainer" }] });
    for spec in [
        json!({}),
        json!({ "containers": null }),
        json!({ "containers": [] }),
    ] {
        let wanted = json!({ "containers": [{ "name": "a" }] });
        assert_eq!(apply_to_spec(spec, sidecars.clone()), wanted);
    }
}

#[test]
fn init_container_is_added_unless_its_name_is_taken() {
    let spec = json!({ "containers": [{ "name": "app" }], "initContainers": [{ "name": "a", "image": "old" }] });
    let added = json!([{ "name": "b" }, { "name": "a", "image": "new" }, { "name": "b", "image": "2" }, { "name": "app" }]);
    assert_eq!(
        apply_to_spec(spec, json!({ "initContainers": added }))["initContainers"],
        json!([{ "name": "a", "image": "old" }, { "name": "b" }, { "name": "app" }])
    );
}

#[test]
fn target_policy_chooses_containers() {
    let cases: [(Value, &[&str]); 11] = [
        (json!({}), &["app", "proxy", "last"]),
        (json!({ "targetPolicy": "" }), &["app", "proxy", "last"]),
        (json!({ "name": "" }), &["app", "proxy", "last"]),
        (json!({ "name": "proxy" }), &["proxy"]),
        (json!({ "name": "proxy", "targetPolicy": "" }), &["proxy"]),
        (
            json!({ "name": "proxy", "targetPolicy": "ByName" }),
            &["proxy"],
        ),
        (
            json!({ "name": "proxy", "targetPolicy": "All" }),
            &["app", "proxy", "last"],
        ),
        (
            json!({ "name": "proxy", "targetPolicy": "First" }),
            &["app"],
        ),
        (json!({ "targetPolicy": "Last" }), &["last"]),
        (json!({ "name": "absent" }), &[]),
        (json!({ "targetPolicy": "ByName" }), &[]),
    ];
    for (mut patch, wanted) in cases {
        patch["image"] = json!("new");
        let containers = decorated_containers(json!({ "primaryContainers": [patch] }));
        let changed = containers.as_array().unwrap().iter();
        let changed = changed.filter(|c| c.get("image").is_some());
        let changed: Value = changed.cloned().collect();
        assert_eq!(names(&changed), wanted, "{patch}");
    }
}

#[test]
fn sidecars_are_not_primary_containers() {
    let sidecars =
        json!([{ "name": "front" }, { "name": "back", "injectPolicy": "AfterPrimaryContainer" }]);
    for (policy, wanted) in [
        (json!({ "targetPolicy": "All" }), ["app"].as_slice()),
        (json!({ "targetPolicy": "First" }), &["app"]),
        (json!({ "targetPolicy": "Last" }), &["app"]),
        (json!({ "name": "front" }), &["front"]),
        (json!({ "name": "own" }), &[]),
    ] {
        let mut patch = policy;
        patch["image"] = json!("new");
        let later = json!({ "primaryContainers": [patch], "containers": [{ "name": "own" }] });
        let decorations = [
            revision("a", 0, json!({ "containers": sidecars })),
            revision("b", 0, later),
        ];
        let template = json!({ "spec": { "containers": [{ "name": "app", "image": "1" }] } });
        let pod = try_apply(&template, &decorations).unwrap();
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let changed = containers
            .iter()
            .filter(|c| c.get("image") == Some(&json!("new")));
        let changed: Value = changed.cloned().collect();
        assert_eq!(names(&changed), wanted, "{patch}");
    }
}

#[test]
fn image_env_and_mounts_of_container_change() {
    let container = json!({
        "name": "app", "image": "app:1",
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "1" }],
        "volumeMounts": [{ "name": "v", "mountPath": "/a" }, { "name": "v", "mountPath": "/b" }],
        "args": ["x"],
    });
    let patch = json!({
        "image": "app:2",
        "env": [{ "name": "C", "value": "2" }, { "name": "B", "valueFrom": {} }],
        "volumeMounts": [{ "name": "v", "mountPath": "/c" }, { "name": "w", "mountPath": "/b", "readOnly": true }],
    });
    let spec = apply_to_spec(
        json!({ "containers": [container] }),
        json!({ "primaryContainers": [patch] }),
    );
    let wanted = json!({
        "name": "app", "image": "app:2",
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "valueFrom": {} }, { "name": "C", "value": "2" }],
        "volumeMounts": [
            { "name": "v", "mountPath": "/a" }, { "name": "w", "mountPath": "/b", "readOnly": true },
            { "name": "v", "mountPath": "/c" },
        ],
        "args": ["x"],
    });
    assert_eq!(spec["containers"][0], wanted);
}

#[test]
fn last_of_two_variables_of_same_name_is_replaced() {
    let env = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }]);
    let spec = json!({ "containers": [{ "name": "app", "env": env }] });
    let patch = json!({ "env": [{ "name": "A", "value": "3" }] });
    let spec = apply_to_spec(spec, json!({ "primaryContainers": [patch] }));
    let wanted = json!([{ "name": "A", "value": "1" }, { "name": "A", "value": "3" }]);
    assert_eq!(spec["containers"][0]["env"], wanted);
}

#[test]
fn changes_of_containers_are_applied_in_their_order() {
    let patches = json!([
        { "env": [{ "name": "A", "value": "all" }], "image": "all" },
        { "name": "app", "env": [{ "name": "A", "value": "app" }], "image": "" },
    ]);
    let containers = decorated_containers(json!({ "primaryContainers": patches }));
    let wanted = |name: &str, value: &str| json!({ "name": name, "image": "all", "env": [{ "name": "A", "value": value }] });
    let all = json!([
        wanted("app", "app"),
        wanted("proxy", "all"),
        wanted("last", "all")
    ]);
    assert_eq!(containers, all);
}

#[test]
fn unknown_policy_of_container_fails() {
    assert_eq!(
        failure(
            &json!({}),
            json!({ "primaryContainers": [{}, { "targetPolicy": "Even" }] })
        ),
        "spec.template.primaryContainers[1].targetPolicy: \"Even\" is not known to this version: set ByName, All, First \
         or Last"
    );
    assert_eq!(
        failure(
            &json!({}),
            json!({ "containers": [{ "name": "a", "injectPolicy": "Amid" }] })
        ),
        "spec.template.containers[0].injectPolicy: \"Amid\" is not known to this version: set BeforePrimaryContainer or \
         AfterPrimaryContainer"
    );
}
