//! The kinds of `apps.kusionstack.io` as the API server may have stored them.

use operating::api::collaset::CollaSet;
use operating::api::defaults;
use operating::api::operationjob::OperationJob;
use operating::api::poddecoration::PodDecoration;
use operating::api::podtransitionrule::PodTransitionRule;
use operating::api::resourcecontext::ResourceContext;
use operating::api::validation::{poddecoration, resourcecontext};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::collaset::defaulted;
use super::{choice, read};

/// An object that is read and written again reads the same.
pub fn run(data: &[u8]) {
    match choice(data, 5) {
        Some((0, data)) => again::<CollaSet>(data),
        Some((1, data)) => again::<PodTransitionRule>(data),
        Some((2, data)) => {
            again::<PodDecoration>(data);
            judge_decoration(data);
        }
        Some((3, data)) => again::<OperationJob>(data),
        Some((_, data)) => {
            again::<ResourceContext>(data);
            if let Some(context) = read::<ResourceContext>(data) {
                let _ = resourcecontext::validate(&context.spec);
            }
        }
        None => {}
    }
}

/// Adds defaults and runs validation, which must end.
fn judge_decoration(data: &[u8]) {
    let Some(mut object) = read::<Value>(data) else {
        return;
    };
    defaulted::<PodDecoration>(&mut object, defaults::default_poddecoration);
    if let Ok(decoration) = serde_json::from_value::<PodDecoration>(object) {
        let _ = poddecoration::validate(&decoration.spec);
        let _ = poddecoration::warnings(Some(&decoration.spec), &decoration.spec);
    }
}

fn again<T: Serialize + DeserializeOwned>(data: &[u8]) {
    let Some(object) = read::<T>(data) else {
        return;
    };
    let written = serde_json::to_value(&object);
    let written = written.unwrap_or_else(|e| panic!("it can't be written: {e}"));
    let again: T = serde_json::from_value(written.clone())
        .unwrap_or_else(|e| panic!("{written} can't be read: {e}"));
    assert_eq!(serde_json::to_value(&again).ok(), Some(written));
}
