//! The mode `observe`, against the double of the API.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use serde_json::json;
use testbed::slb_double::Listener;
use traffic::{Adapter, AdapterError, Changes, Control, Presence};

/// What the cloud controller does for the Service: a listener with a group for its port.
fn set_up(double: &testbed::slb_double::SlbDouble) {
    let mut state = double.state();
    state.add_group("lb-1", "rsp-1");
    state.add_listener("lb-1", Listener::tcp(80, Some("rsp-1")));
}

#[tokio::test]
async fn member_serves_once_it_is_healthy_and_leaves_with_its_row() {
    let double = double().await;
    set_up(&double);
    double.state().polls_until_healthy = 1;
    let adapter = adapter(&double, "observe");
    assert_eq!(adapter.settings().control, Control::Observes);
    let (service, pod) = (service("web"), pod("a", "10.0.0.1"));
    assert!(adapter.claims(&service));
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Absent);

    let controller = double.cloud_controller();
    controller.set("rsp-1", &["10.0.0.1".to_owned()], 8080);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Pending);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Serving);
    let health = ("10.0.0.1".to_owned(), "abnormal".to_owned());
    double.state().health.extend([health]);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Pending);

    controller.set("rsp-1", &[], 8080);
    assert_eq!(
        presence(&adapter, &service, &off(&pod)).await,
        Presence::Absent
    );
}

#[tokio::test]
async fn cloud_controller_is_followed() {
    let double = double().await;
    set_up(&double);
    let adapter = adapter(&double, "observe");
    let (service, pod) = (service("web"), pod("a", "10.0.0.1"));
    let wanted = Arc::new(Mutex::new(vec!["10.0.0.1".to_owned()]));
    let list = wanted.clone();
    let controller = double.cloud_controller();
    let delay = Duration::from_millis(100);
    let following = controller.follow("rsp-1".to_owned(), 8080, delay, move || {
        list.lock().unwrap().clone()
    });
    let watching = async {
        while presence(&adapter, &service, &pod).await != Presence::Serving {}
        wanted.lock().unwrap().clear();
        while presence(&adapter, &service, &off(&pod)).await != Presence::Absent {}
    };
    tokio::select! {
        () = following => {},
        () = watching => {},
    }
    assert!(double.backends("rsp-1").is_empty());
}

#[tokio::test]
async fn every_listener_of_the_service_must_have_the_member() {
    let double = double().await;
    set_up(&double);
    {
        let mut state = double.state();
        for (port, group) in [(443, "rsp-2"), (9000, "rsp-other")] {
            state.add_group("lb-1", group);
            state.add_listener("lb-1", Listener::tcp(port, Some(group)));
        }
    }
    let adapter = adapter(&double, "observe");
    let mut service = service("web");
    add_https(&mut service);
    let pod = pod("a", "10.0.0.1");
    let addresses = ["10.0.0.1".to_owned()];
    let controller = double.cloud_controller();
    // The listener 9000 belongs to another Service.
    controller.set("rsp-other", &addresses, 9000);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Absent);
    controller.set("rsp-1", &addresses, 8080);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Pending);
    controller.set("rsp-2", &addresses, 8443);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Serving);
    controller.set("rsp-1", &[], 8080);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Pending);
}

#[tokio::test]
async fn registered_is_serving_if_health_checks_are_off() {
    let double = double().await;
    {
        let mut state = double.state();
        let listener = Listener::tcp(80, None).without_health_check();
        state.add_listener("lb-1", listener);
    }
    let adapter = adapter(&double, "observe");
    let (service, pod) = (service("web"), pod("a", "10.0.0.1"));
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Absent);
    let controller = double.cloud_controller();
    controller.set("lb-1", &["10.0.0.1".to_owned()], 0);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Serving);
}

#[tokio::test]
async fn pods_that_share_an_address_are_told_apart_by_port() {
    let double = double().await;
    set_up(&double);
    let adapter = adapter(&double, "observe");
    let service = service("web");
    let (first, mut second) = (pod("a", "10.0.0.1"), pod("b", "10.0.0.1"));
    second.ports[0].number = 8081;
    let pods = [first.clone(), second.clone()];
    let controller = double.cloud_controller();
    controller.set("rsp-1", &["10.0.0.1".to_owned()], 8080);
    let keys = members(&adapter, &service, &pods);
    let of_first = presence_of(&adapter, &service, &pods, &keys[0].key).await;
    let of_second = presence_of(&adapter, &service, &pods, &keys[1].key).await;
    assert_eq!((of_first, of_second), (Presence::Serving, Presence::Absent));
}

#[tokio::test]
async fn services_with_one_load_balancer_share_calls() {
    let double = double().await;
    set_up(&double);
    let adapter = adapter(&double, "observe");
    let services: Vec<_> = (0..40).map(|n| service(&format!("web-{n}"))).collect();
    let pod = pod("a", "10.0.0.1");
    let controller = double.cloud_controller();
    controller.set("rsp-1", &["10.0.0.1".to_owned()], 8080);
    let observations = services.iter().map(|s| presence(&adapter, s, &pod));
    let presences = futures::future::join_all(observations).await;
    assert!(presences.iter().all(|p| *p == Presence::Serving));
    // The first question starts a read at once; the second read answers all others.
    assert!(
        double.count("DescribeHealthStatus") <= 2,
        "{:?}",
        double.calls()
    );
    assert_eq!(double.count("DescribeLoadBalancerListeners"), 1);
}

#[tokio::test]
async fn too_many_rows_are_read_listener_by_listener() {
    let double = double().await;
    set_up(&double);
    double.state().health_rows = 0;
    let adapter = adapter(&double, "observe");
    let (service, pod) = (service("web"), pod("a", "10.0.0.1"));
    let controller = double.cloud_controller();
    controller.set("rsp-1", &["10.0.0.1".to_owned()], 8080);
    assert_eq!(presence(&adapter, &service, &pod).await, Presence::Serving);
}

#[tokio::test]
async fn missing_load_balancer_is_an_error_unless_the_service_goes() {
    let double = double().await;
    let adapter = adapter(&double, "observe");
    let mut service = service("web");
    service
        .labels
        .insert(traffic_slb::LOAD_BALANCER.to_owned(), "lb-2".to_owned());
    let pods = [off(&pod("a", "10.0.0.1"))];
    let error = adapter.observe(&service, &pods).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Permanent(text) if text.contains("lb-2")),
        "{error}"
    );
    service.deleting = true;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let observation = adapter.observe(&service, &pods).await.unwrap();
    assert_eq!(observation.registrations, []);
}

#[tokio::test]
async fn unlisted_load_balancer_is_never_asked_about() {
    let double = double().await;
    let list = json!({ "loadBalancers": [{ "id": "lb-1", "namespaces": ["other"] }] });
    let adapter = adapter_with(&double, "observe", list);
    let service = service("web");
    let error = adapter.check(&service).unwrap_err().to_string();
    assert!(
        error.contains("loadBalancers") && error.contains(NAMESPACE),
        "{error}"
    );
    adapter
        .observe(&service, &[pod("a", "10.0.0.1")])
        .await
        .unwrap_err();
    assert!(double.calls().is_empty());
}

#[tokio::test]
async fn observing_adapter_changes_nothing() {
    let double = double().await;
    set_up(&double);
    let adapter = adapter(&double, "observe");
    let service = service("web");
    let changes = Changes {
        register: members(&adapter, &service, &[pod("a", "10.0.0.1")]),
        ..Changes::default()
    };
    only(adapter.apply(&service, &changes).await).unwrap_err();
    assert!(double.calls().is_empty());
}

#[tokio::test]
async fn observation_of_no_pods_costs_no_call() {
    let double = double().await;
    let adapter = adapter(&double, "observe");
    assert_eq!(registrations(&adapter, &service("web"), &[]).await, []);
    assert!(double.calls().is_empty());
}
