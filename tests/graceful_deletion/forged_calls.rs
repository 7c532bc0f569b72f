//! GraceDelete deletes Pods with the rights of the server, so only an API server may cause these deletions.

use serde_json::json;
use testbed::review::about;

use crate::{bed, is_marked, is_terminating, protected};

#[tokio::test]
async fn call_without_a_client_certificate_begins_no_deletion() {
    let bed = bed().await;
    if bed.webhook_caller().is_none() {
        return; // the API server of this cluster has no client certificate
    }
    for ruled in [false, true] {
        let scope = protected(bed, ruled).await;
        let pod = scope.get("web").await;
        for (route, operation, subresource) in [
            ("/mutate/evictions", "CREATE", Some("eviction")),
            ("/validate/pods", "DELETE", None),
        ] {
            let request = about(&pod, operation, subresource);
            let refused = bed.forge(route, request).await.unwrap_err();
            assert!(
                matches!(&refused, kube::Error::Api(status) if status.code == 403),
                "{refused:?}"
            );
        }
        let pod = scope.get("web").await;
        assert!(!is_marked(&pod) && !is_terminating(&pod), "{}", json!(pod));
    }
}
