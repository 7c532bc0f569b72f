//! While no server answers, GraceDelete holds no deletion that no rule covers.

use kube::ResourceExt;
use testbed::Bed;
use testbed::scope::refusal;

use crate::{GATE, is_marked, is_terminating, protected};

#[tokio::test]
async fn absent_server_holds_no_deletion_without_a_rule() {
    let bed = Bed::own_with(GATE).await;
    let (dead, uninstalled, ruled) = (
        protected(&bed, false).await,
        protected(&bed, false).await,
        protected(&bed, true).await,
    );
    for scope in [&uninstalled, &ruled] {
        refusal(scope.delete("web").await);
    }
    bed.kill_all().await;
    dead.delete("web").await.unwrap();
    let deleted = dead.get("web").await;
    assert!(is_terminating(&deleted) && !is_marked(&deleted));

    let output = bed.operating(&["uninstall", "--yes"]);
    assert!(output.status.success(), "{output:?}");
    for scope in [&uninstalled, &ruled] {
        let pod = scope.get("web").await;
        assert!(!is_terminating(&pod), "{}", pod.name_any());
        scope.delete("web").await.unwrap();
        assert!(is_terminating(&scope.get("web").await));
    }
}
