use proptest::prelude::*;
use serde_json::{Value, json};

use super::{revision, try_apply};
use crate::domain::collaset::core_v1::random_values::RandomValues;
use crate::domain::collaset::core_v1::{Kind, POD_TEMPLATE};
use crate::domain::decoration::DecorationRevision;

const LISTS: [&str; 4] = ["containers", "initContainers", "volumes", "tolerations"];

fn random_list(random: &mut RandomValues, kind: &'static str) -> Value {
    let kind = Kind::List(Box::new(Kind::Struct(kind)));
    random.random_value(&kind)
}

/// A decoration of random additions. Names come from the few texts of [`RandomValues`], so that many are taken.
fn random_decoration(random: &mut RandomValues, name: &str) -> DecorationRevision {
    let texts = Kind::Map(Box::new(Kind::Text));
    let policy = ["Retain", "Overwrite", ""][random.next_below(3) as usize];
    let target = ["ByName", "All", "First", "Last", ""][random.next_below(5) as usize];
    let weight = random.next_below(2) as i32;
    revision(
        name,
        weight,
        json!({
            "metadata": [{
                "patchPolicy": policy,
                "labels": random.random_value(&texts),
                "annotations": random.random_value(&texts),
            }],
            "initContainers": random_list(random, "Container"),
            "containers": random_list(random, "Container"),
            "primaryContainers": [{
                "targetPolicy": target,
                "name": random.random_value(&Kind::Text),
                "env": random_list(random, "EnvVar"),
                "volumeMounts": random_list(random, "VolumeMount"),
            }],
            "volumes": random_list(random, "Volume"),
            "tolerations": random_list(random, "Toleration"),
            "runtimeClassName": random.random_value(&Kind::Text),
        }),
    )
}

/// Names in a list of the Pod that the decorations name, too.
fn named(decorations: &[DecorationRevision], list: &str) -> Vec<Value> {
    let templates = decorations.iter().map(|d| &d.template);
    let items = templates.flat_map(|t| match list {
        "containers" => &t.containers,
        "initContainers" => &t.init_containers,
        "volumes" => &t.volumes,
        _ => &t.tolerations,
    });
    items.map(|item| key_of(list, item)).collect()
}

fn key_of(list: &str, item: &Value) -> Value {
    let text = |key| item.get(key).and_then(Value::as_str).unwrap_or_default();
    match list {
        "tolerations" => json!([text("key"), text("effect")]),
        _ => json!(text("name")),
    }
}

/// The items of a list that no decoration names. Of containers, without what decorations change in all of them.
fn untouched(pod: &Value, list: &str, named: &[Value]) -> Vec<Value> {
    let items = pod["spec"][list].as_array().into_iter().flatten();
    let items = items.filter(|item| !named.contains(&key_of(list, item)));
    let mut items: Vec<_> = items.cloned().collect();
    if list == "containers" {
        for container in items.iter_mut().filter_map(Value::as_object_mut) {
            container.retain(|key, _| key != "env" && key != "volumeMounts");
        }
    }
    items
}

proptest! {
    #[test]
    fn result_depends_on_neither_order_nor_repetition(seed: u64) {
        let mut random = RandomValues(seed);
        let template = random.random_value(&POD_TEMPLATE);
        let mut decorations = ["a", "b", "c"].map(|name| random_decoration(&mut random, name));
        let first = try_apply(&template, &decorations).unwrap();
        prop_assert_eq!(&first, &try_apply(&template, &decorations).unwrap());
        decorations.reverse();
        let reversed = try_apply(&template, &decorations).unwrap();
        prop_assert_eq!(first.to_string(), reversed.to_string());
    }

    #[test]
    fn part_that_no_decoration_names_never_changes(seed: u64) {
        let mut random = RandomValues(seed);
        let template = random.random_value(&POD_TEMPLATE);
        let decorations = ["a", "b"].map(|name| random_decoration(&mut random, name));
        let mut pod = try_apply(&template, &decorations).unwrap();
        for list in LISTS {
            let named = named(&decorations, list);
            prop_assert_eq!(untouched(&pod, list, &named), untouched(&template, list, &named), "{}", list);
        }
        let mut template = template;
        for kind in ["labels", "annotations"] {
            for decoration in decorations.iter().flat_map(|d| &d.template.metadata) {
                let keys = if kind == "labels" { &decoration.labels } else { &decoration.annotations };
                for template in [&mut pod, &mut template] {
                    let entries = template.get_mut("metadata").and_then(|m| m.get_mut(kind));
                    if let Some(entries) = entries.and_then(Value::as_object_mut) {
                        entries.retain(|key, _| !keys.contains_key(key));
                    }
                }
            }
        }
        for template in [&mut pod, &mut template] {
            without_empty(template, "metadata", &["labels", "annotations"]);
            if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
                spec.retain(|key, _| !LISTS.contains(&key.as_str()) && key != "runtimeClassName");
            }
            without_empty(template, "spec", &[]);
        }
        prop_assert_eq!(pod, template);
    }
}

/// Removes these parts of an object of the Pod if they are empty, and then the object if it is empty.
fn without_empty(pod: &mut Value, part: &str, keys: &[&str]) {
    let is_empty = |value: &Value| value.as_object().is_none_or(serde_json::Map::is_empty);
    let Some(object) = pod.get_mut(part).and_then(Value::as_object_mut) else {
        return;
    };
    object.retain(|key, value| !keys.contains(&key.as_str()) || !is_empty(value));
    if object.is_empty() {
        pod.as_object_mut().unwrap().shift_remove(part);
    }
}
