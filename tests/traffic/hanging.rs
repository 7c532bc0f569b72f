//! An endpoint that does not answer has some of the calls, and never those of the Services of other adapters.

use futures::future::join_all;
use testbed::wait;

use crate::bed::alone;
use crate::fixtures::{Employer, managed_by, names, serving};

/// More Services than calls that all adapters together may have under way.
const HANGING: usize = 8;
/// Most calls of one adapter that are under way.
const AT_ONCE: usize = 4;

#[tokio::test]
async fn endpoint_that_hangs_does_not_hold_up_services_of_another_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-hangs").await;
    let (web, set) = serving(&scope, 2).await;
    {
        let mut state = bed.guarded.state();
        (state.hangs, state.most_under_way) = (true, 0);
    }
    let hanging: Vec<_> = (0..HANGING).map(|n| format!("hanging-{n}")).collect();
    let services = hanging
        .iter()
        .map(|name| Employer::new(&scope, name, managed_by("guarded")));
    let services = join_all(services).await;
    wait::until("as many calls as the adapter may have", async || {
        bed.guarded.state().under_way == AT_ONCE
    })
    .await;
    let name = names(&set).await.remove(0);
    scope.begin(&name, "manual").await.unwrap();
    web.marks(&name, (true, false)).await;
    scope.finish(&name, "manual").await.unwrap();
    web.marks(&name, (true, true)).await;
    let (hangs, most) = {
        let state = bed.guarded.state();
        (state.hangs, state.most_under_way)
    };
    bed.guarded.state().hangs = false;
    assert!(hangs);
    assert_eq!(most, AT_ONCE, "the other adapter has calls left");
    for service in services {
        service
            .until("an answer", |report| report.last_error.is_none())
            .await;
    }
}
