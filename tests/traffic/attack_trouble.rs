//! Attacks: a bad day.
use std::time::{Duration, Instant};

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::bed::{alone, shared};
use crate::fixtures::{Employer, names, serving_by};
use crate::policies::Policy;
use crate::sets::Set;

fn adapter(name: &str) -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } })
}

fn guarded_members(bed: &crate::bed::TrafficBed, ns: &str) -> Vec<String> {
    let state = bed.guarded.state();
    let of = state.members.iter().filter(|(key, _)| key.0 == ns);
    of.map(|(_, m)| m.pod_name.clone()).collect()
}

fn edge_members(bed: &crate::bed::TrafficBed, ns: &str) -> Vec<String> {
    let state = bed.http.state();
    let of = state.members.iter().filter(|(key, _)| key.0 == ns);
    of.map(|(_, m)| format!("{} {:?}", m.pod_name, m.presence))
        .collect()
}

/// The former adapter of a move leaves the configuration before its members are removed. The page: "if it is gone, the
/// report says so, and the move waits".
#[tokio::test]
async fn attack_e_move_waits_for_a_former_adapter_that_is_removed() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-move").await;
    let (web, set) = serving_by(&scope, "guarded", 2).await;
    let pods = names(&set).await;
    bed.http.state().down = true;
    web.edit(adapter("edge")).await;
    web.until("the failure", |r| {
        r.last_error.is_some() && r.adapter == "edge"
    })
    .await;
    println!(
        "E1 in use {:?}",
        web.get()
            .await
            .annotations()
            .get(keys::CONSIST_ADAPTER_IN_USE)
    );
    scope.begin(&pods[0], "manual").await.unwrap();
    bed.roll_out(&["guarded"]).await;
    bed.http.state().down = false;
    sleep(Duration::from_secs(40)).await;
    let in_use = web
        .get()
        .await
        .annotations()
        .get(keys::CONSIST_ADAPTER_IN_USE)
        .cloned();
    let pod = scope.get(&pods[0]).await;
    println!(
        "E1 in use {in_use:?}; report={:?}; still on the former load balancer: {:?}; protected={}; events={:?}",
        web.report().await,
        guarded_members(bed, &scope.namespace),
        web.protects(&pod),
        web.failures().await
    );
    let released = !web.protects(&pod) && guarded_members(bed, &scope.namespace).contains(&pods[0]);
    bed.roll_out(&[]).await;
    sleep(Duration::from_secs(10)).await;
    println!(
        "E1 after its return: {:?} report={:?}",
        guarded_members(bed, &scope.namespace),
        web.report().await
    );
    assert!(
        !released,
        "the Pod is released although its former load balancer sends it requests"
    );
}

/// The annotation of a Pod is damaged by hand.
#[tokio::test]
async fn attack_g_damaged_annotation() {
    let bed = shared().await;
    let scope = bed.bed.scope("atk-damaged").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    scope
        .patch(
            &pods[0],
            json!({ "metadata": { "annotations": { (keys::AVAILABLE_CONDITIONS): "{" } } }),
        )
        .await
        .unwrap();
    sleep(Duration::from_secs(6)).await;
    scope.begin(&pods[0], "manual").await.unwrap();
    sleep(Duration::from_secs(8)).await;
    let pod = scope.get(&pods[0]).await;
    println!(
        "G1 in operation: finalizers={:?} report={:?}",
        pod.finalizers(),
        web.report().await
    );
    scope.finish(&pods[0], "manual").await.unwrap();
    sleep(Duration::from_secs(8)).await;
    let pod = scope.get(&pods[0]).await;
    println!(
        "G1 after: finalizers={:?} available={} report={:?} condition={:?} ann={:?}",
        pod.finalizers(),
        testbed::pods::is_available(&pod),
        web.report().await,
        web.condition().await,
        pod.annotations().get(keys::AVAILABLE_CONDITIONS)
    );
    let why = bed
        .bed
        .operating(&["why", &format!("pod/{}", pods[0]), "-n", &scope.namespace]);
    println!(
        "G1 why: {}{}",
        String::from_utf8_lossy(&why.stdout),
        String::from_utf8_lossy(&why.stderr)
    );
}

/// Reports that can't be written do not delay the Pods.
#[tokio::test]
async fn attack_h_refused_report_does_not_delay() {
    let bed = shared().await;
    let scope = bed.bed.scope("atk-report").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let policy = Policy::new(&scope, ("UPDATE", "services/status"), "false", "Invalid").await;
    let pods = names(&set).await;
    for round in 0..3 {
        let start = Instant::now();
        scope.begin(&pods[0], "manual").await.unwrap();
        web.marks(&pods[0], (true, false)).await;
        let off = start.elapsed();
        scope.finish(&pods[0], "manual").await.unwrap();
        web.marks(&pods[0], (true, true)).await;
        println!(
            "H1 round {round}: off after {off:?}, on after {:?}",
            start.elapsed()
        );
    }
    let leader = bed.bed.leader().await;
    let refused = bed
        .bed
        .log_of(leader)
        .lines()
        .filter(|l| l.contains("write the status of a Service"))
        .count();
    println!("H1 refused reports in the log: {refused}");
    policy.lift().await;
}

/// A move is interrupted, the new adapter leaves the configuration, and the Service is deleted: the former adapter is
/// configured, and can remove its members.
#[tokio::test]
async fn attack_i_deleted_in_a_move_to_an_adapter_that_is_removed() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-move-gone").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| {
        r.last_error.is_some() && r.adapter == "guarded"
    })
    .await;
    println!(
        "I1 in use {:?}",
        web.get()
            .await
            .annotations()
            .get(keys::CONSIST_ADAPTER_IN_USE)
    );
    bed.roll_out(&["guarded"]).await;
    bed.guarded.state().down = false;
    web.until("the error", |r| r.adapter.is_empty()).await;
    web.delete().await;
    web.gone().await;
    let left = edge_members(bed, &scope.namespace);
    println!(
        "I1 left on edge: {left:?} events={:?}",
        web.failures().await
    );
    bed.roll_out(&[]).await;
    assert!(
        left.is_empty(),
        "members of a configured adapter are left: {left:?}"
    );
}

/// As before, but the owner goes back to the former adapter.
#[tokio::test]
async fn attack_i_back_from_a_move_to_an_adapter_that_is_removed() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-move-back").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| {
        r.last_error.is_some() && r.adapter == "guarded"
    })
    .await;
    bed.roll_out(&["guarded"]).await;
    bed.guarded.state().down = false;
    web.until("the error", |r| r.adapter.is_empty()).await;
    web.edit(adapter("edge")).await;
    sleep(Duration::from_secs(3)).await;
    set.edit(json!({ "replicas": 3 })).await;
    sleep(Duration::from_secs(15)).await;
    println!(
        "I2 report={:?} serving={:?}",
        web.report().await,
        bed.http.serving(&scope.namespace)
    );
    for pod in set.pods().await.values() {
        println!(
            "I2 pod {} expected={} protected={} available={}",
            pod.name_any(),
            web.is_expected(pod),
            web.protects(pod),
            testbed::pods::is_available(pod)
        );
    }
    let serving = bed.http.serving(&scope.namespace).len();
    bed.roll_out(&[]).await;
    assert_eq!(serving, 3, "the new Pod gets no traffic");
}

/// The owner leaves an adapter by removing the record, as the page says, and comes back within minutes. In between
/// somebody has removed the members by hand.
#[tokio::test]
async fn attack_j_return_to_an_adapter_reads_first() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-return").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    sleep(Duration::from_secs(26)).await;
    let to = |name: &str| json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name, (keys::CONSIST_ADAPTER_IN_USE): Value::Null } } });
    web.edit(to("guarded")).await;
    web.until("guarded", |r| r.adapter == "guarded" && r.registered == 2)
        .await;
    sleep(Duration::from_secs(1)).await;
    println!(
        "J1 in use {:?}; edge={:?}",
        web.get()
            .await
            .annotations()
            .get(keys::CONSIST_ADAPTER_IN_USE),
        bed.http.serving(&scope.namespace)
    );
    bed.http
        .state()
        .members
        .retain(|key, _| key.0 != scope.namespace);
    web.edit(to("edge")).await;
    web.until("edge", |r| r.adapter == "edge").await;
    sleep(Duration::from_secs(30)).await;
    let serving = bed.http.serving(&scope.namespace);
    let pod = set.pod(0).await;
    println!(
        "J1 report={:?} condition={:?} edge={serving:?} protected={}",
        web.report().await,
        web.condition().await,
        web.protects(&pod)
    );
    assert_eq!(
        serving.len(),
        2,
        "the report says that members serve that do not exist"
    );
}

/// A Pod that could not be registered goes. Its failure goes from the report, too.
#[tokio::test]
async fn attack_k_failure_of_a_pod_that_is_gone_is_forgotten() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-stale").await;
    let web = Employer::new(&scope, "web", crate::fixtures::edge()).await;
    let metadata = json!({ "metadata": { "labels": { "app": "web" } } });
    scope.pod("web-0", metadata.clone()).await;
    web.consistent(1).await;
    bed.http.state().refused_pods = ["web-1".to_owned()].into();
    let pod = scope.pod("web-1", metadata).await;
    web.until("the failure", |r| r.failed == 1).await;
    scope.delete("web-1").await.unwrap();
    scope.until_gone(&pod).await;
    sleep(Duration::from_secs(40)).await;
    let report = web.report().await.unwrap();
    println!("K1 report={report:?} condition={:?}", web.condition().await);
    assert_eq!(report.failed, 0, "the Pod is gone for 40 s");
}

mod clock {
    //! `context.now` follows the clock of the API server: it jumps when another API server answers, or when that clock is set.
    use std::time::Duration;

    use jiff::Timestamp;
    use traffic::plan::{Mark, Memory, Next, PodInput, View, marks, next_call};
    use traffic::*;

    struct Lb;
    #[async_trait::async_trait]
    impl Adapter for Lb {
        fn settings(&self) -> Settings {
            Settings {
                drain_time: Duration::from_secs(600),
                ..Settings::default()
            }
        }
        fn members(&self, _: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
            Ok(vec![Member {
                key: MemberKey {
                    group: String::new(),
                    address: pod.addresses[0],
                    port: 80,
                },
                pod: pod.id.clone(),
                weight: 1,
                attributes: Default::default(),
            }])
        }
        async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
            unreachable!()
        }
        async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
            unreachable!()
        }
    }

    fn view(on: bool) -> View {
        let pod = Pod {
            id: PodId {
                uid: "u".into(),
                name: "web-0".into(),
            },
            addresses: vec!["10.0.0.1".parse().unwrap()],
            on,
            ..Pod::default()
        };
        View::new(
            &Lb,
            &Employer::default(),
            None,
            vec![PodInput {
                pod,
                selected: true,
                protected: true,
                ended: false,
            }],
        )
    }

    fn draining(t0: Timestamp) -> (View, Memory) {
        let at = |s| t0 + Duration::from_secs(s);
        let (view_on, mut memory) = (view(true), Memory::default());
        memory.begin_look(&view_on, at(0));
        memory.begin_call(true, at(0));
        let member = view_on.wanted.values().next().unwrap().clone();
        let observed = |presence| {
            Ok(Observation {
                registrations: vec![Registration {
                    member: member.clone(),
                    presence,
                    connections: None,
                }],
                unreadable_groups: vec![],
            })
        };
        memory.observed(&view_on, observed(Presence::Serving), at(0), at(0));
        let off = view(false);
        memory.begin_look(&off, at(40));
        let Next::Observe = next_call(&off, &memory, 0, false, at(40)) else {
            panic!()
        };
        memory.begin_call(true, at(40));
        memory.observed(&off, observed(Presence::Serving), at(40), at(40));
        let Next::Apply(changes) = next_call(&off, &memory, 1, true, at(40)) else {
            panic!()
        };
        assert_eq!(changes.drain.len(), 1);
        memory.begin_call(false, at(40));
        memory.applied(
            &off,
            &changes,
            [(member.key.clone(), Ok(Presence::Draining { until: None }))].into(),
            at(40),
        );
        memory.begin_call(false, at(41));
        memory.observed(
            &off,
            observed(Presence::Draining { until: None }),
            at(41),
            at(41),
        );
        (off, memory)
    }

    #[test]
    fn attack_l_clock_that_jumps_ahead_ends_no_drain() {
        let t0 = Timestamp::from_second(1_800_000_000).unwrap();
        let (view, memory) = draining(t0);
        // Five seconds later by any clock that does not jump; the clock of the API server is an hour ahead from now on.
        let now = t0 + Duration::from_secs(46 + 3600);
        let mut next = next_call(&view, &memory, 0, false, now);
        if next == Next::Observe {
            println!("L1 reads first");
            next = next_call(
                &view,
                &{
                    let mut m = memory.clone();
                    m.begin_call(true, now);
                    let key = view.planned_keys("u").into_iter().next().unwrap();
                    let member = Member {
                        key,
                        pod: PodId {
                            uid: "u".into(),
                            name: "web-0".into(),
                        },
                        weight: 1,
                        attributes: Default::default(),
                    };
                    m.observed(
                        &view,
                        Ok(Observation {
                            registrations: vec![Registration {
                                member,
                                presence: Presence::Draining { until: None },
                                connections: None,
                            }],
                            unreadable_groups: vec![],
                        }),
                        now,
                        now,
                    );
                    m
                },
                1,
                true,
                now,
            );
        }
        println!("L1 {next:?}");
        assert!(
            matches!(next, Next::Wait(_)),
            "the member is removed after 5 s of 600 s"
        );
    }

    #[test]
    fn attack_l_clock_that_jumps_back_stops_nothing() {
        let t0 = Timestamp::from_second(1_800_000_000).unwrap();
        let (_, mut memory) = draining(t0);
        let now = t0 + Duration::from_secs(46) - Duration::from_secs(3600);
        let on = view(true);
        memory.begin_look(&on, now);
        let next = next_call(&on, &memory, 0, false, now);
        println!("L2 {next:?} marks={:?}", marks(&on, &memory, now));
        let Next::Wait(Some(until)) = next else {
            return;
        };
        assert!(
            until.duration_since(now).as_secs() < 60,
            "the Pod should serve again, and no call is made for {} s",
            until.duration_since(now).as_secs()
        );
        let _ = Mark::Protect;
    }
}

/// The new adapter of a move can't be reached. The page: "The new adapter registers the members first."
#[tokio::test]
async fn attack_n_move_to_a_balancer_that_is_down_takes_nobody_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-move-down").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    bed.guarded.state().down = true;
    web.edit(adapter("guarded")).await;
    web.until("the failure", |r| {
        r.last_error.is_some() && r.adapter == "guarded"
    })
    .await;
    sleep(Duration::from_secs(10)).await;
    let (edge, guarded) = (
        bed.http.serving(&scope.namespace),
        bed.guarded.serving(&scope.namespace),
    );
    println!(
        "N1 serving on edge {edge:?}, on guarded {guarded:?}; report={:?} condition={:?}",
        web.report().await,
        web.condition().await
    );
    bed.guarded.state().down = false;
    web.until("the move", |r| r.adapter == "guarded" && r.registered == 2)
        .await;
    assert_eq!(
        edge, pods,
        "nobody may be taken off before the new load balancer serves"
    );
}

/// A move between two healthy load balancers: at each moment each Pod serves at one of them.
#[tokio::test]
async fn attack_n_healthy_move_has_no_gap() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("atk-move-gap").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    web.edit(adapter("guarded")).await;
    let start = Instant::now();
    let mut gap = Duration::ZERO;
    while start.elapsed() < Duration::from_secs(15) {
        let both =
            bed.http.serving(&scope.namespace).len() + bed.guarded.serving(&scope.namespace).len();
        if both == 0 {
            gap += Duration::from_millis(1);
        }
        sleep(Duration::from_millis(1)).await;
    }
    println!(
        "N2 no load balancer served for at least {gap:?}; edge {:?} guarded {:?}",
        bed.http.serving(&scope.namespace),
        bed.guarded.serving(&scope.namespace)
    );
    assert_eq!(gap, Duration::ZERO);
}
