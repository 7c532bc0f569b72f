//! The transitions: every step calls the ledger's own functions.

use std::fmt;

use operating::ledger::protocol::ClaimOperation;
use stateright::{Model, Property};

use super::cluster::{History, PODS};
use super::fault::Fault;
use super::state::{Claims, ENDLESS, Mishaps, Phase, Replica, Request, State};

/// The limit holds.
pub const SAFE: &str = "no rule is broken";
/// A closing claim stays closing.
pub const CLOSES: &str = "a closing claim is not written again";
/// No client keeps a claim by repeating a request.
pub const ENDS: &str = "a claim ends although its request is sent again forever";

/// A rule of the model.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The Pods that it covers.
    pub covers: &'static [u8],
    /// How many of them may be unavailable.
    pub max: u32,
}

/// A bounded world, which is explored completely.
#[derive(Clone, Debug)]
pub struct World {
    /// The rules, in UID order.
    pub rules: &'static [Rule],
    /// How many replicas there are.
    pub replicas: usize,
    /// The requests as they are before the first step.
    pub requests: Vec<Request>,
    /// The failures that may happen.
    pub mishaps: Mishaps,
    /// Decision and write of a claim are steps of their own.
    pub split_writes: bool,
    /// Evidence and release are steps of their own.
    pub split_releases: bool,
    /// A deletion removes the object at once, as with grace period 0.
    pub at_once: bool,
    /// The leader adds and removes the availability label.
    pub labels: bool,
    /// The last Pod has the name of the first, and is created once the first is gone.
    pub namesake: bool,
    /// The Pods have two direct owners, and a rollout moves replicas from one to the other.
    pub rollout: bool,
    /// The rule of the protocol that this world lacks.
    pub fault: Option<Fault>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A cache reads the next event.
    Advance { replica: usize },
    /// The storage transaction of a request reads its Pod and calls admission.
    Begin { request: usize },
    /// A replica asks the next rule for a claim.
    Ask { request: usize, replica: usize },
    /// The same as [`Step::Ask`], but the reply about the written claim is lost, and the request asks again.
    AskAndLoseReply { request: usize, replica: usize },
    /// The compare-and-swap of a claim is carried out.
    Write { request: usize },
    /// The eviction handler writes DisruptionTarget.
    Mark { request: usize },
    /// The disruption itself is written, or meets a conflict.
    Commit { request: usize },
    /// The process that handles the request crashes, and the request vanishes.
    Crash { request: usize },
    /// A PodDisruptionBudget, a policy or a quota refuses an admitted request, whose client repeats it forever.
    Refuse { request: usize },
    /// A replica that takes itself for the leader marks a claim as closing.
    Close {
        rule: usize,
        pod: u8,
        operation: ClaimOperation,
    },
    /// The leader removes the availability label from a Pod that is not Ready.
    Unlabel { pod: u8 },
    /// The leader adds the label again.
    Relabel { pod: u8 },
    /// A Pod is created under the name of a deleted Pod.
    Recreate,
    /// The first rule is deleted, and another rule is created under its name.
    Replace,
    /// A replica's watch delivers the rule of that name.
    Learn { replica: usize },
    /// A rollout removes a replica from the old owner.
    Shrink,
    /// A rollout adds a replica to the new owner.
    Grow,
    /// The kubelet reports that it can't make an in-place change now.
    Defer { pod: u8 },
    /// The kubelet reports that it can never make the change.
    Decline { pod: u8 },
    /// The next claim in the list of withdrawals is withdrawn.
    Withdraw { request: usize },
    /// A replica that takes itself for the leader finds evidence for a release.
    Release {
        replica: usize,
        rule: usize,
        pod: u8,
        operation: ClaimOperation,
    },
    /// The same for a request that has ended without effect.
    Lapse {
        replica: usize,
        rule: usize,
        pod: u8,
        operation: ClaimOperation,
    },
    /// A decided release is written.
    Land { replica: usize },
    /// A replica remembers the claims (only in the control that trusts them).
    Remember,
    /// A Pod becomes unready by itself.
    Flap { pod: u8 },
    /// The Pod is Ready again.
    Recover { pod: u8 },
    /// A container crashes and restarts unchanged.
    Restart { pod: u8 },
    /// The kubelet reports the spec as observed, before it acts on the spec.
    Observe { pod: u8 },
    /// The kubelet ends a container whose spec has changed.
    Stop { pod: u8 },
    /// The kubelet has started the container again.
    Start { pod: u8 },
    /// The operation on the Pod ends.
    Finish { pod: u8 },
    /// A Pod becomes managed again.
    Rejoin { pod: u8 },
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, request) in self.requests.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{}{}", request.operation.as_str(), request.pod)?;
            match request.retries {
                0 => {}
                ENDLESS => f.write_str("+…")?,
                retries => write!(f, "+{retries}")?,
            }
        }
        f.write_str(" |")?;
        for Rule { covers, max } in self.rules {
            write!(f, " {max} of {covers:?}")?;
        }
        let Mishaps {
            flaps,
            crashes,
            lost,
            rejoins,
            restarts,
            replaced,
            infeasible,
            deferred,
        } = self.mishaps;
        write!(
            f,
            " | replicas {}, flaps {flaps}, crashes {crashes}, lost {lost}",
            self.replicas
        )?;
        for (is_on, text) in [
            (rejoins > 0, "rejoin"),
            (restarts > 0, "a container crashes"),
            (self.split_writes, "split writes"),
            (self.split_releases, "split releases"),
            (self.at_once, "grace 0"),
            (self.labels, "labels"),
            (self.namesake, "a name used again"),
            (self.rollout, "rollout"),
            (replaced > 0, "a rule replaced"),
            (infeasible > 0, "infeasible"),
            (deferred > 0, "deferred"),
        ] {
            if is_on {
                write!(f, ", {text}")?;
            }
        }
        Ok(())
    }
}

impl World {
    /// Whether the protocol lacks this rule.
    pub fn lacks(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The rules that cover a Pod.
    pub fn covering(&self, pod: u8) -> impl Iterator<Item = usize> {
        self.rules
            .iter()
            .enumerate()
            .filter(move |(_, rule)| rule.covers.contains(&pod))
            .map(|(i, _)| i)
    }

    /// The expected number of Pods of a rule: the number that the user asked for, whatever replicas the direct owners
    /// have at the moment.
    pub fn expected(&self, state: &State, rule: &Rule) -> u32 {
        if self.rollout && self.lacks(Fault::SumOfDirectOwners) {
            return state.owners.iter().copied().map(u32::from).sum();
        }
        u32::try_from(rule.covers.len()).unwrap() - u32::from(self.namesake)
    }

    /// Whether a client repeats a request forever.
    pub fn is_endless(&self) -> bool {
        self.requests.iter().any(Request::is_endless)
    }

    /// Whether a Pod was created again under its name.
    pub fn is_made_again(&self, pods: &[super::cluster::Pod; PODS], pod: u8) -> bool {
        self.namesake && pod == 0 && pods[PODS - 1].exists
    }

    /// Pods of a rule that are unavailable because of a request.
    fn voluntary(&self, state: &State, rule: &Rule) -> usize {
        let pods = state.pods.now();
        rule.covers
            .iter()
            .filter(|pod| pods[usize::from(**pod)].voluntary && !self.is_made_again(pods, **pod))
            .count()
    }

    /// The limit holds.
    fn is_safe(&self, state: &State) -> bool {
        self.rules
            .iter()
            .all(|rule| self.voluntary(state, rule) <= rule.max as usize)
    }

    /// Every change that will make an available Pod unavailable holds a claim by every rule over the Pod.
    fn is_covered(&self, state: &State) -> bool {
        let claimed = |pod: u8, operation| {
            self.covering(pod)
                .all(|rule| state.ledgers[rule].claims.contains_key(&(pod, operation)))
        };
        let admitted = state.requests.iter().all(|request| {
            let Phase::Admitted { only_at, .. } = request.phase else {
                return true;
            };
            let pod = state.pods.now()[usize::from(request.pod)];
            let takes_down =
                pod.is_available() && only_at.is_none_or(|version| version == pod.version);
            !takes_down || claimed(request.pod, request.operation)
        });
        let pods = (0u8..).zip(state.pods.now());
        admitted
            && pods
                .filter(|(_, pod)| pod.is_available() && pod.will_restart())
                .all(|(i, _)| claimed(i, ClaimOperation::InPlace))
    }

    /// If the only possible step is the repetition of a request, no claim is left.
    fn ends(&self, state: &State) -> bool {
        let waits = self.is_endless()
            && state.ledgers.iter().any(|ledger| !ledger.claims.is_empty())
            && state.requests.iter().all(|request| {
                request.phase == Phase::Done
                    || (request.is_endless() && request.phase == Phase::Start)
            });
        !waits || {
            let mut steps = Vec::new();
            self.actions(state, &mut steps);
            steps.into_iter().any(|step| {
                !matches!(step, Step::Begin { .. }) && self.next_state(state, step).is_some()
            })
        }
    }

    /// If no step is possible, no claim is left and no request is stuck.
    fn comes_to_rest(&self, state: &State) -> bool {
        let behind = state
            .replicas
            .iter()
            .any(|replica| replica.position < state.pods.version);
        let at_rest = state.ledgers.iter().all(|ledger| ledger.claims.is_empty())
            && state
                .requests
                .iter()
                .all(|request| request.phase == Phase::Done);
        behind || at_rest || {
            let mut steps = Vec::new();
            self.actions(state, &mut steps);
            steps
                .into_iter()
                .any(|step| self.next_state(state, step).is_some())
        }
    }
}

impl World {
    /// Steps that change rules, names and owners.
    fn beside(&self, state: &State, steps: &mut Vec<Step>) {
        let pods = state.pods.now();
        if self.namesake && !pods[0].exists && !pods[PODS - 1].exists && !pods[PODS - 1].voluntary {
            steps.push(Step::Recreate);
        }
        let idle = state.requests.iter().all(|request| match &request.phase {
            Phase::Start | Phase::Done => request.back.is_empty(),
            Phase::Asking { grants, .. } => grants.is_empty(),
            Phase::Writing { .. } | Phase::Admitted { .. } => false,
        });
        if state.mishaps_left.replaced > 0 && idle && state.ledgers[0].claims.is_empty() {
            steps.push(Step::Replace);
        }
        if self.rollout {
            let [old, new] = state.owners;
            if old > 0 {
                steps.push(Step::Shrink);
            }
            if usize::from(old + new) < self.rules[0].covers.len() {
                steps.push(Step::Grow);
            }
        }
    }

    /// The leader may close the claim of an endless request at any time.
    fn closing_steps(&self, state: &State, steps: &mut Vec<Step>) {
        if self.is_endless() && !self.lacks(Fault::NeverClosing) {
            for (rule, ledger) in state.ledgers.iter().enumerate() {
                let open = ledger.claims.iter().filter(|(_, claim)| !claim.closing);
                steps.extend(open.map(|(&(pod, operation), _)| Step::Close {
                    rule,
                    pod,
                    operation,
                }));
            }
        }
    }

    /// Steps of the kubelet and of users, and failures.
    fn pod_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (pod, p) in (0u8..)
            .zip(state.pods.now())
            .take(PODS)
            .filter(|(_, p)| p.exists && !p.terminating)
        {
            if state.mishaps_left.flaps > 0 && p.is_available() {
                steps.push(Step::Flap { pod });
            }
            if p.starting.is_some() {
                steps.push(Step::Start { pod });
            } else if !p.ready {
                steps.push(Step::Recover { pod });
            }
            let answers = self.mishaps.infeasible + self.mishaps.deferred > 0;
            // In other states this step makes no difference.
            if p.observed != p.spec && (answers || (self.mishaps.restarts > 0 && p.will_restart()))
            {
                steps.push(Step::Observe { pod });
            }
            if self.labels && p.label && !p.ready {
                steps.push(Step::Unlabel { pod });
            }
            if self.labels && !p.label && p.ready {
                steps.push(Step::Relabel { pod });
            }
            if p.will_restart() {
                steps.push(Step::Stop { pod });
                let unanswered = p.observed == p.spec && p.pending.is_none();
                if unanswered && state.mishaps_left.infeasible > 0 {
                    steps.push(Step::Decline { pod });
                }
                if unanswered && state.mishaps_left.deferred > 0 {
                    steps.push(Step::Defer { pod });
                }
                if state.mishaps_left.restarts > 0 && p.is_available() {
                    steps.push(Step::Restart { pod });
                }
            }
            if p.offline {
                steps.push(Step::Finish { pod });
            }
            if p.unmanaged && state.mishaps_left.rejoins > 0 {
                steps.push(Step::Rejoin { pod });
            }
        }
    }
}

/// Steps of the requests in flight.
fn request_steps(state: &State, replicas: &[usize], steps: &mut Vec<Step>) {
    for (i, request) in state.requests.iter().enumerate() {
        match &request.phase {
            // Otherwise the withdrawals of the attempts would accumulate.
            Phase::Start if request.is_endless() && !request.back.is_empty() => {}
            Phase::Start => steps.push(Step::Begin { request: i }),
            Phase::Asking { .. } => {
                for &replica in replicas {
                    steps.push(Step::Ask {
                        request: i,
                        replica,
                    });
                    if state.mishaps_left.lost > 0 {
                        steps.push(Step::AskAndLoseReply {
                            request: i,
                            replica,
                        });
                    }
                }
            }
            Phase::Writing { .. } => steps.push(Step::Write { request: i }),
            Phase::Admitted { marked, .. } => {
                steps.push(Step::Commit { request: i });
                if request.is_endless() && !marked {
                    steps.push(Step::Refuse { request: i });
                }
                if request.operation == ClaimOperation::Evict && !marked {
                    steps.push(Step::Mark { request: i });
                }
            }
            Phase::Done => {}
        }
        let under_way = !matches!(request.phase, Phase::Start | Phase::Done);
        if state.mishaps_left.crashes > 0 && (under_way || !request.back.is_empty()) {
            steps.push(Step::Crash { request: i });
        }
        if !request.back.is_empty() {
            steps.push(Step::Withdraw { request: i });
        }
    }
}

/// Steps of the replicas: they read events and release claims.
fn replica_steps(state: &State, replicas: &[usize], steps: &mut Vec<Step>) {
    for &replica in replicas {
        let r = &state.replicas[replica];
        if r.knows < state.uid {
            steps.push(Step::Learn { replica });
        }
        if r.position < state.pods.version {
            steps.push(Step::Advance { replica });
        }
        if r.release.is_some() {
            steps.push(Step::Land { replica });
            continue;
        }
        for (rule, ledger) in state.ledgers.iter().enumerate() {
            for &(pod, operation) in ledger.claims.keys() {
                steps.push(Step::Release {
                    replica,
                    rule,
                    pod,
                    operation,
                });
                steps.push(Step::Lapse {
                    replica,
                    rule,
                    pod,
                    operation,
                });
            }
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut requests = self.requests.clone();
        for (target, request) in (1..).zip(
            requests
                .iter_mut()
                .filter(|r| r.operation == ClaimOperation::InPlace),
        ) {
            // A world in which the kubelet may not make a change has a change and its reversal.
            let back = self.mishaps.infeasible + self.mishaps.deferred > 0;
            request.target = if back { target % 2 } else { target };
        }
        vec![State {
            pods: History::new(self.namesake),
            ledgers: vec![Claims::default(); self.rules.len()],
            remembered: None,
            replicas: vec![
                Replica {
                    position: 1,
                    knows: 0,
                    release: None
                };
                self.replicas
            ],
            requests,
            mishaps_left: self.mishaps,
            owners: [u8::try_from(self.rules[0].covers.len()).unwrap(), 0],
            uid: 0,
            renewed: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let alike =
            |replica: usize| replica > 0 && state.replicas[replica] == state.replicas[replica - 1];
        let replicas: Vec<usize> = (0..state.replicas.len()).filter(|r| !alike(*r)).collect();
        request_steps(state, &replicas, steps);
        self.closing_steps(state, steps);
        self.beside(state, steps);
        replica_steps(state, &replicas, steps);
        if self.lacks(Fault::TrustCachedClaim) && state.remembered.as_ref() != Some(&state.ledgers)
        {
            steps.push(Step::Remember);
        }
        self.pod_steps(state, steps);
    }
    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step)?;
        // Replicas are interchangeable, and versions that all caches have passed are irrelevant.
        next.replicas.sort_unstable();
        let oldest = next
            .replicas
            .first()
            .map_or(next.pods.version, |replica| replica.position);
        if self.is_endless() {
            next.number_attempts_anew();
        }
        next.pods.forget_before(oldest);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut breakable = vec![
            Property::<Self>::always(SAFE, World::is_safe),
            Property::<Self>::always(CLOSES, |_, state| !state.renewed),
            Property::<Self>::always(ENDS, World::ends),
        ];
        if let Some(fault) = self.fault {
            breakable.retain(|property| property.name == fault.breaks());
            return breakable;
        }
        breakable.extend([
            Property::<Self>::always(
                "every disruption on its way holds its claims",
                World::is_covered,
            ),
            Property::<Self>::always(
                "everything comes to rest without claims",
                World::comes_to_rest,
            ),
        ]);
        breakable
    }
}
