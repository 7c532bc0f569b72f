use proptest::prelude::*;
use serde_json::{Value, json};

use super::{kuperator_data, set, template};
use crate::domain::collaset::core_v1::random_values::RandomValues;
use crate::domain::collaset::core_v1::{POD_TEMPLATE, PVC};
use crate::domain::collaset::revision::data::{
    is_equal_data, is_equal_kuperator_data, pod_template as read, pvc_templates, revision_data,
};

fn data(template: Value) -> Value {
    revision_data(&set(template, json!([])).spec)
}

#[test]
fn revision_data_has_kuperator_format_with_sorted_keys() {
    let spec = set(
        json!({ "spec": { "z": { "b": 1, "a": null }, "containers": [] }, "metadata": {} }),
        json!([{ "spec": {}, "metadata": { "name": "d" } }]),
    )
    .spec;
    assert_eq!(
        revision_data(&spec).to_string(),
        concat!(
            r#"{"spec":{"template":{"$patch":"replace","metadata":{},"spec":{"containers":[],"z":{"a":null,"b":1}}},"#,
            r#""volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{}}]}}"#
        )
    );
    assert_eq!(pvc_templates(&revision_data(&spec)).len(), 1);
    assert!(
        data(template("a:1"))["spec"]
            .get("volumeClaimTemplates")
            .is_none()
    );
}

#[test]
fn data_that_cannot_be_read_says_what_is_wrong() {
    for (data, problem) in [
        (json!(null), "spec.template is missing"),
        (
            json!({ "spec": { "template": "text" } }),
            "spec.template is not an object",
        ),
        (
            json!({ "spec": { "template": {} } }),
            "spec.template.spec is missing",
        ),
        (
            json!({ "spec": { "template": { "spec": [] } } }),
            "spec.template.spec is not an object",
        ),
    ] {
        assert_eq!(read(&data).unwrap_err(), problem);
    }
}

#[test]
fn fields_added_by_go_are_no_difference() {
    let raw = template("a:1");
    let stored = kuperator_data(&raw, &[]);
    assert_eq!(
        stored["spec"]["template"]["metadata"]["creationTimestamp"],
        Value::Null
    );
    assert_eq!(
        stored["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "1"
    );
    assert!(is_equal_data(&stored, &data(raw)));
    assert!(!is_equal_data(&stored, &data(template("a:2"))));
}

#[test]
fn order_of_containers_matters_but_not_of_pvc_templates() {
    let pvc_template = |name: &str, size: &str| json!({ "metadata": { "name": name }, "spec": { "resources": { "requests": { "storage": size } } } });
    let with = |pvc_templates: Value| revision_data(&set(template("a:1"), pvc_templates).spec);
    let a = with(json!([pvc_template("x", "1Gi"), pvc_template("y", "1Gi")]));
    assert!(is_equal_data(
        &a,
        &with(json!([
            pvc_template("y", "1Gi"),
            pvc_template("x", "1024Mi")
        ]))
    ));
    assert!(!is_equal_data(
        &a,
        &with(json!([pvc_template("y", "1Gi"), pvc_template("x", "2Gi")]))
    ));
    assert!(!is_equal_data(&a, &with(json!([pvc_template("x", "1Gi")]))));

    let containers = |names: [&str; 2]| {
        data(json!({ "spec": { "containers": names.map(|n| json!({ "name": n })) } }))
    };
    assert!(!is_equal_data(
        &containers(["a", "b"]),
        &containers(["b", "a"])
    ));
}

#[test]
fn only_fields_newer_than_1_22_are_ignored() {
    let mut newer = template("a:1");
    newer["spec"]["initContainers"] = json!([{ "name": "side", "restartPolicy": "Always" }]);
    newer["spec"]["schedulingGates"] = json!([{ "name": "gate" }]);
    newer["spec"]["containers"][0]["livenessProbe"] = json!({ "grpc": { "port": 1 } });
    newer["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
    let pvc_templates =
        [json!({ "metadata": { "name": "d" }, "spec": { "volumeAttributesClassName": "gold" } })];
    let ours = revision_data(&set(newer.clone(), pvc_templates.to_vec().into()).spec);
    let stored = kuperator_data(&newer, &pvc_templates);
    assert!(!is_equal_data(&stored, &ours));
    assert!(is_equal_kuperator_data(&stored, &ours));

    newer["spec"]["containers"][0]["image"] = json!("a:2");
    assert!(!is_equal_kuperator_data(
        &stored,
        &revision_data(&set(newer.clone(), pvc_templates.to_vec().into()).spec)
    ));

    newer["spec"]["containers"][0]["image"] = json!("a:1");
    newer["spec"]["schedulingGates"] = json!([]);
    let later = revision_data(&set(newer, pvc_templates.to_vec().into()).spec);
    assert!(
        !is_equal_kuperator_data(&ours, &later),
        "data of our own has lost nothing"
    );
}

#[test]
fn our_revision_data_is_not_taken_for_kuperators() {
    let mut generated = template("a:1");
    generated["metadata"]["creationTimestamp"] = Value::Null;
    let ours = data(generated.clone());
    generated["spec"]["hostUsers"] = json!(false);
    assert!(!is_equal_kuperator_data(&ours, &data(generated)));
}

fn random_data(seed: u64) -> (Value, Vec<Value>) {
    let mut random = RandomValues(seed);
    let template = random.random_value(&POD_TEMPLATE);
    let pvc_templates = (0..random.next_below(3)).map(|i| {
        let mut pvc_template = random.random_value(&PVC);
        pvc_template["metadata"]["name"] = json!(format!("c{i}"));
        pvc_template
    });
    (template, pvc_templates.collect())
}

proptest! {
    #[test]
    fn equality_is_reflexive_symmetric_and_ignores_format_of_go(a in any::<u64>(), b in any::<u64>()) {
        let [(a, a_pvcs), (b, b_pvcs)] = [random_data(a), random_data(b)];
        let data = |t: &Value, c: &[Value]| revision_data(&set(t.clone(), c.to_vec().into()).spec);
        let (x, y) = (data(&a, &a_pvcs), data(&b, &b_pvcs));
        prop_assert!(is_equal_data(&x, &x));
        prop_assert_eq!(is_equal_data(&x, &y), is_equal_data(&y, &x));
        let (gx, gy) = (kuperator_data(&a, &a_pvcs), kuperator_data(&b, &b_pvcs));
        prop_assert!(is_equal_data(&gx, &x) && is_equal_data(&x, &gx), "{} {}", gx, x);
        prop_assert_eq!(is_equal_data(&gx, &y), is_equal_data(&gx, &gy), "what Go makes of it is no difference");
        prop_assert!(is_equal_data(&gx, &y) || gx != gy);
    }
}
