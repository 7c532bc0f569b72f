//! The plan drives the adapter through faults: no Pod is protected that gets no requests, none is released that does,
//! and every wait has a reason.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::*;
use serde_json::json;
use testbed::slb_double::{Effect, Existing, Fault, Listener, SlbDouble};
use traffic::plan::{Mark, Memory, Next, PodInput, View, marks, next_call};
use traffic::{Adapter, Employer, Pod};
use traffic_slb::SlbAdapter;

/// Most looks until something must have happened.
const LOOKS: usize = 1000;

/// The plan of an employer. Its clock is a second later with each look, so that pauses end soon.
struct Driver<'a> {
    double: &'a SlbDouble,
    adapter: &'a SlbAdapter,
    service: Employer,
    memory: Memory,
    now: jiff::Timestamp,
}

impl Driver<'_> {
    /// Looks until each Pod that is on is protected, and each that is off is released.
    async fn settle(&mut self, pods: &[Pod]) {
        let mut last = BTreeMap::new();
        for _ in 0..LOOKS {
            last = self.look(pods).await;
            let settled = pods.iter().all(|pod| match &last[&pod.id.uid] {
                Mark::Protect => pod.on,
                Mark::Release => !pod.on,
                Mark::Keep(reason) => {
                    assert!(!reason.is_empty());
                    false
                }
            });
            if settled {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        unreachable!("not settled: {last:?}");
    }

    async fn look(&mut self, pods: &[Pod]) -> BTreeMap<String, Mark> {
        self.now += Duration::from_secs(1);
        let inputs = pods.iter().map(|pod| PodInput {
            pod: pod.clone(),
            selected: true,
            protected: true,
            ..PodInput::default()
        });
        let view = View::new(self.adapter, &self.service, None, inputs.collect());
        self.memory.begin_look(&view, self.now);
        let (mut calls, mut observed) = (0, false);
        loop {
            let next = next_call(&view, &self.memory, calls, observed, self.now);
            if !matches!(next, Next::Wait(_)) {
                self.memory.begin_call(calls == 0, self.now);
            }
            match next {
                Next::Wait(_) => break,
                Next::Observe => {
                    let result = self.adapter.observe(&self.service, pods).await;
                    self.memory.observed(&view, result, self.now, self.now);
                    observed = true;
                }
                Next::Apply(changes) => {
                    let applied = self.adapter.apply(&self.service, &changes).await;
                    self.memory.applied(&view, &changes, applied, self.now);
                }
            }
            calls += 1;
        }
        let marks = marks(&view, &self.memory, self.now);
        for pod in pods {
            let gets_requests = self.gets_requests(pod);
            match &marks[&pod.id.uid] {
                Mark::Protect => assert!(gets_requests, "{} is protected", pod.id.name),
                Mark::Release => assert!(!gets_requests, "{} is released", pod.id.name),
                Mark::Keep(_) => {}
            }
        }
        marks
    }

    fn gets_requests(&self, pod: &Pod) -> bool {
        let address = pod.addresses[0].to_string();
        let backends = self.double.backends("rsp-1");
        let mut of_pod = backends.iter().filter(|backend| backend.ip == address);
        of_pod.any(|backend| backend.weight > 0)
    }
}

async fn with_group() -> SlbDouble {
    let double = double().await;
    double.state().add_group("lb-1", "rsp-1");
    double
        .state()
        .add_listener("lb-1", Listener::tcp(80, Some("rsp-1")));
    double.state().polls_until_healthy = 1;
    double
}

fn turn(pods: &[Pod], index: usize, on: bool) -> Vec<Pod> {
    let mut pods = pods.to_vec();
    pods[index].on = on;
    pods
}

/// Registers three Pods, and turns one off and on while writes have this fault.
async fn turn_through(existing: Existing, effect: Effect, times: usize) {
    let double = with_group().await;
    double.state().existing = existing;
    let pods = pods(&double, 3);
    let adapter = adapter(&double, "write");
    let mut driver = Driver {
        double: &double,
        adapter: &adapter,
        service: service_with_groups("web", "rsp-1:http"),
        memory: Memory::default(),
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    driver.settle(&pods).await;
    let (add, set) = ("AddVServerGroupBackendServers", "SetVServerGroupAttribute");
    assert_eq!(double.count(add), 1, "one call registers all Pods");
    let remove = "RemoveVServerGroupBackendServers";
    for on in [false, true] {
        for action in [add, set, remove] {
            double.fault(Fault::new(effect.clone()).on(action).times(times));
        }
        driver.settle(&turn(&pods, 1, on)).await;
        double.end_faults();
    }
    assert!(double.count(set) > 0, "a member is drained first");
    assert!(double.count(remove) > 0);
    // Pauses bound the calls.
    let writes = [add, set, remove].map(|action| double.count(action));
    assert!(
        writes.iter().all(|count| *count <= 2 * (times + 2)),
        "{writes:?}"
    );
}

fn refuse(status: u16, code: &str) -> Effect {
    Effect::Refuse(status, code.to_owned())
}

#[tokio::test]
async fn plan_settles_although_replies_are_lost() {
    turn_through(Existing::Refused, Effect::LoseReply, 2).await;
}

#[tokio::test]
async fn plan_settles_although_replies_are_lost_and_repetition_is_ignored() {
    turn_through(Existing::Ignored, Effect::LoseReply, 2).await;
}

#[tokio::test]
async fn plan_settles_although_the_load_balancer_is_busy() {
    turn_through(
        Existing::Refused,
        refuse(400, "BackendServer.configuring"),
        3,
    )
    .await;
}

#[tokio::test]
async fn plan_settles_although_the_api_fails() {
    turn_through(Existing::Refused, refuse(500, "InternalError"), 3).await;
}

#[tokio::test]
async fn plan_settles_although_the_api_denies_its_success() {
    let lie = Effect::LieAfter(503, "ServiceUnavailable".to_owned());
    turn_through(Existing::Refused, lie, 2).await;
}

#[tokio::test]
async fn plan_settles_although_the_api_asks_for_fewer_calls() {
    turn_through(Existing::Refused, Effect::Throttle, 1).await;
}

#[tokio::test]
async fn plan_settles_although_reads_are_stale() {
    let double = with_group().await;
    double.state().stale_reads = 2;
    let pods = pods(&double, 2);
    let adapter = adapter(&double, "write");
    let mut driver = Driver {
        double: &double,
        adapter: &adapter,
        service: service_with_groups("web", "rsp-1:http"),
        memory: Memory::default(),
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    driver.settle(&pods).await;
    driver.settle(&turn(&pods, 0, false)).await;
    driver.settle(&pods).await;
    let all_off: Vec<_> = pods.iter().map(off).collect();
    driver.settle(&all_off).await;
}

#[tokio::test]
async fn observed_pods_turn_on_and_off_through_an_outage() {
    let double = with_group().await;
    let pods = vec![pod("a", "10.0.0.1")];
    let adapter = adapter_with(&double, "observe", json!({}));
    let mut driver = Driver {
        double: &double,
        adapter: &adapter,
        service: service("web"),
        memory: Memory::default(),
        now: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    let controller = double.cloud_controller();
    controller.set("rsp-1", &["10.0.0.1".to_owned()], 8080);
    driver.settle(&pods).await;
    let all_off = [off(&pods[0])];
    double.fault(Fault::new(Effect::CutBefore));
    for _ in 0..20 {
        let marks = driver.look(&all_off).await;
        assert!(matches!(&marks["uid-a"], Mark::Keep(reason) if reason.contains("can't be read")));
    }
    double.end_faults();
    for _ in 0..20 {
        let marks = driver.look(&all_off).await;
        assert!(
            matches!(&marks["uid-a"], Mark::Keep(_)),
            "the address is there"
        );
    }
    controller.set("rsp-1", &[], 8080);
    driver.settle(&all_off).await;
}
