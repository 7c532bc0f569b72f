//! Lists the Pods that wait, and counts the reasons why they wait.

use serde_json::{Value, json};

use super::StatusView;
use super::refusals::{WaitRefusal, pod_refusals};
use super::wait_reasons::WaitReasonCounts;
use super::wait_view::{PodWait, WaitView};
use crate::api::size_limits::{self, MAX_DETAILS_BYTES};
use crate::cluster::index::RuleEntry;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// Maximum number of waiting Pods in `details`; `waitingPods` counts all.
pub const MAX_DETAILS: usize = 100;

/// Maximum size in bytes of `passedRules`, and also of `rejectInfo`, in the detail of one Pod. Entries that do not fit
/// are left out.
const MAX_DETAIL_BYTES: usize = 4 * 1024;

/// A Pod that waits in a stage, as the tally counts it.
#[derive(Clone, Debug)]
pub struct StageWait {
    uid: Uid,
    stage: Stage,
    /// Whether the Pod that is first in the wait queue waits longer than this Pod.
    is_behind: bool,
}

/// Pods in PreCheck, the longest waiting first.
fn pre_check_waits(entry: &RuleEntry, head: Option<&Uid>) -> impl Iterator<Item = StageWait> {
    let mut is_behind = false;
    entry.tally.pre_check_waiting().map(move |uid| {
        let wait = StageWait {
            uid: uid.clone(),
            stage: Stage::PreCheck,
            is_behind,
        };
        is_behind |= head == Some(uid);
        wait
    })
}

/// Pods in PostCheck.
fn post_check_waits(entry: &RuleEntry) -> impl Iterator<Item = StageWait> {
    entry.tally.post_check_waiting().map(|uid| StageWait {
        uid: uid.clone(),
        stage: Stage::PostCheck,
        is_behind: false,
    })
}

/// Whether more Pods wait than `details` lists.
pub fn exceeds_details(entry: &RuleEntry) -> bool {
    entry.tally.pre_check_waiting().len() + entry.tally.post_check_waiting().len() > MAX_DETAILS
}

/// All Pods that wait in PreCheck or PostCheck.
pub fn all_stage_waits(entry: &RuleEntry, head: Option<&Uid>) -> Vec<StageWait> {
    pre_check_waits(entry, head)
        .chain(post_check_waits(entry))
        .collect()
}

/// Adds the reasons why these Pods wait to `reasons`.
pub fn count_reasons(view: &StatusView<'_>, waits: &[StageWait], reasons: &mut WaitReasonCounts) {
    let view = WaitView::new(view, view.unknown_replicas_owners().denies_all());
    for wait in waits.iter().filter_map(|wait| view.pod_wait(wait)) {
        reasons.count_pod(wait.pod, wait.stage, &pod_refusals(&view, &wait).1);
    }
}

impl<'a> WaitView<'a> {
    fn find_pod(&self, uid: &Uid) -> Option<&'a Pod> {
        let namespace = &self.status.entry.snapshot.rules.namespace;
        self.status.state.pod(namespace, uid).map(|pod| &**pod)
    }

    fn pod_wait(&self, wait: &StageWait) -> Option<PodWait<'a>> {
        let StatusView { state, queue, .. } = self.status;
        let pod = self.find_pod(&wait.uid)?;
        let head = queue.head.as_ref().filter(|_| wait.is_behind);
        let head = head.and_then(|uid| self.find_pod(uid));
        Some(PodWait {
            pod,
            stage: wait.stage,
            behind: head.map(|pod| pod.metadata.name.as_str()),
            is_briefly_down: state.is_briefly_down(pod),
            is_deleted_with_collaset: state.is_deleted_with_collaset(pod),
        })
    }
}

/// The details of waiting Pods, sorted by name. If `details` can't list all Pods, also the counted reasons.
pub fn wait_details(view: &WaitView<'_>) -> (Vec<Value>, Vec<Value>) {
    let (entry, queue) = (view.status.entry, view.status.queue);
    let before = pre_check_waits(entry, queue.head.as_ref()).take(MAX_DETAILS);
    let waits = before.chain(post_check_waits(entry).take(MAX_DETAILS));
    let mut all: Vec<_> = waits.filter_map(|wait| view.pod_wait(&wait)).collect();
    all.sort_by_key(|wait| (&wait.pod.metadata.name, wait.stage));
    all.truncate(MAX_DETAILS);
    let listed = all.iter().map(|wait| pod_detail(view, wait));
    let listed = size_limits::take_fitting(listed, MAX_DETAILS_BYTES);
    let reasons = match &queue.counted {
        Some(counted) => counted.to_status_values(),
        // The next run counts them, or all Pods are listed.
        None if exceeds_details(entry) || listed.len() == all.len() => Vec::new(),
        None => {
            let mut reasons = WaitReasonCounts::default();
            for wait in &all {
                reasons.count_pod(wait.pod, wait.stage, &pod_refusals(view, wait).1);
            }
            reasons.to_status_values()
        }
    };
    (listed, reasons)
}

fn pod_detail(view: &WaitView<'_>, wait: &PodWait<'_>) -> Value {
    let PodWait { pod, stage, .. } = *wait;
    let (passed, refusals) = pod_refusals(view, wait);
    let mut detail = json!({ "name": pod.metadata.name, "stage": stage.as_str(), "passed": refusals.is_empty() });
    if !passed.is_empty() {
        detail["passedRules"] = json!(size_limits::take_fitting(passed, MAX_DETAIL_BYTES));
    }
    if !refusals.is_empty() {
        let refusals = refusals.iter().map(WaitRefusal::to_status_value);
        detail["rejectInfo"] = json!(size_limits::take_fitting(refusals, MAX_DETAIL_BYTES));
    }
    detail
}
