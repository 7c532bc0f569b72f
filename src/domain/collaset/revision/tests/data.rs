use proptest::prelude::*;
use serde_json::{Value, json};

use super::{by_go, set, template};
use crate::domain::collaset::core_v1::random::Random;
use crate::domain::collaset::core_v1::{CLAIM, POD_TEMPLATE};
use crate::domain::collaset::revision::data::{
    claim_templates, equal, equal_taken_over, of, template as read,
};

fn data(template: Value) -> Value {
    of(&set(template, json!([])).spec)
}

#[test]
fn the_data_is_in_kuperators_format_with_sorted_keys_and_every_field() {
    let spec = set(
        json!({ "spec": { "z": { "b": 1, "a": null }, "containers": [] }, "metadata": {} }),
        json!([{ "spec": {}, "metadata": { "name": "d" } }]),
    )
    .spec;
    assert_eq!(
        of(&spec).to_string(),
        concat!(
            r#"{"spec":{"template":{"$patch":"replace","metadata":{},"spec":{"containers":[],"z":{"a":null,"b":1}}},"#,
            r#""volumeClaimTemplates":[{"metadata":{"name":"d"},"spec":{}}]}}"#
        )
    );
    assert_eq!(claim_templates(&of(&spec)).len(), 1);
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
fn marks_of_go_are_no_difference() {
    let raw = template("a:1");
    let stored = by_go(&raw, &[]);
    assert_eq!(
        stored["spec"]["template"]["metadata"]["creationTimestamp"],
        Value::Null
    );
    assert_eq!(
        stored["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "1"
    );
    assert!(equal(&stored, &data(raw)));
    assert!(!equal(&stored, &data(template("a:2"))));
}

#[test]
fn the_order_of_claim_templates_is_no_difference_but_that_of_containers_is() {
    let claim = |name: &str, size: &str| json!({ "metadata": { "name": name }, "spec": { "resources": { "requests": { "storage": size } } } });
    let with = |claims: Value| of(&set(template("a:1"), claims).spec);
    let a = with(json!([claim("x", "1Gi"), claim("y", "1Gi")]));
    assert!(equal(
        &a,
        &with(json!([claim("y", "1Gi"), claim("x", "1024Mi")]))
    ));
    assert!(!equal(
        &a,
        &with(json!([claim("y", "1Gi"), claim("x", "2Gi")]))
    ));
    assert!(!equal(&a, &with(json!([claim("x", "1Gi")]))));

    let containers = |names: [&str; 2]| {
        data(json!({ "spec": { "containers": names.map(|n| json!({ "name": n })) } }))
    };
    assert!(!equal(&containers(["a", "b"]), &containers(["b", "a"])));
}

#[test]
fn fields_that_1_22_did_not_know_are_forgiven_to_go_alone() {
    let mut newer = template("a:1");
    newer["spec"]["initContainers"] = json!([{ "name": "side", "restartPolicy": "Always" }]);
    newer["spec"]["schedulingGates"] = json!([{ "name": "gate" }]);
    newer["spec"]["containers"][0]["livenessProbe"] = json!({ "grpc": { "port": 1 } });
    newer["spec"]["containers"][0]["resources"]["claims"] = json!([{ "name": "gpu" }]);
    let claims =
        [json!({ "metadata": { "name": "d" }, "spec": { "volumeAttributesClassName": "gold" } })];
    let ours = of(&set(newer.clone(), claims.to_vec().into()).spec);
    let stored = by_go(&newer, &claims);
    assert!(!equal(&stored, &ours));
    assert!(equal_taken_over(&stored, &ours));

    newer["spec"]["containers"][0]["image"] = json!("a:2");
    assert!(!equal_taken_over(
        &stored,
        &of(&set(newer.clone(), claims.to_vec().into()).spec)
    ));

    newer["spec"]["containers"][0]["image"] = json!("a:1");
    newer["spec"]["schedulingGates"] = json!([]);
    let later = of(&set(newer, claims.to_vec().into()).spec);
    assert!(
        !equal_taken_over(&ours, &later),
        "data of our own has lost nothing"
    );
}

#[test]
fn data_of_our_own_never_bears_the_mark_of_go() {
    let mut generated = template("a:1");
    generated["metadata"]["creationTimestamp"] = Value::Null;
    let ours = data(generated.clone());
    generated["spec"]["hostUsers"] = json!(false);
    assert!(!equal_taken_over(&ours, &data(generated)));
}

fn random(seed: u64) -> (Value, Vec<Value>) {
    let mut random = Random(seed);
    let template = random.value(&POD_TEMPLATE);
    let claims = (0..random.below(3)).map(|i| {
        let mut claim = random.value(&CLAIM);
        claim["metadata"]["name"] = json!(format!("c{i}"));
        claim
    });
    (template, claims.collect())
}

proptest! {
    #[test]
    fn equality_is_reflexive_symmetric_and_blind_to_go(a in any::<u64>(), b in any::<u64>()) {
        let [(a, a_claims), (b, b_claims)] = [random(a), random(b)];
        let data = |t: &Value, c: &[Value]| of(&set(t.clone(), c.to_vec().into()).spec);
        let (x, y) = (data(&a, &a_claims), data(&b, &b_claims));
        prop_assert!(equal(&x, &x));
        prop_assert_eq!(equal(&x, &y), equal(&y, &x));
        let (gx, gy) = (by_go(&a, &a_claims), by_go(&b, &b_claims));
        prop_assert!(equal(&gx, &x) && equal(&x, &gx), "{} {}", gx, x);
        prop_assert_eq!(equal(&gx, &y), equal(&gx, &gy), "what Go makes of it is no difference");
        prop_assert!(equal(&gx, &y) || gx != gy);
    }
}
