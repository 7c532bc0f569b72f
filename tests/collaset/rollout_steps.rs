//! Rollouts in steps: canaries, pauses, and the commands of users.

use kube::api::{Patch, PatchParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::Bed;

use crate::admission_policies::Policy;
use crate::fixtures::{Set, condition, uids};
use crate::membership::until_event;

async fn command(set: &Set<'_>, command: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { keys::ROLLOUT: command } } }));
    let params = PatchParams::default();
    set.api.patch(set.name, &params, &patch).await.unwrap();
}

fn steps(steps: Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } })
}

fn is_at(set: &CollaSet, step: i32) -> bool {
    let rollout = set.status.as_ref().and_then(|s| s.rollout.as_ref());
    rollout.is_some_and(|rollout| rollout.step == step && rollout.command.is_empty())
}

fn is_free_of_commands(set: &CollaSet) -> bool {
    let annotations = set.metadata.annotations.as_ref();
    annotations.is_none_or(|all| !all.contains_key(keys::ROLLOUT))
}

async fn updated(set: &Set<'_>, image: &str) -> usize {
    let images = set.images().await;
    images.into_iter().filter(|i| i == image).count()
}

#[tokio::test]
async fn canary_is_promoted_through_its_pauses() {
    let scope = Bed::shared().await.scope("steps").await;
    let canary = json!([
        { "partition": "75%" },
        { "pause": {} },
        { "partition": 2 },
        { "pause": { "duration": "3s" } },
    ]);
    let set = Set::new(&scope, "web", 4, steps(canary)).await;
    let before = uids(&set.pods().await);
    set.image("app:2").await;
    let paused = set
        .until("the pause after the canary", |s| is_at(s, 2))
        .await;
    assert_eq!(updated(&set, "app:2").await, 1);
    let ready = condition(&paused, "Ready").unwrap();
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Updating"));
    let until =
        "step 2 of 4 pauses until the annotation collaset.kusionstack.io/rollout=promote is set";
    assert!(ready.message.contains(until), "{}", ready.message);
    assert_eq!(condition(&paused, "Update").unwrap().reason, "StepPaused");

    command(&set, "promote").await;
    let taken = |s: &CollaSet| is_free_of_commands(s) && !is_at(s, 2);
    set.until("the annotation to be carried out", taken).await;
    set.until("the pause for a time", |s| is_at(s, 4)).await;
    assert_eq!(updated(&set, "app:2").await, 2);
    let done = set.settled().await;
    assert_eq!(updated(&set, "app:2").await, 4);
    assert_eq!(done.status.unwrap().rollout, None);
    assert_eq!(uids(&set.pods().await), before, "all in place");
}

#[tokio::test]
async fn aborted_rollout_goes_back_to_the_current_revision() {
    let scope = Bed::shared().await.scope("abort").await;
    let canary = steps(json!([{ "partition": 2 }, { "pause": {} }]));
    let set = Set::new(&scope, "web", 3, canary).await;
    set.image("app:non-exist").await;
    let stuck = |s: &CollaSet| condition(s, "Ready").is_some_and(|c| c.reason == "UpdateFailed");
    set.until("the canary to be stuck", stuck).await;
    command(&set, "abort").await;
    let back = |s: &CollaSet| {
        let stalled = condition(s, "Stalled").filter(|c| c.status == "True");
        let back = stalled.is_some_and(|c| c.message.contains("all Pods are of revision"));
        // The condition names Pods that are back but not available yet before it names the abort.
        let ready = condition(s, "Ready").is_some_and(|c| c.reason == "RolloutAborted");
        back && ready && is_free_of_commands(s)
    };
    let aborted = set.until("the Pods to be back", back).await;
    assert_eq!(set.images().await, ["app:1"; 3]);
    assert_eq!(condition(&aborted, "Ready").unwrap().status, "False");

    set.image("app:3").await;
    set.until("the pause", |s| is_at(s, 2)).await;
    assert_eq!(updated(&set, "app:3").await, 1);
    command(&set, "promote-full").await;
    set.settled().await;
    assert_eq!(updated(&set, "app:3").await, 3);
}

#[tokio::test]
async fn command_without_a_rollout_is_refused_with_an_event() {
    let scope = Bed::shared().await.scope("no-rollout").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    command(&set, "promote").await;
    set.until("the annotation to be removed", is_free_of_commands)
        .await;
    until_event(&scope, "RolloutCommandRefused", "no rollout is under way").await;
}

#[tokio::test]
async fn each_promotion_ends_one_step() {
    let scope = Bed::shared().await.scope("promotions").await;
    let pauses = json!([{ "pause": {} }, { "pause": {} }, { "pause": {} }]);
    let set = Set::new(&scope, "web", 1, steps(pauses)).await;
    set.image("app:2").await;
    for step in 1..=3 {
        // No other event occurs, so the controller must remove the note of the last command by itself.
        set.until("the step", |s| is_at(s, step) && is_free_of_commands(s))
            .await;
        assert_eq!(updated(&set, "app:2").await, 0);
        command(&set, "promote").await;
    }
    set.settled().await;
    assert_eq!(updated(&set, "app:2").await, 1);
    for step in 1..=3 {
        let told_of = format!("at step {step} of 3");
        until_event(&scope, "RolloutPromoted", &told_of).await;
    }
}

#[tokio::test]
async fn command_that_cannot_be_removed_affects_no_later_rollout() {
    let scope = Bed::shared().await.scope("kept-command").await;
    let canary = json!([{ "partition": 3 }, { "pause": {} }, { "partition": 0 }]);
    let set = Set::new(&scope, "web", 4, steps(canary)).await;
    let has = |object: &str| {
        let key = keys::ROLLOUT;
        format!("(has({object}.metadata.annotations) && '{key}' in {object}.metadata.annotations)")
    };
    let passes = format!("!{} || {}", has("oldObject"), has("object"));
    let collasets = ("UPDATE", "apps.kusionstack.io:collasets");
    let policy = Policy::new(&scope, collasets, &passes, "Forbidden").await;
    let is_at_pause = |s: &CollaSet| {
        let update = condition(s, "Update");
        update.is_some_and(|c| c.reason == "StepPaused")
    };
    set.image("app:2").await;
    set.until("the pause", is_at_pause).await;
    command(&set, "promote-full").await;
    set.settled().await;
    until_event(&scope, "RolloutCommandNotRemoved", "annotation").await;
    set.image("app:3").await;
    set.until("the pause", is_at_pause).await;
    assert_eq!(updated(&set, "app:3").await, 1);
    policy.lift().await;
    set.until("the annotation to be removed", is_free_of_commands)
        .await;
}
