//! The mode `write`, with a load balancer that several namespaces share.

use serde_json::{Value, json};
use testbed::slb_double::SlbDouble;
use traffic::{Adapter, AdapterError, Employer};
use traffic_slb::SlbAdapter;

use crate::common::*;

/// A double whose load balancer has these groups.
async fn with_groups(groups: &[&str]) -> SlbDouble {
    let double = double().await;
    for group in groups {
        double.state().add_group("lb-1", group);
    }
    double
}

/// An adapter whose configuration lists these groups for the namespace of the Services, and the others for another one.
fn sharing(double: &SlbDouble, own: Value, others: Value) -> SlbAdapter {
    let list = json!([{
        "id": "lb-1",
        "namespaces": [NAMESPACE, "other"],
        "groups": { NAMESPACE: own, "other": others },
    }]);
    adapter_with(double, "write", json!({ "loadBalancers": list }))
}

async fn is_refused(adapter: &SlbAdapter, service: &Employer, double: &SlbDouble, group: &str) {
    let pods = pods(double, 1);
    let refused = adapter.check(service).unwrap_err();
    let failed = only(register(adapter, service, &pods).await).unwrap_err();
    for error in [refused, failed] {
        let AdapterError::Permanent(text) = error else {
            panic!("{error:?}");
        };
        for part in [group, NAMESPACE, "`loadBalancers[].groups`"] {
            assert!(text.contains(part), "{text}");
        }
    }
    assert_eq!(double.backends(group), []);
}

#[tokio::test]
async fn group_of_another_namespace_gets_no_server() {
    let double = with_groups(&["rsp-a", "rsp-b"]).await;
    let adapter = sharing(&double, json!(["rsp-a"]), json!(["rsp-b", "lb-1"]));
    let theirs = service_with_groups("web", "rsp-a:http,rsp-b:http");
    let pods = pods(&double, 1);
    let error = adapter.check(&theirs).unwrap_err().to_string();
    assert!(
        error.contains("rsp-b") && error.contains("rsp-a"),
        "{error}"
    );
    let applied = register(&adapter, &theirs, &pods).await;
    let (errors, good) = split(&applied);
    assert_eq!((errors.len(), good), (1, 1), "{applied:?}");
    assert_eq!(double.backends("rsp-a").len(), 1);
    is_refused(
        &adapter,
        &service_with_groups("web", "rsp-b:http"),
        &double,
        "rsp-b",
    )
    .await;
    // Without the annotation, a Service names the default group.
    is_refused(&adapter, &service("web"), &double, "lb-1").await;

    let mut other = service("api");
    other.namespace = "other".to_owned();
    adapter.check(&other).unwrap();
    only(register(&adapter, &other, &pods).await).unwrap();
    assert_eq!(double.backends("lb-1").len(), 1);
}

#[tokio::test]
async fn servers_leave_a_group_that_is_not_listed_any_more() {
    let double = with_groups(&["rsp-a", "rsp-b"]).await;
    let pods = pods(&double, 1);
    let before = sharing(&double, json!(["rsp-a", "rsp-b"]), json!(["lb-1"]));
    register(&before, &service_with_groups("web", "rsp-b:http"), &pods).await;
    let after = sharing(&double, json!(["rsp-a"]), json!(["rsp-b"]));
    let service = service_with_groups("web", "rsp-a:http");
    let found = registrations(&after, &service, &pods).await;
    assert_eq!(found.len(), 1, "the server in the former group");
    let changes = traffic::Changes {
        deregister: vec![found[0].member.clone()],
        ..traffic::Changes::default()
    };
    only(after.apply(&service, &changes).await).unwrap();
    assert_eq!(double.backends("rsp-b"), []);
}

#[tokio::test]
async fn annotation_does_not_name_a_load_balancer_as_group() {
    let double = with_groups(&[]).await;
    let adapter = adapter(&double, "write");
    let error = adapter.check(&service_with_groups("web", "lb-1:http"));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("slb-vserver-groups") && error.contains("lb-1"),
        "{error}"
    );
}
