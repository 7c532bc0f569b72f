//! Faults of the API: no fault takes a Pod off or opens its gate, and calls are bounded.

use std::time::Duration;

use crate::common::*;
use serde_json::json;
use testbed::slb_double::{Effect, Existing, Fault, Listener, SlbDouble};
use traffic::{Adapter, AdapterError, Applied, Presence};

async fn with_listener() -> SlbDouble {
    let double = double().await;
    double.state().add_listener("lb-1", Listener::tcp(80, None));
    double
}

/// Whether an error says how long to wait, and has the words of the API.
fn is_throttled(error: &AdapterError) -> bool {
    matches!(error, AdapterError::Throttled { text, wait: Some(_) } if text.contains("Throttling.User"))
}

#[tokio::test]
async fn throttling_stops_all_calls_for_a_while() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "observe");
    let services: Vec<_> = (0..10).map(|n| service(&format!("web-{n}"))).collect();
    double.fault(Fault::new(Effect::Throttle));
    for service in &services {
        let error = adapter.observe(service, &pods).await.unwrap_err();
        assert!(is_throttled(&error), "{error}");
    }
    // During a pause, no call is made.
    assert!(double.calls().len() < services.len());
    double.end_faults();
    let service = &services[0];
    while let Err(error) = adapter.observe(service, &pods).await {
        assert!(
            matches!(&error, AdapterError::Throttled { wait: Some(rest), .. } if *rest <= Duration::from_secs(32))
        );
    }
}

#[tokio::test]
async fn throttled_write_is_an_error_of_each_member() {
    let double = with_listener().await;
    let pods = pods(&double, 45);
    let adapter = adapter(&double, "write");
    double.fault(Fault::new(Effect::Throttle).on("AddBackendServers"));
    let applied = register(&adapter, &service("web"), &pods).await;
    let throttled = applied
        .values()
        .filter(|result| result.as_ref().is_err_and(is_throttled));
    assert_eq!(throttled.count(), 45, "{applied:?}");
    assert_eq!(
        double.count("AddBackendServers"),
        1,
        "later batches are not sent"
    );
}

#[tokio::test]
async fn refusal_of_the_caller_stops_later_calls() {
    let double = with_listener().await;
    let pods = pods(&double, 45);
    let adapter = adapter(&double, "write");
    let forbidden = Effect::Refuse(403, "Forbidden.RAM".to_owned());
    double.fault(Fault::new(forbidden).on("AddBackendServers"));
    let applied = register(&adapter, &service("web"), &pods).await;
    let (errors, good) = split(&applied);
    assert_eq!((errors.len(), good), (45, 0));
    assert!(
        errors
            .iter()
            .all(|(_, text)| text.contains("Forbidden.RAM"))
    );
    assert_eq!(double.count("AddBackendServers"), 1);
}

#[tokio::test]
async fn passing_errors_are_transient_and_say_the_code() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &pods).await;
    for (status, code) in [
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (400, "SystemBusy"),
    ] {
        double.fault(Fault::new(Effect::Refuse(status, code.to_owned())));
        let observation = adapter.observe(&service, &pods).await.unwrap();
        // Nothing is concluded about the group.
        assert_eq!(observation.registrations, []);
        let (group, error) = &observation.unreadable_groups[0];
        assert_eq!(group, "lb-1");
        assert!(
            matches!(error, AdapterError::Transient(text) if text.contains(code)),
            "{error}"
        );
        double.end_faults();
    }
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
}

#[tokio::test]
async fn health_that_cannot_be_read_makes_the_group_unreadable() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &pods).await;
    let forbidden = Effect::Refuse(403, "Forbidden.RAM".to_owned());
    double.fault(Fault::new(forbidden).on("DescribeHealthStatus"));
    let observation = adapter.observe(&service, &pods).await.unwrap();
    let error = &observation.unreadable_groups[0].1;
    assert!(
        matches!(error, AdapterError::Permanent(text) if text.contains("DescribeHealthStatus"))
    );
}

/// Checks that nothing is known of any member, and that the error names the call.
fn assert_lost(applied: &Applied, action: &str) {
    assert!(!applied.is_empty());
    for result in applied.values() {
        let Err(AdapterError::Transient(text)) = result else {
            panic!("{result:?}");
        };
        assert!(text.contains(action), "{text}");
    }
}

#[tokio::test]
async fn lost_reply_is_told_with_its_cause_until_members_are_read() {
    let double = with_listener().await;
    let pods = pods(&double, 2);
    let adapter = adapter(&double, "write");
    let service = service("web");
    double.fault(
        Fault::new(Effect::LoseReply)
            .on("AddBackendServers")
            .times(1),
    );
    assert_lost(
        &register(&adapter, &service, &pods).await,
        "AddBackendServers",
    );
    assert_eq!(
        double.count("AddBackendServers"),
        1,
        "a write is not repeated by itself"
    );
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );

    double.fault(
        Fault::new(Effect::LoseReply)
            .on("RemoveBackendServers")
            .times(1),
    );
    assert_lost(
        &deregister(&adapter, &service, &pods).await,
        "RemoveBackendServers",
    );
    assert_eq!(double.backends("lb-1"), []);
    let applied = deregister(&adapter, &service, &pods).await;
    // Whether a server that was added a moment ago is gone is not concluded at once.
    assert!(
        applied
            .values()
            .all(|result| *result == Ok(Presence::Absent))
    );
}

#[tokio::test]
async fn cut_call_that_had_no_effect_is_made_again() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    double.fault(
        Fault::new(Effect::CutBefore)
            .on("AddBackendServers")
            .times(1),
    );
    assert_lost(
        &register(&adapter, &service, &pods).await,
        "AddBackendServers",
    );
    assert_eq!(double.backends("lb-1"), []);
    // The server may have been added, so the Pod is not called absent.
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Pending
    );
    only(register(&adapter, &service, &pods).await).unwrap();
    assert_eq!(double.backends("lb-1").len(), 1);
}

#[tokio::test]
async fn write_that_took_effect_but_was_refused_is_read() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "write");
    let service = service("web");
    let lie = Effect::LieAfter(500, "InternalError".to_owned());
    double.fault(Fault::new(lie).on("AddBackendServers").times(1));
    let error = only(register(&adapter, &service, &pods).await).unwrap_err();
    assert!(matches!(error, AdapterError::Transient(_)), "{error}");
    assert_eq!(
        presence(&adapter, &service, &pods[0]).await,
        Presence::Serving
    );
}

#[tokio::test]
async fn one_refused_server_does_not_stop_the_others() {
    let double = with_listener().await;
    let pods = pods(&double, 20);
    let adapter = adapter(&double, "write");
    let refuse = Effect::Refuse(400, "InvalidParameter.ServerId".to_owned());
    double.fault(
        Fault::new(refuse)
            .on("AddBackendServers")
            .containing("\"10.0.0.7\""),
    );
    let applied = register(&adapter, &service("web"), &pods).await;
    let (errors, good) = split(&applied);
    assert_eq!((errors.len(), good), (1, 19), "{errors:?}");
    assert_eq!(errors[0].0, "10.0.0.7");
    assert!(
        errors[0].1.contains("InvalidParameter.ServerId"),
        "{errors:?}"
    );
    assert_eq!(double.backends("lb-1").len(), 19);
    assert!(
        double.count("AddBackendServers") <= 11,
        "{}",
        double.count("AddBackendServers")
    );
}

#[tokio::test]
async fn calls_are_bounded_if_all_servers_are_refused() {
    let double = with_listener().await;
    let pods = pods(&double, 45);
    let adapter = adapter(&double, "write");
    let refuse = Effect::Refuse(400, "InvalidParameter.ServerId".to_owned());
    double.fault(Fault::new(refuse).on("AddBackendServers"));
    let applied = register(&adapter, &service("web"), &pods).await;
    assert_eq!(split(&applied).0.len(), 45);
    assert!(double.count("AddBackendServers") <= 3 + 2 * 16);
}

#[tokio::test]
async fn server_missing_in_the_answer_is_an_error() {
    let double = with_listener().await;
    let pods = pods(&double, 3);
    let adapter = adapter(&double, "write");
    double.fault(Fault::new(Effect::Skip(1)).on("AddBackendServers").times(1));
    let applied = register(&adapter, &service("web"), &pods).await;
    let (errors, good) = split(&applied);
    assert_eq!((errors.len(), good), (1, 2), "{errors:?}");
    assert_eq!(errors[0].0, "10.0.0.2");
    assert_eq!(
        split(&register(&adapter, &service("web"), &pods).await),
        (vec![], 3)
    );
}

#[tokio::test]
async fn slow_answer_ends_with_an_error() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter_with(&double, "observe", json!({ "callTimeoutSeconds": 1 }));
    double.fault(Fault::new(Effect::Slow(Duration::from_secs(600))));
    let error = adapter.observe(&service("web"), &pods).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Transient(text) if text.contains("time is up")),
        "{error}"
    );
}

#[tokio::test]
async fn unreadable_answer_is_transient() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "observe");
    double.fault(Fault::new(Effect::Garble));
    let error = adapter.observe(&service("web"), &pods).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Transient(text) if text.contains("JSON")),
        "{error}"
    );
}

#[tokio::test]
async fn unreachable_provider_is_transient_and_hides_parameters() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let gone = json!({ "endpoint": "http://127.0.0.1:1" });
    let adapter = adapter_with(&double, "observe", gone);
    let error = adapter.observe(&service("web"), &pods).await.unwrap_err();
    let AdapterError::Transient(text) = error else {
        unreachable!("{error}")
    };
    assert!(text.contains("can't reach the API"), "{text}");
    assert!(!text.contains("LoadBalancerId"), "{text}");
}

#[tokio::test]
async fn outage_concludes_nothing_and_passes() {
    let double = with_listener().await;
    double.state().existing = Existing::Refused;
    let pods = pods(&double, 3);
    let adapter = adapter(&double, "write");
    let service = service("web");
    register(&adapter, &service, &pods).await;
    double.fault(Fault::new(Effect::CutBefore));
    let before = double.calls().len();
    for _ in 0..5 {
        let observation = adapter.observe(&service, &pods).await.unwrap();
        assert_eq!(observation.registrations, []);
        assert_eq!(observation.unreadable_groups.len(), 1);
        // A change fails at the read before it.
        let applied = deregister(&adapter, &service, &pods).await;
        assert_eq!(split(&applied).0.len(), 3);
    }
    // An observation asks for the groups of the load balancer and for one group, a change for the group.
    assert_eq!(double.calls().len() - before, 15);
    double.end_faults();
    assert_eq!(double.backends("lb-1").len(), 3);
    for pod in &pods {
        assert_eq!(presence(&adapter, &service, pod).await, Presence::Serving);
    }
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let double = with_listener().await;
    let other = SlbDouble::start().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "observe");
    double.fault(Fault::new(Effect::Redirect(other.url())));
    let error = adapter.observe(&service("web"), &pods).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Permanent(text) if text.contains("307")),
        "{error}"
    );
    assert!(other.calls().is_empty());
}

#[tokio::test]
async fn huge_answer_is_not_read_to_its_end() {
    let double = with_listener().await;
    let pods = pods(&double, 1);
    let adapter = adapter(&double, "observe");
    double.fault(Fault::new(Effect::Huge(9 * 1024 * 1024)));
    let error = adapter.observe(&service("web"), &pods).await.unwrap_err();
    assert!(
        matches!(&error, AdapterError::Transient(text) if text.contains("larger than")),
        "{error}"
    );
}

#[tokio::test]
async fn only_trusted_certificates_are_accepted() {
    let (double, certificate) = SlbDouble::start_tls().await;
    double.state().add_load_balancer("lb-1");
    let pods = pods(&double, 1);
    let service = service("web");
    let error = adapter(&double, "observe").observe(&service, &pods).await;
    let AdapterError::Transient(text) = error.unwrap_err() else {
        unreachable!()
    };
    assert!(text.contains("certificate"), "{text}");
    assert!(double.calls().is_empty());

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), certificate).unwrap();
    let trusting = adapter_with(&double, "observe", json!({ "caFile": file.path() }));
    assert_eq!(registrations(&trusting, &service, &pods).await, []);
}
