//! Leader election by a Lease: at most one replica runs the controllers.
//!
//! A process that was paused may act as the leader for a moment after another replica has become the leader. This does
//! no harm to the ledger and to Pods, because their writes are conditional. Other writes of the controller of
//! CollaSets, above all those of volumes, depend on more than the written object. Therefore that controller asks
//! [`Leadership`] before each such write.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::events::EventRecorder;
use super::leadership::Leadership;
use crate::api_request::{self, ApiFailure};

/// Name of the Lease. It is Kuperator's name, so that Kuperator and Operating never lead at the same time.
pub const LEASE_NAME: &str = "kusionstack-controller-manager";
/// A Lease that was not renewed for this long may be taken.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew the Lease for this long stops its controllers.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How long work that has begun may continue after a stop, before the Lease is released.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause between attempts.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Time limit of one attempt: a read and a write of the Lease.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
/// One of this many failures in a row is logged: about one every ten minutes.
const LOG_EVERY: u32 = 300;

/// One candidate of the election.
pub struct LeaderElector {
    leases: Api<Lease>,
    identity: String,
    leading: watch::Sender<bool>,
    tenure: Leadership,
    events: Arc<EventRecorder>,
    /// The object reference of the Lease, with the UID that was read last.
    lease: ObjectReference,
    observed: ObservedRenewal,
    /// The former holder, if this candidate took the Lease after it had expired.
    succeeds: Option<String>,
}

/// The two steps in which a candidate ends.
#[derive(Clone, Debug, Default)]
pub struct ElectionStops {
    /// The replica begins to end. From then on the candidate does not take the Lease. If it leads, it goes on leading.
    pub candidacy: CancellationToken,
    /// The candidate stops leading and releases the Lease.
    pub leadership: CancellationToken,
}

/// The last renewal of the holder that was seen, and when it was seen by this process's own clock. The time of the
/// holder's clock does not matter: clocks may differ by hours.
#[derive(Debug, Default)]
struct ObservedRenewal(Option<(Option<Timestamp>, Option<String>, Instant)>);

impl LeaderElector {
    /// Creates a candidate for the Lease in `namespace`. `identity` must be unique among the replicas. The candidate
    /// reports its state on `leading`, on `tenure`, and by Events about the Lease.
    pub fn new(
        client: Client,
        namespace: &str,
        identity: String,
        (leading, tenure): (watch::Sender<bool>, Leadership),
        events: Arc<EventRecorder>,
    ) -> Self {
        LeaderElector {
            events,
            lease: lease_reference(namespace),
            leases: Api::namespaced(client, namespace),
            identity,
            leading,
            tenure,
            observed: ObservedRenewal::default(),
            succeeds: None,
        }
    }

    /// Tries to lead until the candidacy stops, and leads until the leadership stops. Then releases the Lease when the
    /// work of the leader has `ended`. If this takes too long, the Lease is left to expire.
    pub async fn run(mut self, stops: ElectionStops, ended: impl Future<Output = ()>) {
        let mut renewed = Instant::now();
        let mut failing = 0u32;
        loop {
            let asked = Instant::now();
            if renewed + RENEW_DEADLINE < asked {
                self.set_leading(
                    false,
                    "it stood still and could not renew the lease in time",
                );
            }
            if self.has_withdrawn(&stops) {
                return;
            }
            match self.try_acquire_or_renew().await {
                Ok(true) if self.has_withdrawn(&stops) => {
                    // The replica began to end during this attempt.
                    let _ = timeout(RETRY_PERIOD, self.release_lease()).await; // best effort, as below
                    return;
                }
                Ok(leads) => {
                    renewed = asked;
                    if leads {
                        self.tenure.extend_leadership(asked, RENEW_DEADLINE);
                    }
                    if std::mem::take(&mut failing) > 0 {
                        info!("the lease can be read or renewed again");
                    }
                    self.set_leading(leads, "another replica holds the lease");
                }
                Err(failure) => {
                    if failing.is_multiple_of(LOG_EVERY) {
                        warn!(
                            error = failure.text(),
                            "the lease could not be read or renewed; trying again"
                        );
                    }
                    failing += 1;
                }
            }
            if renewed.elapsed() > RENEW_DEADLINE {
                self.set_leading(false, "it could not renew the lease in time");
            }
            let pause = RETRY_PERIOD.mul_f64(rand::random_range(0.8..1.2));
            let leads = *self.leading.borrow();
            tokio::select! {
                () = stops.leadership.cancelled() => break,
                () = stops.candidacy.cancelled(), if !leads => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        if *self.leading.borrow() {
            self.set_leading(false, "it is ending");
            if timeout(DRAIN_TIMEOUT + RETRY_PERIOD / 4, ended)
                .await
                .is_err()
            {
                warn!(
                    "the controllers have not ended in time, so the lease is not released; it expires by itself"
                );
                return;
            }
            let _ = timeout(RETRY_PERIOD, self.release_lease()).await; // best effort: otherwise the Lease expires
        }
    }

    /// Whether the candidate neither leads nor may take the Lease any more. Taking it now would only make the leader
    /// change twice.
    fn has_withdrawn(&self, stops: &ElectionStops) -> bool {
        stops.candidacy.is_cancelled() && !*self.leading.borrow()
    }

    /// Publishes whether this candidate leads. `lost` is the reason if it does not.
    fn set_leading(&self, leads: bool, lost: &str) {
        if !leads {
            self.tenure.end_leadership();
        }
        self.leading.send_if_modified(|now| {
            let changed = *now != leads;
            if changed {
                info!(identity = %self.identity, leads, "leadership changed");
                self.record_leadership_event(leads, lost);
            }
            *now = leads;
            changed
        });
    }

    fn record_leadership_event(&self, leads: bool, lost: &str) {
        let identity = &self.identity;
        if leads {
            let former = self.succeeds.as_ref();
            let former = former.map(|it| format!(", since {it} did not renew the lease in time"));
            let text = format!("{identity} leads{}", former.unwrap_or_default());
            self.events
                .record_event(&self.lease, false, "LeaderElected", &text);
        } else {
            let text = format!("{identity} leads no more: {lost}");
            self.events
                .record_event(&self.lease, true, "LeaderLost", &text);
        }
    }

    /// Tries to take or renew the Lease. Returns whether this candidate leads afterwards.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, ApiFailure> {
        match api_request::within(ATTEMPT_TIMEOUT, self.try_once()).await {
            Err(failure) if failure.code() == Some(409) => {
                // Another candidate was faster, or a user has changed the metadata of the Lease. A leader finds out by
                // another read. Without an answer, another candidate may hold the Lease.
                let leads = *self.leading.borrow();
                Ok(leads
                    && api_request::within(ATTEMPT_TIMEOUT, self.try_once())
                        .await
                        .unwrap_or(false))
            }
            outcome => outcome,
        }
    }

    /// Reads the Lease, and writes it if this candidate may hold it. Returns whether this candidate leads afterwards.
    async fn try_once(&mut self) -> Result<bool, Error> {
        let params = PostParams::default();
        let Some(lease) = self.leases.get_opt(LEASE_NAME).await? else {
            let lease = self.with_own_holder(Lease::default(), 0);
            self.leases.create(&params, &lease).await?;
            return Ok(true);
        };
        self.lease.uid.clone_from(&lease.metadata.uid);
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().filter(|h| !h.is_empty());
        let transitions = spec.lease_transitions.unwrap_or(0);
        let lease = if holder.as_deref() == Some(&self.identity) {
            self.succeeds = None;
            self.with_own_holder(lease, transitions)
        } else if holder.is_some() && !self.observed.is_expired(&spec) {
            return Ok(false);
        } else {
            self.succeeds = holder;
            self.with_own_holder(lease, transitions + 1)
        };
        self.leases.replace(LEASE_NAME, &params, &lease).await?;
        Ok(true)
    }

    fn with_own_holder(&self, lease: Lease, transitions: i32) -> Lease {
        let before = lease.spec.unwrap_or_default();
        let now = MicroTime(Timestamp::now());
        let mine = before.holder_identity.as_deref() == Some(&self.identity);
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE_NAME.into()),
                ..lease.metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                acquire_time: if mine {
                    before.acquire_time
                } else {
                    Some(now.clone())
                },
                renew_time: Some(now),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }

    async fn release_lease(&self) -> Result<(), Error> {
        let Some(mut lease) = self.leases.get_opt(LEASE_NAME).await? else {
            return Ok(());
        };
        if let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_deref() == Some(&self.identity))
        {
            spec.holder_identity = Some(String::new());
            self.leases
                .replace(LEASE_NAME, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }
}

impl ObservedRenewal {
    /// Whether the holder has not renewed for longer than the duration of the Lease, by this process's own clock.
    fn is_expired(&mut self, spec: &LeaseSpec) -> bool {
        let seen = (
            spec.renew_time.as_ref().map(|t| t.0),
            spec.holder_identity.clone(),
        );
        match &self.0 {
            Some((renewal, holder, since)) if (renewal, holder) == (&seen.0, &seen.1) => {
                let duration = spec
                    .lease_duration_seconds
                    .and_then(|s| u64::try_from(s).ok());
                since.elapsed() > duration.map_or(LEASE_DURATION, Duration::from_secs)
            }
            _ => {
                self.0 = Some((seen.0, seen.1, Instant::now()));
                false
            }
        }
    }
}

/// The object reference of an Event about the Lease.
fn lease_reference(namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(LEASE_NAME.to_owned()),
        ..ObjectReference::default()
    }
}
