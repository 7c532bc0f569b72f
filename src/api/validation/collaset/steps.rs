//! Validates the steps of a rollout.

use super::{FieldError, FieldErrors};
use crate::api::collaset::{RolloutStep, UpdateStrategy};
use crate::api::int_or_percent::IntOrPercent;

/// Maximum number of steps of a rollout.
const MAX_STEPS: usize = 64;

pub(super) fn check_rollout_steps(strategy: &UpdateStrategy, errors: &mut FieldErrors) {
    let Some(rolling) = strategy.rolling_update.as_ref() else {
        return;
    };
    if rolling.steps.is_empty() {
        return;
    }
    let path = "spec.updateStrategy.rollingUpdate.steps";
    if rolling.by_label.is_some() {
        let problem = "needs byPartition: under byLabel the labels of the Pods say which are updated; take byLabel or the steps out";
        errors.push(FieldError::missing_field(path, problem));
    }
    let count = rolling.steps.len();
    if count > MAX_STEPS {
        let problem = format!("has {count} entries and may have {MAX_STEPS}: take some out");
        errors.push(FieldError::missing_field(path, problem));
    }
    for (index, step) in rolling.steps.iter().take(MAX_STEPS).enumerate() {
        check_step(&format!("{path}[{index}]"), step, errors);
    }
}

fn check_step(path: &str, step: &RolloutStep, errors: &mut FieldErrors) {
    match (&step.partition, &step.pause) {
        (Some(partition), None) => {
            if let Err(e) = IntOrPercent::parse(partition) {
                let path = format!("{path}.partition");
                errors.push(FieldError::with_raw_value(&path, e.value, e.problem));
            }
        }
        (None, Some(pause)) => {
            if let Err(problem) = pause.pause_duration() {
                let path = format!("{path}.pause.duration");
                let duration = pause.duration.as_deref().unwrap_or_default();
                errors.push(FieldError::new(&path, duration, problem));
            }
        }
        _ => {
            let problem =
                "must have partition or pause, one of them: write each as a step of its own";
            errors.push(FieldError::missing_field(path, problem));
        }
    }
}
