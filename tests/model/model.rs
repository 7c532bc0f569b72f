//! The transitions: every step calls the ledger's own functions.

use std::fmt;

use operating::ledger::protocol::Operation;
use stateright::{Model, Property};

use super::cluster::{History, PODS};
use super::fault::Fault;
use super::state::{Claims, Mishaps, Phase, Replica, Request, State};

/// A rule of the model.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The Pods that it covers.
    pub covers: &'static [u8],
    /// How many of them may be unavailable.
    pub max: u32,
}

/// A bounded world to be explored to its end.
#[derive(Clone, Debug)]
pub struct World {
    /// The rules, in UID order.
    pub rules: &'static [Rule],
    /// How many replicas there are.
    pub replicas: usize,
    /// The requests: what, of which Pod, and how often it begins anew.
    pub requests: &'static [(Operation, u8, u8)],
    /// What may go wrong.
    pub mishaps: Mishaps,
    /// Decision and write of a claim are steps of their own.
    pub split_writes: bool,
    /// Evidence and release are steps of their own.
    pub split_releases: bool,
    /// A deletion takes the object away at once, as with grace period 0.
    pub at_once: bool,
    /// The rule of the protocol that is taken out.
    pub fault: Option<Fault>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A cache reads the next event.
    Advance { replica: usize },
    /// The transaction of a request reads its Pod and calls admission.
    Begin { request: usize },
    /// A replica asks the next rule for a claim.
    Ask { request: usize, replica: usize },
    /// As [`Step::Ask`], but nobody learns that the claim was written; the request asks again.
    AskAndLoseReply { request: usize, replica: usize },
    /// The compare-and-swap of a claim arrives.
    Write { request: usize },
    /// The eviction handler writes DisruptionTarget.
    Mark { request: usize },
    /// The disruption itself is written, or meets a conflict.
    Commit { request: usize },
    /// The request vanishes with whoever carried it.
    Crash { request: usize },
    /// The next claim to be taken back is.
    Withdraw { request: usize },
    /// A replica that takes itself for the leader finds evidence for a release.
    Release {
        replica: usize,
        rule: usize,
        pod: u8,
        operation: Operation,
    },
    /// The same, because the request has ended without the effect.
    Lapse {
        replica: usize,
        rule: usize,
        pod: u8,
        operation: Operation,
    },
    /// A decided release arrives.
    Land { replica: usize },
    /// A replica remembers the claims (only in the control that trusts them).
    Remember,
    /// A Pod becomes unready by itself.
    Flap { pod: u8 },
    /// It is ready again.
    Recover { pod: u8 },
    /// A container crashes and is started again as it was.
    Restart { pod: u8 },
    /// The kubelet says that it has seen the spec, before it acts on it.
    Observe { pod: u8 },
    /// The kubelet ends a container whose spec has changed.
    Stop { pod: u8 },
    /// The kubelet has started it again.
    Start { pod: u8 },
    /// The lifecycle on the Pod ends.
    Finish { pod: u8 },
    /// A Pod that left the management comes back.
    Rejoin { pod: u8 },
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(operation, pod, retries)) in self.requests.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{}{pod}", operation.as_str())?;
            if retries > 0 {
                write!(f, "+{retries}")?;
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
        } = self.mishaps;
        write!(
            f,
            " | replicas {}, flaps {flaps}, crashes {crashes}, lost {lost}",
            self.replicas
        )?;
        for (is, word) in [
            (rejoins > 0, "rejoin"),
            (restarts > 0, "a container crashes"),
            (self.split_writes, "split writes"),
            (self.split_releases, "split releases"),
            (self.at_once, "grace 0"),
        ] {
            if is {
                write!(f, ", {word}")?;
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

    /// Pods of one rule that are down because somebody wanted something of them.
    fn voluntary(&self, state: &State, rule: &Rule) -> usize {
        let pods = state.pods.now();
        rule.covers
            .iter()
            .filter(|pod| pods[usize::from(**pod)].voluntary)
            .count()
    }

    /// The limit holds.
    fn is_safe(&self, state: &State) -> bool {
        self.rules
            .iter()
            .all(|rule| self.voluntary(state, rule) <= rule.max as usize)
    }

    /// Whatever is going to take an available Pod down holds a claim by every rule on the Pod.
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
                .all(|(i, _)| claimed(i, Operation::InPlace))
    }

    /// Where nothing more can happen, no claim is left and no request is stuck.
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

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let request = |&(operation, pod, retries): &(Operation, u8, u8)| Request {
            operation,
            pod,
            target: 0,
            phase: Phase::Start,
            retries,
            back: Vec::new(),
        };
        let mut requests: Vec<_> = self.requests.iter().map(request).collect();
        for (target, request) in (1..).zip(
            requests
                .iter_mut()
                .filter(|r| r.operation == Operation::InPlace),
        ) {
            request.target = target;
        }
        vec![State {
            pods: History::new(),
            ledgers: vec![Claims::default(); self.rules.len()],
            remembered: None,
            replicas: vec![
                Replica {
                    position: 1,
                    release: None
                };
                self.replicas
            ],
            requests,
            left: self.mishaps,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let alike =
            |replica: usize| replica > 0 && state.replicas[replica] == state.replicas[replica - 1];
        let replicas: Vec<usize> = (0..state.replicas.len()).filter(|r| !alike(*r)).collect();
        for (i, request) in state.requests.iter().enumerate() {
            match &request.phase {
                Phase::Start => steps.push(Step::Begin { request: i }),
                Phase::Asking { .. } => {
                    for &replica in &replicas {
                        steps.push(Step::Ask {
                            request: i,
                            replica,
                        });
                        if state.left.lost > 0 {
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
                    if request.operation == Operation::Evict && !marked {
                        steps.push(Step::Mark { request: i });
                    }
                }
                Phase::Done => {}
            }
            let under_way = !matches!(request.phase, Phase::Start | Phase::Done);
            if state.left.crashes > 0 && (under_way || !request.back.is_empty()) {
                steps.push(Step::Crash { request: i });
            }
            if !request.back.is_empty() {
                steps.push(Step::Withdraw { request: i });
            }
        }
        for &replica in &replicas {
            let r = &state.replicas[replica];
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
        if self.lacks(Fault::TrustCachedClaim) && state.remembered.as_ref() != Some(&state.ledgers)
        {
            steps.push(Step::Remember);
        }
        for (pod, p) in (0u8..)
            .zip(state.pods.now())
            .take(PODS)
            .filter(|(_, p)| p.exists && !p.terminating)
        {
            if state.left.flaps > 0 && p.is_available() {
                steps.push(Step::Flap { pod });
            }
            if p.starting.is_some() {
                steps.push(Step::Start { pod });
            } else if !p.ready {
                steps.push(Step::Recover { pod });
            }
            if p.will_restart() {
                steps.push(Step::Stop { pod });
                // Elsewhere neither makes a difference.
                if self.mishaps.restarts > 0 && p.observed != p.spec {
                    steps.push(Step::Observe { pod });
                }
                if state.left.restarts > 0 && p.is_available() {
                    steps.push(Step::Restart { pod });
                }
            }
            if p.offline {
                steps.push(Step::Finish { pod });
            }
            if p.left && state.left.rejoins > 0 {
                steps.push(Step::Rejoin { pod });
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step)?;
        // Replicas are interchangeable, and nobody reads versions that all caches have passed.
        next.replicas.sort_unstable();
        let oldest = next
            .replicas
            .first()
            .map_or(next.pods.version, |replica| replica.position);
        next.pods.forget_before(oldest);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let safe = Property::<Self>::always("no rule is broken", World::is_safe);
        if self.fault.is_some() {
            return vec![safe];
        }
        vec![
            safe,
            Property::<Self>::always(
                "every disruption on its way holds its claims",
                World::is_covered,
            ),
            Property::<Self>::always(
                "everything comes to rest without claims",
                World::comes_to_rest,
            ),
        ]
    }
}
