//! What an adapter implements.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Applied, Changes, Employer, EmployerKind, Member, Pod, Registration};

/// Knows one kind of load balancer.
///
/// `check` and `members` only compute. `observe` and `apply` make calls; a call that takes longer than
/// [`Settings::timeout`] is dropped, so both must be safe to drop and to repeat.
#[async_trait]
pub trait Adapter: Send + Sync + 'static {
    /// How the adapter wants to be driven.
    fn settings(&self) -> Settings;

    /// The kind of objects whose traffic the adapter manages.
    fn employer_kind(&self) -> EmployerKind {
        EmployerKind::service()
    }

    /// What the adapter changes, for example the address of the load balancer. Two adapters with the same text have the
    /// same members: a move from one to the other changes none. Empty: no other adapter has its members.
    fn backend(&self) -> String {
        String::new()
    }

    /// The labels of the Pods that an employer selects. `None` or an empty selector selects no Pod.
    fn selector(&self, employer: &Employer) -> Option<std::collections::BTreeMap<String, String>> {
        let selector = employer.spec.get("selector")?;
        serde_json::from_value(selector.clone()).ok()
    }

    /// Whether the adapter manages this employer although no annotation names the adapter.
    fn claims(&self, _employer: &Employer) -> bool {
        false
    }

    /// Says why the traffic of this employer can't be managed, if so: which field is wrong, and what to do.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`] with the reason. It is shown in the status of the employer.
    fn check(&self, _employer: &Employer) -> Result<(), AdapterError> {
        Ok(())
    }

    /// The members that this Pod should have while it serves. Called for one Pod at a time, so that a faulty Pod does
    /// not stop the others.
    ///
    /// # Errors
    /// [`AdapterError::Permanent`] if the Pod can't be a member, for example because it lacks a port.
    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError>;

    /// Reads what is registered for an employer: members of these Pods, and other members that belong to the employer.
    /// Members that somebody else has registered are left out. It must show every change that [`apply`](Adapter::apply) has
    /// answered before: a Pod may be stopped whose member is not listed.
    ///
    /// # Errors
    /// Any. Nothing is concluded from an observation that failed.
    async fn observe(&self, employer: &Employer, pods: &[Pod])
    -> Result<Observation, AdapterError>;

    /// Makes changes. Never called if the adapter only [observes](Control::Observes).
    async fn apply(&self, employer: &Employer, changes: &Changes) -> Applied;
}

/// What [`Adapter::observe`] read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Registered members. A member that is not listed is absent, unless its group is unreadable.
    pub registrations: Vec<Registration>,
    /// Groups that could not be read, each with the reason. Nothing is concluded about their members.
    pub unreadable_groups: Vec<(String, AdapterError)>,
}

/// Who takes members on and off traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The adapter changes members. It can stop new requests to a member that stays registered: [`Changes::drain`]
    /// comes first, and [`Changes::deregister`] when the drain time has passed or no connection is left.
    Drains,
    /// The adapter changes members, and the load balancer drains a member that is deregistered by itself.
    Deregisters,
    /// Somebody else changes members; the adapter only reads. A member that has left counts as drained after the drain
    /// time.
    Observes,
}

/// How an adapter wants to be driven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who changes members.
    pub control: Control,
    /// Whether `observe` costs no call, because the adapter is told of changes. Then it is called at each look.
    pub observes_for_free: bool,
    /// Most members in each list of [`Changes`].
    pub batch: usize,
    /// How long a member that gets no new requests stays protected. The annotation
    /// `resource-consist.kusionstack.io/drain-seconds` of the employer overrides it. It has no effect with
    /// [`Control::Deregisters`], where the load balancer says when a member is drained.
    pub drain_time: Duration,
    /// Time between two rounds of calls for one employer, so that changes that come together share a call.
    pub round: Duration,
    /// Pause before an open state is read again. It doubles up to `poll_max` while nothing changes.
    pub poll_min: Duration,
    /// Largest pause before an open state, or a failed call, is tried again.
    pub poll_max: Duration,
    /// How often the members of an employer are read although nothing is open. `None`: never.
    pub resync: Option<Duration>,
    /// Time after which a call is dropped.
    pub timeout: Duration,
    /// Most calls in each second, over all employers.
    pub calls_per_second: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            control: Control::Drains,
            observes_for_free: false,
            batch: 20,
            drain_time: Duration::from_secs(15),
            round: Duration::from_secs(1),
            poll_min: Duration::from_millis(500),
            poll_max: Duration::from_secs(10),
            resync: Some(Duration::from_secs(300)),
            timeout: Duration::from_secs(10),
            calls_per_second: 20,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// The load balancer asks for fewer calls. Nothing has changed.
    #[error("the load balancer asks for fewer calls{}: {text}", wait_text(", and to wait", .wait))]
    Throttled {
        /// What the load balancer said.
        text: String,
        /// How long it asks to wait.
        wait: Option<Duration>,
    },
    /// The call was not made, or not accepted, and may succeed when it is repeated. Nothing has changed.
    #[error("{}{text}", absence(.wait))]
    Unavailable {
        /// What the load balancer said, or whoever answered for it.
        text: String,
        /// How long it asks to wait.
        wait: Option<Duration>,
    },
    /// The call may succeed when it is repeated. After [`Adapter::apply`], the change may have been made, or may be made
    /// later: the members are read again, and for twice [`Settings::timeout`] no Pod is released whose registration it was.
    #[error("{0}")]
    Transient(String),
    /// The call can't succeed until somebody changes something.
    #[error("{0}")]
    Permanent(String),
}

/// What comes before the words of a load balancer that asks to wait.
fn absence(wait: &Option<Duration>) -> String {
    match wait {
        Some(_) => format!(
            "the load balancer is not available{}: ",
            wait_text(", and asks to wait", wait)
        ),
        None => String::new(),
    }
}

fn wait_text(asks: &str, wait: &Option<Duration>) -> String {
    match wait {
        Some(wait) => format!("{asks} {} s", wait.as_secs_f64().ceil()),
        None => String::new(),
    }
}
