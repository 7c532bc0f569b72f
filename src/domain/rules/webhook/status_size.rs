//! Keeps the stored state of a webhook rule within its share of the status. If the status became too large, etcd would
//! refuse each write of it, and so all later verdicts.

use crate::api::podtransitionrule::{TaskInfo, WebhookStatus};
use crate::api::size_limits::json_bytes;

/// Largest size of [`WebhookStatus::omitted`] in bytes, with the name of the field.
const OMITTED_NOTE_BYTES: usize = 200;

/// Removes what does not fit, in this order: ended tasks, texts of tasks, tasks, answers. After a change of the leader,
/// the endpoint is asked again about removed tasks and answers.
pub fn fit_status(mut status: WebhookStatus, share: usize) -> WebhookStatus {
    let mut size = json_bytes(&status);
    if size <= share {
        return status;
    }
    let share = share.saturating_sub(OMITTED_NOTE_BYTES);
    let mut omitted = Vec::new();
    let mut note_omitted = |n: usize, noun: &str| {
        if n > 0 {
            omitted.push(format!("{n} {noun}"));
        }
    };
    let surplus_history = count_surplus(status.history.iter(), size, share);
    size = size_without(size, status.history.drain(..surplus_history));
    note_omitted(surplus_history, "ended tasks");
    if size > share {
        let before = json_bytes(&status.task_states);
        for task in &mut status.task_states {
            *task = TaskInfo {
                approved: Vec::new(),
                message: String::new(),
                ..std::mem::take(task)
            };
        }
        size -= before.saturating_sub(json_bytes(&status.task_states));
        note_omitted(status.task_states.len(), "messages of tasks");
        for text in [&mut status.failing, &mut status.warning] {
            size = size.saturating_sub(json_bytes(&std::mem::take(text)));
        }
    }
    let tasks = count_surplus(status.task_states.iter().rev(), size, share);
    let kept_tasks = status.task_states.len() - tasks;
    size = size_without(size, status.task_states.drain(kept_tasks..));
    note_omitted(tasks, "tasks");
    let passed = count_surplus(status.passed.iter().rev(), size, share);
    status.passed.truncate(status.passed.len() - passed);
    note_omitted(passed, "operations that have passed");
    status.omitted = format!(
        "left out because the status is full: {}",
        omitted.join(", ")
    );
    status
}

/// How many items must be removed until the size is within the share.
fn count_surplus<'a, T: serde::Serialize + 'a>(
    items: impl Iterator<Item = &'a T>,
    mut size: usize,
    share: usize,
) -> usize {
    let is_surplus = |item: &&T| {
        let too_large = size > share;
        size = size.saturating_sub(json_bytes(item));
        too_large
    };
    items.take_while(is_surplus).count()
}

fn size_without<T: serde::Serialize>(size: usize, removed: impl Iterator<Item = T>) -> usize {
    removed.fold(size, |size, item| size.saturating_sub(json_bytes(&item)))
}
