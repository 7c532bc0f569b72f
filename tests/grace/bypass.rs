//! Break-glass under the gate.

use operating::api::keys;
use serde_json::json;

use crate::bed::objects::refusal;
use crate::{UNDERWAY, bed, is_marked, is_terminating, protected};

#[tokio::test]
async fn who_may_bypass_a_full_budget_does_so_at_once_and_where_there_is_room_the_lifecycle_is_the_way()
 {
    let bed = bed().await;
    let reason = json!({"metadata": {"annotations": {keys::BYPASS: "the disk is on fire"}}});
    // The administrator has every verb.
    let full = protected(bed, false).await;
    full.rule("web", json!({"app": "web"}), json!(0)).await;
    full.until_at_rest("web", 1).await;
    full.patch("web", reason.clone()).await.unwrap();
    full.delete("web").await.unwrap();
    let gone = full.get("web").await; // its finalizer keeps it
    assert!(
        is_terminating(&gone) && !is_marked(&gone),
        "{:?}",
        gone.metadata
    );

    let room = protected(bed, true).await;
    room.patch("web", reason).await.unwrap();
    let status = refusal(room.delete("web").await);
    assert!(status.message.contains(UNDERWAY), "{status:?}");
    let waits = room.get("web").await;
    assert!(is_marked(&waits) && !is_terminating(&waits));
}
