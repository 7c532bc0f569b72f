//! A Service changes while a Pod waits to be off traffic, and the cloud controller is late.

use crate::common::*;
use serde_json::json;
use testbed::slb_double::{Effect, Fault, Listener, SlbDouble};
use traffic::{Adapter, Employer, Pod, Presence};
use traffic_slb::{LOAD_BALANCER, SlbAdapter};

const ADDRESS: &str = "10.0.0.1";

/// A load balancer with a group for the port 80, which has the Pod.
async fn registered() -> (SlbDouble, SlbAdapter) {
    let double = double().await;
    {
        let mut state = double.state();
        state.add_group("lb-1", "rsp-1");
        state.add_listener("lb-1", Listener::tcp(80, Some("rsp-1")));
    }
    register_at(&double, "rsp-1", 8080);
    let adapter = adapter(&double, "observe");
    let serves = presence(&adapter, &service("web"), &pod("a", ADDRESS)).await;
    assert_eq!(serves, Presence::Serving);
    (double, adapter)
}

fn register_at(double: &SlbDouble, group: &str, port: u16) {
    let controller = double.cloud_controller();
    controller.set(group, &[ADDRESS.to_owned()], port);
}

/// The Service with another port.
fn with_port(number: u16, target: serde_json::Value) -> Employer {
    let mut service = service("web");
    service.spec["ports"] = json!([{ "name": "http", "port": number, "targetPort": target }]);
    service
}

/// The Service with another load balancer, which has a listener.
fn moved_to(double: &SlbDouble, id: &str) -> Employer {
    {
        let mut state = double.state();
        state.add_load_balancer(id);
        state.add_listener(id, Listener::tcp(80, None));
    }
    let mut service = service("web");
    service
        .labels
        .insert(LOAD_BALANCER.to_owned(), id.to_owned());
    service
}

fn waiting_pod() -> Pod {
    off(&pod("a", ADDRESS))
}

#[tokio::test]
async fn pod_is_not_off_while_the_listener_of_a_former_port_has_it() {
    let (double, adapter) = registered().await;
    for service in [with_port(81, json!("web")), with_port(81, json!(9090))] {
        let waiting = presence(&adapter, &service, &waiting_pod()).await;
        assert_ne!(waiting, Presence::Absent);
        // It does not serve at the new port.
        let on = presence(&adapter, &service, &pod("a", ADDRESS)).await;
        assert_eq!(on, Presence::Absent);
    }
    double.cloud_controller().set("rsp-1", &[], 8080);
    let service = with_port(81, json!("web"));
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent);
}

#[tokio::test]
async fn former_port_counts_when_listeners_are_read_one_by_one() {
    let (double, adapter) = registered().await;
    double.state().health_rows = 0;
    let service = with_port(81, json!("web"));
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_ne!(waiting, Presence::Absent);
}

/// The other Pod is on the network of the same node, and another Service leads to it.
#[tokio::test]
async fn server_with_the_port_of_another_pod_does_not_hold_a_pod() {
    let (double, adapter) = registered().await;
    {
        let mut state = double.state();
        state.add_group("lb-1", "rsp-other");
        state.add_listener("lb-1", Listener::tcp(9000, Some("rsp-other")));
    }
    double.cloud_controller().set("rsp-1", &[], 8080);
    register_at(&double, "rsp-other", 9000);
    let waiting = presence(&adapter, &service("web"), &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent);
}

#[tokio::test]
async fn pod_is_not_off_while_the_former_load_balancer_has_it() {
    let (double, adapter) = registered().await;
    let service = moved_to(&double, "lb-2");
    let on = presence(&adapter, &service, &pod("a", ADDRESS)).await;
    assert_eq!(on, Presence::Absent, "it does not serve at the new one");
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_ne!(waiting, Presence::Absent);
    double.cloud_controller().set("rsp-1", &[], 8080);
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent);
    // What is empty is not read again.
    let calls = double.calls().len();
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent);
    let later = double.calls().split_off(calls);
    let former = |call: &testbed::slb_double::Call| {
        let mut parameters = call.parameters.iter();
        parameters.any(|(_, value)| value == "lb-1")
    };
    assert!(!later.iter().any(former), "{later:?}");
}

#[tokio::test]
async fn former_load_balancer_that_cannot_be_read_holds_only_pods_that_are_off() {
    let (double, adapter) = registered().await;
    let service = moved_to(&double, "lb-2");
    register_at(&double, "lb-2", 0);
    let refused = Effect::Refuse(403, "Forbidden.RAM".to_owned());
    double.fault(Fault::new(refused).containing("lb-1"));
    let pods = [pod("b", ADDRESS), off(&pod("a", "10.0.0.2"))];
    let observation = adapter.observe(&service, &pods).await.unwrap();
    let serving = observation.registrations.iter();
    let serving: Vec<_> = serving
        .map(|r| (r.member.key.address, &r.presence))
        .collect();
    assert_eq!(serving, [(pods[0].addresses[0], &Presence::Serving)]);
    let unreadable = &observation.unreadable_groups;
    assert!(
        unreadable.len() == 1
            && unreadable[0].0 == "lb-1"
            && unreadable[0].1.to_string().contains("Forbidden.RAM"),
        "{unreadable:?}"
    );
}

#[tokio::test]
async fn former_load_balancer_is_not_read_for_a_service_that_goes() {
    let (double, adapter) = registered().await;
    let mut service = moved_to(&double, "lb-2");
    service.deleting = true;
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent);
    service.deleting = false;
    let waiting = presence(&adapter, &service, &waiting_pod()).await;
    assert_eq!(waiting, Presence::Absent, "it is a new Service");
}
