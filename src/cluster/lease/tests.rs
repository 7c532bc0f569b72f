//! Tests the election against a fake API server. The clock of Tokio is paused, so a wait takes no time.
#![allow(clippy::unwrap_used)]

use jiff::SignedDuration;
use serde_json::{Value, json};
use testbed::api::{FakeApi, Refusal};
use testbed::wait;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kusionstack-system/leases/kusionstack-controller-manager";

/// A candidate whose election runs.
struct Candidate {
    leading: watch::Receiver<bool>,
    leadership: Leadership,
    candidacy: CancellationToken,
    stop: CancellationToken,
    election: JoinHandle<()>,
}

impl Candidate {
    /// Starts a candidate whose controllers end at once after a stop.
    fn start(api: &FakeApi, identity: &str) -> Candidate {
        Candidate::start_with_controllers(api, identity, std::future::ready(()))
    }

    /// Starts a candidate whose controllers end with `ended`.
    fn start_with_controllers(
        api: &FakeApi,
        identity: &str,
        ended: impl Future<Output = ()> + Send + 'static,
    ) -> Candidate {
        let (sender, leading) = watch::channel(false);
        let leadership = Leadership::default();
        let stops = ElectionStops::default();
        let elector = LeaderElector::new(
            api.client(),
            "kusionstack-system",
            identity.to_owned(),
            (sender, leadership.clone()),
            EventRecorder::new(api.client(), Timestamp::now),
        );
        Candidate {
            leading,
            leadership,
            election: tokio::spawn(elector.run(stops.clone(), ended)),
            candidacy: stops.candidacy,
            stop: stops.leadership,
        }
    }

    fn leads(&self) -> bool {
        *self.leading.borrow()
    }

    async fn wait_until_leading(&mut self, leads: bool) {
        let change = self.leading.wait_for(|leading| *leading == leads);
        timeout(Duration::from_secs(600), change)
            .await
            .unwrap()
            .unwrap();
    }

    /// Starts a leader and stops it. Its controllers end when the sender is used.
    async fn stopped_while_controllers_work(api: &FakeApi) -> (Candidate, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel();
        let ended = async { drop(ended.await) };
        let mut candidate = Candidate::start_with_controllers(api, "a", ended);
        candidate.wait_until_leading(true).await;
        candidate.stop.cancel();
        candidate.wait_until_leading(false).await;
        (candidate, end)
    }

    async fn stop(self) {
        self.stop.cancel();
        self.election.await.unwrap();
    }
}

/// How many requests of this method for the Lease were answered.
fn lease_requests(api: &FakeApi, method: &str) -> usize {
    let requests = api.requests();
    let matching = requests
        .iter()
        .filter(|request| request.starts_with(method) && request.contains("/leases"));
    matching.count()
}

/// Stores a Lease of this holder that was renewed `at`.
fn put_lease(api: &FakeApi, holder: &str, at: Timestamp) {
    let lease = json!({
        "metadata": { "name": LEASE_NAME, "namespace": "kusionstack-system", "uid": "lease" },
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "renewTime": at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    api.put(LEASE, lease);
}

/// The spec of the stored Lease.
fn stored_spec(api: &FakeApi) -> Value {
    api.0.lock().objects[LEASE]["spec"].clone()
}

/// Reasons and messages of the recorded Events.
fn events(api: &FakeApi) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let bodies = api.bodies("POST /api/v1/namespaces/kusionstack-system/events");
    let events = bodies
        .iter()
        .map(|event| (text(&event["reason"]), text(&event["message"])));
    events.collect()
}

fn event(reason: &str, message: &str) -> (String, String) {
    (reason.to_owned(), message.to_owned())
}

fn refusal(of: &'static str, code: u16) -> Option<Refusal> {
    Some(Refusal {
        of,
        code,
        message: "refused",
        done: false,
    })
}

fn renewed(at: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some("other".to_owned()),
        lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
        renew_time: Some(MicroTime(at)),
        ..LeaseSpec::default()
    }
}

#[tokio::test(start_paused = true)]
async fn lease_expires_by_the_own_clock_however_the_holders_jumps() {
    for hours in [-1, 0, 1] {
        let mut observed = ObservedRenewal::default();
        let mut at = Timestamp::now() + SignedDuration::from_hours(hours);
        for _ in 0..5 {
            assert!(!observed.is_expired(&renewed(at)), "it is renewed");
            tokio::time::advance(LEASE_DURATION / 2).await;
            assert!(!observed.is_expired(&renewed(at)));
            at -= SignedDuration::from_hours(hours);
            at += SignedDuration::from_secs(1);
        }
        assert!(!observed.is_expired(&renewed(at)));
        tokio::time::advance(LEASE_DURATION + RETRY_PERIOD).await;
        assert!(observed.is_expired(&renewed(at)), "it stood still");
    }
}

#[tokio::test(start_paused = true)]
async fn absent_lease_is_created_and_renewed() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    assert!(candidate.leadership.is_leading());
    let created = stored_spec(&api);
    assert_eq!(created["holderIdentity"], "a");
    assert_eq!(created["leaseDurationSeconds"], 15);
    assert_eq!(created["leaseTransitions"], 0);

    wait::until("ten writes of the Lease", async || {
        lease_requests(&api, "PUT") == 10
    })
    .await;
    let renewed = stored_spec(&api);
    assert_eq!(renewed["acquireTime"], created["acquireTime"]);
    assert_ne!(renewed["renewTime"], created["renewTime"]);
    assert_eq!(renewed["leaseTransitions"], 0);
    assert!(candidate.leads() && candidate.leadership.is_leading());
    assert_eq!(events(&api), [event("LeaderElected", "a leads")]);
}

#[tokio::test(start_paused = true)]
async fn renewed_lease_of_another_is_respected() {
    let api = FakeApi::default();
    let mut at = Timestamp::now();
    put_lease(&api, "b", at);
    let candidate = Candidate::start(&api, "a");
    for _ in 0..30 {
        tokio::time::sleep(RETRY_PERIOD).await;
        at += SignedDuration::from_secs(1);
        put_lease(&api, "b", at);
        assert!(!candidate.leads() && !candidate.leadership.is_leading());
    }
    assert!(api.0.lock().writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn unrenewed_lease_is_taken_whatever_its_times() {
    for hours in [-24, 0, 24] {
        let api = FakeApi::default();
        put_lease(
            &api,
            "b",
            Timestamp::now() + SignedDuration::from_hours(hours),
        );
        let mut candidate = Candidate::start(&api, "a");
        tokio::time::sleep(LEASE_DURATION).await;
        assert!(!candidate.leads(), "{hours} hours");
        candidate.wait_until_leading(true).await;
        let spec = stored_spec(&api);
        assert_eq!(
            (&spec["holderIdentity"], &spec["leaseTransitions"]),
            (&json!("a"), &json!(5))
        );
        wait::until("an Event", async || !events(&api).is_empty()).await;
        let message = "a leads, since b did not renew the lease in time";
        assert_eq!(events(&api), [event("LeaderElected", message)]);
    }
}

#[tokio::test(start_paused = true)]
async fn released_lease_is_taken_by_the_first_attempt() {
    let api = FakeApi::default();
    put_lease(&api, "", Timestamp::now());
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    assert_eq!(
        (lease_requests(&api, "GET"), lease_requests(&api, "PUT")),
        (1, 1)
    );
    assert_eq!(stored_spec(&api)["leaseTransitions"], 5);
    wait::until("an Event", async || !events(&api).is_empty()).await;
    assert_eq!(events(&api), [event("LeaderElected", "a leads")]);
}

#[tokio::test(start_paused = true)]
async fn leader_ends_when_another_holds_the_lease() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    put_lease(&api, "b", Timestamp::now());
    candidate.wait_until_leading(false).await;
    assert!(!candidate.leadership.is_leading());
    assert_eq!(stored_spec(&api)["holderIdentity"], "b");
    wait::until("the second Event", async || events(&api).len() == 2).await;
    let message = "a leads no more: another replica holds the lease";
    assert_eq!(events(&api)[1], event("LeaderLost", message));
}

#[tokio::test(start_paused = true)]
async fn one_of_several_candidates_leads() {
    for _ in 0..20 {
        let api = FakeApi::default();
        api.0.lock().pace = Some(|| [0, 1, 3, 30][rand::random_range(0..4)]);
        let mut candidates = ["a", "b", "c"].map(|identity| Candidate::start(&api, identity));
        wait::until("a leader", async || candidates.iter().any(Candidate::leads)).await;
        tokio::time::sleep(2 * LEASE_DURATION).await;
        let leaders = candidates.iter().filter(|candidate| candidate.leads());
        assert_eq!(leaders.count(), 1);
        let identity = stored_spec(&api)["holderIdentity"].clone();
        let leader = ["a", "b", "c"].iter().position(|i| identity == *i).unwrap();
        assert!(candidates[leader].leads());

        // The others take the Lease as soon as the leader has released it.
        let [first, second, third] = &mut candidates;
        let (stopped, others) = match leader {
            0 => (first, [second, third]),
            1 => (second, [first, third]),
            _ => (third, [first, second]),
        };
        stopped.stop.cancel();
        wait::until("the next leader", async || {
            others.iter().any(|candidate| candidate.leads())
        })
        .await;
        assert!(!stopped.leads());
        tokio::time::sleep(2 * LEASE_DURATION).await;
        assert_eq!(
            others.iter().filter(|candidate| candidate.leads()).count(),
            1
        );
    }
}

#[tokio::test(start_paused = true)]
async fn conflict_while_taking_the_lease_is_no_leadership() {
    for (taken, of) in [(false, "POST /apis/coord"), (true, "PUT /apis/coord")] {
        let api = FakeApi::default();
        if taken {
            put_lease(&api, "", Timestamp::now());
        }
        api.refuse(refusal(of, 409));
        let mut candidate = Candidate::start(&api, "a");
        wait::until("three refused writes of the Lease", async || {
            lease_requests(&api, &of[..4]) >= 3
        })
        .await;
        assert!(!candidate.leads() && !candidate.leadership.is_leading());
        api.refuse(None);
        candidate.wait_until_leading(true).await;
    }
}

/// A user changes an annotation of the Lease between the read and the write of a renewal.
#[tokio::test(start_paused = true)]
async fn conflicting_change_of_metadata_keeps_the_leadership() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    api.0.lock().writing = Duration::from_millis(500);
    let (reads, writes) = (lease_requests(&api, "GET"), lease_requests(&api, "PUT"));
    wait::until("the next read of the Lease", async || {
        lease_requests(&api, "GET") > reads
    })
    .await;
    assert_eq!(lease_requests(&api, "PUT"), writes);
    let mut lease = api.0.lock().objects[LEASE].clone();
    lease["metadata"]["annotations"] = json!({ "note": "by a user" });
    api.put(LEASE, lease);
    candidate.leading.mark_unchanged();
    wait::until("three more writes of the Lease", async || {
        lease_requests(&api, "PUT") >= writes + 3
    })
    .await;
    assert!(!candidate.leading.has_changed().unwrap());
    assert!(candidate.leads() && candidate.leadership.is_leading());
    let lease = api.0.lock().objects[LEASE].clone();
    assert_eq!(lease["metadata"]["annotations"]["note"], "by a user");
}

/// Another candidate takes the Lease between the read and the write of a renewal.
#[tokio::test(start_paused = true)]
async fn conflicting_change_of_holder_ends_the_leadership() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    api.0.lock().writing = Duration::from_millis(500);
    let reads = lease_requests(&api, "GET");
    wait::until("the next read of the Lease", async || {
        lease_requests(&api, "GET") > reads
    })
    .await;
    put_lease(&api, "b", Timestamp::now());
    candidate.wait_until_leading(false).await;
    assert!(!candidate.leadership.is_leading());
    assert_eq!(stored_spec(&api)["holderIdentity"], "b");
}

/// Another candidate takes the Lease, and the API server does not answer the leader's second read.
#[tokio::test(start_paused = true)]
async fn conflict_without_second_answer_ends_the_leadership() {
    let fail_reads = |api: &FakeApi, _: bool| api.refuse(refusal("GET /apis/coord", 503));
    for disturb in [hang, fail_reads] {
        let api = FakeApi::default();
        let mut candidate = Candidate::start(&api, "a");
        candidate.wait_until_leading(true).await;
        api.0.lock().writing = Duration::from_millis(500);
        let reads = lease_requests(&api, "GET");
        wait::until("the next read of the Lease", async || {
            lease_requests(&api, "GET") > reads
        })
        .await;
        put_lease(&api, "b", Timestamp::now());
        let renewed = Instant::now();
        disturb(&api, true);
        candidate.wait_until_leading(false).await;
        assert!(renewed.elapsed() < RENEW_DEADLINE, "not only by expiry");
        assert!(!candidate.leadership.is_leading());
    }
}

fn hang(api: &FakeApi, is_hanging: bool) {
    api.0.lock().is_hanging = is_hanging;
}

fn fail(api: &FakeApi, is_failing: bool) {
    api.refuse(refusal("", 503).filter(|_| is_failing));
}

#[tokio::test(start_paused = true)]
async fn leader_without_answers_ends_and_leads_again_later() {
    for disturb in [hang, fail] {
        let api = FakeApi::default();
        let mut candidate = Candidate::start(&api, "a");
        candidate.wait_until_leading(true).await;
        disturb(&api, true);
        candidate.wait_until_leading(false).await;
        assert!(!candidate.leadership.is_leading());
        tokio::time::sleep(4 * LEASE_DURATION).await;
        assert!(!candidate.leads());
        disturb(&api, false);
        candidate.wait_until_leading(true).await;
        assert!(candidate.leadership.is_leading());
        assert_eq!(stored_spec(&api)["leaseTransitions"], 0, "nobody else led");
    }
}

#[tokio::test(start_paused = true)]
async fn short_outage_keeps_the_leadership() {
    for disturb in [hang, fail] {
        let api = FakeApi::default();
        let mut candidate = Candidate::start(&api, "a");
        candidate.wait_until_leading(true).await;
        candidate.leading.mark_unchanged();
        disturb(&api, true);
        tokio::time::sleep(RETRY_PERIOD).await;
        disturb(&api, false);
        let writes = lease_requests(&api, "PUT");
        wait::until("two more writes of the Lease", async || {
            lease_requests(&api, "PUT") > writes + 1
        })
        .await;
        assert!(!candidate.leading.has_changed().unwrap());
        assert!(candidate.leads() && candidate.leadership.is_leading());
    }
}

/// The leadership ends before another replica may take the Lease, also if the process can't end its own attempt.
#[tokio::test(start_paused = true)]
async fn leadership_ends_before_the_lease_expires_for_others() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    hang(&api, true);
    let mut observer = ObservedRenewal::default();
    let spec: LeaseSpec = serde_json::from_value(stored_spec(&api)).unwrap();
    while !observer.is_expired(&spec) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!candidate.leads() && !candidate.leadership.is_leading());
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_releases_the_lease() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    let (leading, leadership) = (candidate.leading.clone(), candidate.leadership.clone());
    candidate.stop().await;
    assert!(!leadership.is_leading() && !*leading.borrow());
    assert_eq!(stored_spec(&api)["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn ending_replica_does_not_take_an_expired_lease() {
    let api = FakeApi::default();
    put_lease(&api, "b", Timestamp::now());
    let candidate = Candidate::start(&api, "a");
    tokio::time::sleep(LEASE_DURATION).await;
    candidate.candidacy.cancel();
    tokio::time::sleep(2 * LEASE_DURATION).await;
    assert!(!candidate.leads() && !candidate.leadership.is_leading());
    assert_eq!(stored_spec(&api)["holderIdentity"], "b");
    assert!(candidate.election.is_finished());
}

#[tokio::test(start_paused = true)]
async fn ending_leader_leads_until_its_leadership_stops() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    candidate.candidacy.cancel();
    tokio::time::sleep(2 * LEASE_DURATION).await;
    assert!(candidate.leads() && candidate.leadership.is_leading());
    candidate.stop().await;
    assert_eq!(stored_spec(&api)["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn ending_leader_that_lost_lease_does_not_take_it_again() {
    let api = FakeApi::default();
    let mut candidate = Candidate::start(&api, "a");
    candidate.wait_until_leading(true).await;
    candidate.candidacy.cancel();
    put_lease(&api, "b", Timestamp::now());
    candidate.wait_until_leading(false).await;
    tokio::time::sleep(2 * LEASE_DURATION).await;
    assert_eq!(stored_spec(&api)["holderIdentity"], "b");
    assert!(candidate.election.is_finished());
}

#[tokio::test(start_paused = true)]
async fn lease_taken_while_the_replica_begins_to_end_is_released() {
    let api = FakeApi::default();
    put_lease(&api, "", Timestamp::now());
    api.0.lock().writing = Duration::from_secs(1);
    let candidate = Candidate::start(&api, "a");
    wait::until("the first read of the Lease", async || {
        lease_requests(&api, "GET") == 1
    })
    .await;
    candidate.candidacy.cancel();
    wait::until("the end of the election", async || {
        candidate.election.is_finished()
    })
    .await;
    assert!(!*candidate.leading.borrow());
    assert_eq!(lease_requests(&api, "PUT"), 2);
    assert_eq!(stored_spec(&api)["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn lease_is_released_after_the_controllers_ended() {
    let api = FakeApi::default();
    let (candidate, end) = Candidate::stopped_while_controllers_work(&api).await;
    tokio::time::sleep(DRAIN_TIMEOUT / 2).await;
    assert_eq!(stored_spec(&api)["holderIdentity"], "a");
    end.send(()).unwrap();
    candidate.election.await.unwrap();
    assert_eq!(stored_spec(&api)["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn lease_of_working_controllers_is_left_to_expire() {
    let api = FakeApi::default();
    let ended = std::future::pending();
    let mut candidate = Candidate::start_with_controllers(&api, "a", ended);
    candidate.wait_until_leading(true).await;
    candidate.stop().await;
    assert_eq!(stored_spec(&api)["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_leaves_the_lease_of_another() {
    let api = FakeApi::default();
    let (candidate, end) = Candidate::stopped_while_controllers_work(&api).await;
    put_lease(&api, "b", Timestamp::now());
    end.send(()).unwrap();
    candidate.election.await.unwrap();
    assert_eq!(stored_spec(&api)["holderIdentity"], "b");
}

#[tokio::test(start_paused = true)]
async fn stop_ends_although_the_api_server_hangs() {
    for leads in [false, true] {
        let api = FakeApi::default();
        hang(&api, !leads);
        let mut candidate = Candidate::start(&api, "a");
        if leads {
            candidate.wait_until_leading(true).await;
            hang(&api, true);
        }
        tokio::time::sleep(RETRY_PERIOD).await;
        timeout(Duration::from_secs(600), candidate.stop())
            .await
            .unwrap();
    }
}
