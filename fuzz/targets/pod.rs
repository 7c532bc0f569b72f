//! Pods.

use operating::domain::inplace;
use operating::domain::lifecycle::{
    ExpectedFinalizers, LifecycleWrite, controller_step, ids_without_type, is_held_offline,
    restarts, stored_phases, validate,
};
use operating::domain::pod::Pod;
use operating::domain::rules::unreadable_skips_message;

use super::read;

const NOW: u64 = 1_700_000_000_000_000_000;

/// Two lines: a Pod, and the Pod after a write. Every function of the lifecycle returns for any input, and the change
/// of the webhook is stable: a second run changes nothing.
pub fn run(data: &[u8]) {
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let old = lines.next().and_then(read::<Pod>);
    let new = lines.next().and_then(read::<Pod>);
    for pod in old.iter().chain(&new) {
        ask(pod);
    }
    let Some(new) = new.as_ref().or(old.as_ref()) else {
        return;
    };
    write(None, new);
    if let Some(old) = &old {
        write(Some(old), new);
        let _ = restarts::restarts_after_write(old, new, new, false, NOW).annotation_value();
        if let Some(change) = inplace::in_place_restart(old, new) {
            let applied = inplace::is_spec_applied(new, &change.target);
            assert!(applied, "{change:?} is that of {new:?}");
        }
    }
}

fn ask(pod: &Pod) {
    assert!(!(pod.is_available() && (pod.is_terminating() || pod.is_finished())));
    let _ = (
        pod.is_broken(),
        pod.created_at(),
        pod.controller(),
        pod.is_mirror(),
    );
    let _ = (
        stored_phases(pod),
        ids_without_type(pod),
        is_held_offline(pod),
    );
    let _ = controller_step(pod, NOW);
    let _ = (
        restarts::describe_pending(pod),
        restarts::assumed_done_in(pod, NOW),
    );
    let _ = (
        ExpectedFinalizers::from_pod(pod),
        unreadable_skips_message(pod),
    );
    let _ = inplace::unfinished_resizes(pod);
    if inplace::is_resize_deferred(pod) {
        assert!(inplace::is_resize_pending(pod));
    }
}

fn write(old: Option<&Pod>, new: &Pod) {
    let _ = validate(old, new);
    let mut run = LifecycleWrite::from_write(old, new, NOW);
    run.advance_all();
    let patch = run.patch();
    let mut labels = new.metadata.labels.clone();
    let current = serde_json::to_value(&labels).unwrap_or_default();
    let mut object = serde_json::json!({ "metadata": { "labels": current } });
    let json = json_patch::Patch(patch.to_json_patch(Some(&object["metadata"]["labels"].clone())));
    if let Err(error) = json_patch::patch(&mut object, &json) {
        panic!("{json} does not apply: {error}");
    }
    patch.apply(&mut labels);
    let stored = serde_json::to_value(&labels).unwrap_or_default();
    assert_eq!(object["metadata"]["labels"], stored, "{json}");
}
