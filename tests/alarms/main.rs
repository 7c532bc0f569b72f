//! Every alarm of `manifests/monitoring/alarms.yaml` fires when its cause is present, and no other alarm fires. The
//! rule engine of Prometheus evaluates real scrapes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod docs;
mod plant;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use operating::admission::review::Verdict;
use operating::cluster::objects::object_cache::ObjectKey;
use operating::cluster::watch::Source;
use operating::cluster::watches::registration;
use operating::domain::rules::registration::RequiredConfiguration;
use operating::telemetry::logs;
use serde_json::json;
use testbed::wait;

use plant::Plant;

const NONE: [&str; 0] = [];

#[tokio::test]
async fn healthy_server_raises_no_alarm() {
    let plant = Plant::new().await;
    assert_eq!(plant.alarms(30, |_| {}, |_, text| text).await, NONE);
}

#[tokio::test]
async fn series_that_alarms_read_are_there_from_the_start() {
    let plant = Plant::new().await;
    let text = plant.fresh();
    let selectors = docs::selectors();
    assert!(selectors.len() > 20, "{selectors:?}");
    for (metric, labels) in selectors {
        let mut samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(metric.as_str());
            let is_metric = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_metric && labels.iter().all(|label| line.contains(label))
        });
        assert!(samples.next().is_some(), "{metric} {labels:?}");
    }
}

#[tokio::test]
async fn absent_server_raises_alarm() {
    let plant = Plant::new().await;
    let fired = plant.alarms(
        20,
        |_| {},
        |minute, text| {
            if minute < 3 {
                text
            } else {
                "# EOF\n".to_owned()
            }
        },
    );
    assert_eq!(fired.await, ["OperatingAbsent"]);
}

#[tokio::test]
async fn deleted_webhook_configuration_raises_alarm() {
    let plant = Plant::new().await;
    let stored = json!({ "webhooks": [{
        "name": "delete", "failurePolicy": "Fail",
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"] }],
    }] });
    let needed =
        RequiredConfiguration::from_installed("ValidatingWebhookConfiguration", "ours", stored)
            .unwrap();
    let ignore_configuration: registration::ConfigurationObserver = std::sync::Arc::new(|_| {});
    registration::start_registration_watches(
        &plant.client,
        &plant.caches,
        vec![needed],
        &ignore_configuration,
        &plant.supervisor,
    );
    wait::until("the missing registration", async || {
        !plant.caches.registration.is_complete()
    })
    .await;
    let fired = plant.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingNotRegistered"]);
}

#[tokio::test]
async fn stalled_probe_raises_alarm() {
    let plant = Plant::new().await;
    *plant.stalled.lock() = true;
    wait::until("the stalled probe", async || {
        plant
            .sight
            .stalled_probes()
            .iter()
            .any(|(_, stalled)| *stalled)
    })
    .await;
    let fired = plant.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingStalled"]);
}

#[tokio::test]
async fn task_panic_raises_alarm() {
    let plant = Plant::new().await;
    let _ = logs::init_logging(logs::LogLineFormat::Text, "off");
    let panics = |minute| {
        if minute == 3 {
            let _ = catch_unwind(|| panic!("as asked"));
        }
    };
    let fired = plant.alarms(5, panics, |_, text| text).await;
    assert_eq!(fired, ["OperatingPanicked"]);
}

#[tokio::test]
async fn restart_loop_raises_alarm() {
    let plant = Plant::new().await;
    // Another process would have another start time.
    let restarted = |minute: i64, text: String| {
        let lines =
            text.lines().map(
                |line| match line.strip_prefix("process_start_time_seconds ") {
                    Some(_) => format!("process_start_time_seconds {}\n", minute / 5),
                    None => format!("{line}\n"),
                },
            );
        lines.collect()
    };
    let fired = plant.alarms(20, |_| {}, restarted).await;
    assert_eq!(fired, ["OperatingRestarts"]);
}

#[tokio::test]
async fn absent_leader_raises_alarm() {
    let plant = Plant::new().await;
    plant.leading.send_replace(false);
    let fired = plant.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingLeaders"]);
}

#[tokio::test]
async fn silent_watch_raises_alarm() {
    let plant = Plant::at(Timestamp::now, || Instant::now() + Duration::from_secs(301));
    let fired = plant.await.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingWatchSilent"]);
}

#[tokio::test]
async fn cache_behind_ledger_raises_alarm() {
    let plant = Plant::new().await;
    plant.rule(
        "web",
        json!({ "claims": [], "watermark": "100", "attempts": 1 }),
    );
    let fired = plant.alarms(8, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingCacheBehind"]);
}

#[tokio::test]
async fn unreleased_claim_raises_alarm() {
    let plant = Plant::new().await;
    let since = Timestamp::now() - Duration::from_secs(601);
    let claim = |operation: &str| {
        json!({
            "podName": "web-1", "podUID": "uid-1", "operation": operation, "resourceVersion": "5",
            "attempt": 1, "since": since, "until": since,
        })
    };
    let ledger =
        |operation| json!({ "claims": [claim(operation)], "watermark": "0", "attempts": 1 });
    // A deferred resize keeps its claim for as long as it is deferred.
    plant.rule("web", ledger("InPlace"));
    assert_eq!(plant.alarms(10, |_| {}, |_, text| text).await, NONE);
    plant.rule("web", ledger("Delete"));
    let fired = plant.alarms(10, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingClaimStays"]);
}

#[tokio::test]
async fn claims_without_effect_raise_alarm() {
    let plant = Plant::new().await;
    let lapse = |_| plant.count(&plant.ledgers.counters.lapsed);
    let fired = plant.alarms(20, lapse, |_, text| text).await;
    assert_eq!(fired, ["OperatingClaimsLapse"]);
}

#[tokio::test]
async fn denials_independent_of_budget_raise_alarm() {
    let plant = Plant::new().await;
    let behind =
        || Verdict::deny(429, "TooManyRequests", "behind").with_audit("held", "cache-behind");
    let deny = |_| plant.decide(behind);
    let fired = plant.alarms(20, deny, |_, text| text).await;
    assert_eq!(fired, ["OperatingUnsure"]);
    let plant = Plant::again(plant).await;
    let deny = |_| plant.decide(budget_used_up);
    assert_eq!(plant.alarms(20, deny, |_, text| text).await, NONE);
}

fn budget_used_up() -> Verdict {
    Verdict::deny(429, "TooManyRequests", "full").with_audit("held", "budget-used-up")
}

#[tokio::test]
async fn denials_by_budgets_raise_alarm_if_no_request_gets_a_claim() {
    let plant = Plant::new().await;
    let deny = |_| plant.decide(budget_used_up);
    let fired = plant.alarms(50, deny, |_, text| text).await;
    assert_eq!(fired, ["OperatingBudgetDenials"]);
    let plant = Plant::again(plant).await;
    let drain = |minute: i64| {
        plant.decide(budget_used_up);
        if minute % 20 == 0 {
            plant.count(&plant.ledgers.counters.granted);
        }
    };
    assert_eq!(plant.alarms(50, drain, |_, text| text).await, NONE);
}

#[tokio::test]
async fn ledger_that_is_not_stored_raises_alarm() {
    let plant = Plant::new().await;
    let dropped = |_, text: String| {
        let edited = text.replace(
            "\noperating_ledgers_not_stored 0",
            "\noperating_ledgers_not_stored 1",
        );
        assert_ne!(edited, text);
        edited
    };
    let fired = plant.alarms(10, |_| {}, dropped).await;
    assert_eq!(fired, ["OperatingLedgersNotStored"]);
}

#[tokio::test]
async fn failing_endpoints_of_rules_raise_alarm() {
    let plant = Plant::new().await;
    let caller = &plant.endpoint_caller;
    let fail = |_| {
        plant.count(&caller.made);
        plant.count(&caller.failed);
    };
    let fired = plant.alarms(20, fail, |_, text| text).await;
    assert_eq!(fired, ["OperatingRuleCallsFail"]);
    let mostly_succeed = |minute: i64| {
        plant.count(&caller.made);
        if minute % 4 == 0 {
            plant.count(&caller.failed);
        }
    };
    assert_eq!(plant.alarms(40, mostly_succeed, |_, text| text).await, NONE);
}

#[tokio::test]
async fn refused_callers_raise_alarm() {
    let plant = Plant::new().await;
    let refuse = |_| plant.call_by_another_path();
    let fired = plant.alarms(20, refuse, |_, text| text).await;
    assert_eq!(fired, ["OperatingCallersRefused"]);
}

#[tokio::test]
async fn few_refused_callers_raise_alarm_without_other_calls() {
    fn handshake(plant: &Plant) {
        plant.metrics.handshakes_failed.inc();
    }
    let kinds: [fn(&Plant); 2] = [handshake, Plant::call_by_another_path];
    for refuse in kinds {
        let plant = Plant::new().await;
        let some = |minute: i64| {
            if minute % 8 == 7 {
                refuse(&plant);
            }
        };
        let fired = plant.alarms(35, some, |_, text| text).await;
        assert_eq!(fired, ["OperatingCallersRefused"]);
    }
    // Another caller uses a wrong path, while the calls of the API server arrive.
    let plant = Plant::new().await;
    let both = |minute: i64| {
        if minute % 8 == 7 {
            handshake(&plant);
        }
        plant.decide(Verdict::allow);
    };
    assert_eq!(plant.alarms(35, both, |_, text| text).await, NONE);
}

#[tokio::test]
async fn reviews_shed_before_first_scrape_raise_alarm() {
    let plant = Plant::new().await;
    plant.overload();
    let fired = plant.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingOverloaded"]);
    assert_eq!(plant.alarms(20, |_| {}, |_, text| text).await, NONE);
}

#[tokio::test]
async fn shed_reviews_raise_alarm() {
    let plant = Plant::new().await;
    let shed = |_| plant.overload();
    let fired = plant.alarms(20, shed, |_, text| text).await;
    assert_eq!(fired, ["OperatingOverloaded"]);
}

#[tokio::test]
async fn overloaded_controllers_raise_alarm() {
    let plant = Plant::new().await;
    for n in 0..200 {
        plant.rule(&format!("web-{n}"), json!(null));
    }
    let controllers = plant.controllers();
    let depth = || {
        plant
            .work
            .controller_figures()
            .into_iter()
            .map(|f| f.depth)
            .max()
    };
    wait::until("a long work queue", async || depth() > Some(150)).await;
    let fired = plant.alarms(20, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingBacklog"]);
    controllers.abort();
}

#[tokio::test]
async fn failed_api_calls_raise_alarm() {
    let plant = Plant::new().await;
    let call = |_| plant.call_in_vain();
    let fired = plant.alarms(20, call, |_, text| text).await;
    assert_eq!(fired, ["OperatingApiCallsFail"]);
}

#[tokio::test]
async fn throttling_api_server_raises_alarm() {
    let plant = Plant::new().await;
    let call = |_| plant.call(429, true, "too many requests");
    let fired = plant.alarms(20, call, |_, text| text).await;
    assert_eq!(fired, ["OperatingApiCallsFail"]);
}

#[tokio::test]
async fn expected_api_errors_raise_no_alarm() {
    let plant = Plant::new().await;
    let call = |_| {
        plant.call(
            403,
            false,
            "pods \"web-1\" is forbidden: exceeded quota: small",
        );
        // The text comes from the webhook of a tenant.
        plant.call(
            403,
            false,
            "admission webhook \"x\" denied the request: pods is forbidden: User \"operating\" cannot list",
        );
        plant.call(404, false, "pods \"web-1\" not found");
        plant.call(409, false, "the object has been modified");
        plant.call(429, false, "Pod web-1 is held by rule availability");
    };
    assert_eq!(plant.alarms(30, call, |_, text| text).await, NONE);
}

#[tokio::test]
async fn missing_right_raises_alarm() {
    let plant = Plant::new().await;
    let message = "pods \"web-1\" is forbidden: User \"operating\" cannot patch resource \"pods\"";
    let call = |_| plant.call(403, false, message);
    let fired = plant.alarms(20, call, |_, text| text).await;
    assert_eq!(fired, ["OperatingRightsMissing"]);
}

#[tokio::test]
async fn rights_not_yet_loaded_by_api_server_raise_no_alarm() {
    let message = "pods is forbidden: User \"operating\" cannot list resource \"pods\"";
    for minutes in [10, 12, 15] {
        let plant = Plant::new().await;
        let call = |minute| {
            if minute == 3 {
                (0..10).for_each(|_| plant.call(403, false, message));
            }
        };
        assert_eq!(plant.alarms(minutes, call, |_, text| text).await, NONE);
    }
}

#[tokio::test]
async fn unreadable_object_raises_alarm() {
    let plant = Plant::new().await;
    // The counters rise before the first scrape.
    let pods = Source::from_path("/api/v1/pods");
    assert!(plant.caches.unreadable.add(&pods, "web-1"));
    let fired = plant.alarms(5, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingUnreadableObjects"]);
}

#[tokio::test]
async fn stalled_collaset_raises_alarm() {
    let plant = Plant::new().await;
    let set = |name: &str, stalled: &str| {
        let conditions = json!([{ "type": "Ready", "status": "False" }, { "type": "Stalled", "status": stalled }]);
        let set = json!({
            "metadata": { "namespace": "n", "name": name, "uid": name },
            "spec": { "selector": {}, "template": {} }, "status": { "conditions": conditions },
        });
        let key = ObjectKey {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
            version: 8,
            ..ObjectKey::default()
        };
        let set = serde_json::from_value(set).unwrap();
        assert!(plant.caches.objects.sets.apply(key, Some(set)));
    };
    set("web", "False");
    let fired = plant.alarms(20, |_| {}, |_, text| text).await;
    assert_eq!(fired, NONE);
    set("cart", "True");
    let text = plant.fresh();
    for line in [
        "operating_collasets{ready=\"true\"} 0",
        "operating_collasets{ready=\"false\"} 2",
        "operating_collasets_stalled 1",
    ] {
        assert!(text.lines().any(|l| l.starts_with(line)), "{text}");
    }
    let fired = plant.alarms(20, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingCollaSetsStalled"]);
    // A replica that does not lead writes no status, and reports no conditions.
    plant.leading.send_replace(false);
    assert!(plant.fresh().contains("operating_collasets_stalled 0"));
}

#[tokio::test]
async fn failing_load_balancer_raises_alarm_until_a_call_succeeds() {
    let plant = Plant::new().await;
    let count = |outcome| {
        plant
            .traffic
            .counters
            .count_call("edge", "observe", outcome)
    };
    let fail = |_| count("failed");
    let fired = plant.alarms(25, fail, |_, text| text).await;
    assert_eq!(fired, ["OperatingTrafficCallsFail"]);
    // One of several Services whose calls fail is not the load balancer.
    let some = |minute| {
        count("failed");
        if minute % 4 == 0 {
            count("ok");
        }
    };
    assert_eq!(plant.alarms(25, some, |_, text| text).await, NONE);
    let mended = |minute| match minute {
        0..20 => count("throttled"),
        20 => count("ok"),
        _ => {}
    };
    assert_eq!(plant.alarms(22, mended, |_, text| text).await, NONE);
}

#[tokio::test]
async fn failed_service_raises_alarm_until_it_is_corrected() {
    let plant = Plant::new().await;
    let failed = json!({ "adapter": "", "lastError": "no adapter is named \"egde\"" });
    plant.service(7, &failed);
    let fired = plant.alarms(25, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingTrafficFailed"]);
    let figures = plant.fresh();
    assert!(
        figures.contains("operating_traffic_employers{reason=\"Failed\"} 1"),
        "{figures}"
    );
    plant.service(
        8,
        &json!({ "adapter": "edge", "registered": 1, "draining": 1 }),
    );
    assert_eq!(plant.alarms(25, |_| {}, |_, text| text).await, NONE);
}

#[tokio::test]
async fn long_wait_for_traffic_raises_alarm_until_it_ends() {
    let plant = Plant::new().await;
    let finalizer = "prot.podopslifecycle.kusionstack.io/9705eb7ac2c98403";
    plant.deleted_pod(7, 600, &[finalizer]);
    assert_eq!(plant.alarms(10, |_| {}, |_, text| text).await, NONE);
    plant.deleted_pod(8, 1_000, &[finalizer]);
    let fired = plant.alarms(10, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingTrafficWaits"]);
    plant.deleted_pod(9, 1_000, &["example.com/keep"]);
    assert_eq!(plant.alarms(10, |_| {}, |_, text| text).await, NONE);
    // Nobody moves the traffic of Pods while no replica leads; another alarm tells of it.
    plant.deleted_pod(10, 1_000, &[finalizer]);
    plant.leading.send_replace(false);
    let fired = plant.alarms(10, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingLeaders"]);
}

#[tokio::test]
async fn expiring_certificate_raises_alarm() {
    let plant = Plant::new().await;
    plant.certificate(2 * 24);
    let fired = plant.alarms(10, |_| {}, |_, text| text).await;
    assert_eq!(fired, ["OperatingCertificateExpires"]);
}

#[tokio::test]
async fn memory_near_limit_raises_alarm() {
    let plant = Plant::new().await;
    // The test reports 400 MB without using them.
    let grown = |_, text: String| {
        let lines =
            text.lines().map(
                |line| match line.strip_prefix("process_resident_memory_bytes ") {
                    Some(_) => "process_resident_memory_bytes 410000000\n".to_owned(),
                    None => format!("{line}\n"),
                },
            );
        lines.collect()
    };
    let fired = plant.alarms(20, |_| {}, grown).await;
    assert_eq!(fired, ["OperatingMemory"]);
}
