//! The possible steps of a state, and their effects.

use super::arithmetic::{Ask, Claim, GROUPS, Operation, Place};
use super::cluster::Is;
use super::fault::Fault;
use super::model::{Step, World};
use super::state::{Phase, Request, State};

impl World {
    /// Steps of replicas.
    pub fn actions_of_replicas(&self, state: &State, actions: &mut Vec<Step>) {
        for (cache, position) in state.caches.iter().enumerate() {
            if cache > 0 && state.caches[cache - 1] == *position {
                continue; // replicas at one position do the same
            }
            if *position < state.now().version {
                actions.push(Step::Advance { cache });
            }
            for (request, asked) in state.requests.iter().enumerate() {
                if asked.phase == Phase::Start {
                    actions.push(Step::Ask { request, cache });
                    if state.mishaps_left.lost > 0 {
                        actions.push(Step::AskAndLoseReply { request, cache });
                    }
                }
            }
            let claims = state.ledger.claims.keys();
            actions.extend(claims.map(|key| Step::Release { key: *key, cache }));
            actions.extend((0..GROUPS as u8).map(|group| Step::End { group, cache }));
        }
        actions.extend(
            state
                .ledger
                .claims
                .keys()
                .map(|key| Step::Lapse { key: *key }),
        );
    }

    /// Steps of requests in flight.
    pub fn actions_of_requests(&self, state: &State, actions: &mut Vec<Step>) {
        for (request, asked) in state.requests.iter().enumerate() {
            match asked.phase {
                Phase::Start if asked.may_wait => actions.push(Step::Turn { request }),
                Phase::Writing { .. } => actions.push(Step::Write { request }),
                Phase::Admitted { .. } => actions.push(Step::Commit { request }),
                Phase::Start | Phase::Done => {}
            }
            let is_under_way = !matches!(asked.phase, Phase::Start | Phase::Done);
            if is_under_way && state.mishaps_left.crashes > 0 {
                actions.push(Step::Crash { request });
            }
        }
        actions.push(Step::TurnLapses);
    }

    /// Steps of Pods.
    pub fn actions_of_pods(&self, state: &State, actions: &mut Vec<Step>) {
        for (slot, own) in self.slots.iter().enumerate() {
            let pod = &state.now().pods[slot];
            match pod.is {
                Is::Gone if !own.extra || state.mishaps_left.surges > 0 => {
                    actions.push(Step::Make { slot });
                }
                Is::Pending if self.pinned || own.zone.is_none() => {
                    actions.push(Step::Bind {
                        slot,
                        zone: own.zone,
                    });
                }
                Is::Pending => {
                    let zone = |zone| Step::Bind {
                        slot,
                        zone: Some(zone),
                    };
                    actions.extend((0..2).map(zone));
                }
                Is::Up => {
                    if state.mishaps_left.failures > 0 {
                        actions.push(Step::Fail { slot });
                    }
                    if state.mishaps_left.relabels > 0 {
                        actions.extend((0..2).map(|zone| Step::Relabel { slot, zone }));
                    }
                }
                Is::Failed => {
                    if !self.stays_failed {
                        actions.push(Step::Rise { slot });
                    }
                    if state.mishaps_left.vanished > 0 {
                        actions.push(Step::Vanish { slot });
                    }
                }
                Is::Starting | Is::Offline => actions.push(Step::Rise { slot }),
                Is::Terminating => actions.push(Step::Finish { slot }),
                Is::Gone => {}
            }
        }
    }

    /// Takes a step; `None` if it changes nothing.
    pub fn take(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Advance { cache } => {
                let position = state.caches[cache];
                let later = state.history.iter().find(|s| s.version > position)?;
                state.caches[cache] = later.version;
            }
            Step::Ask { request, cache } => self.ask(state, request, cache)?,
            Step::AskAndLoseReply { request, cache } => {
                self.ask(state, request, cache)?;
                state.mishaps_left.lost -= 1;
                state.requests[request].again();
            }
            Step::Write { request } => {
                let phase = state.requests[request].phase.clone();
                let Phase::Writing { key, base, next } = phase else {
                    return None;
                };
                if base != state.ledger && !self.lacks(Fault::NoCompareAndSwap) {
                    state.requests[request].phase = Phase::Start;
                    return Some(());
                }
                state.ledger = next;
                state.requests[request].phase = admitted(key);
            }
            Step::Commit { request } => self.commit(state, request)?,
            Step::Crash { request } => {
                state.mishaps_left.crashes -= 1;
                state.requests[request].phase = Phase::Done;
            }
            Step::Release { .. } | Step::Lapse { .. } => self.release(state, step)?,
            Step::End { group, cache } => {
                let position = state.caches[cache];
                let pods = *state.at(position);
                let ends = state.ledger.end(&self.view(&pods, position), group);
                if !ends || self.lacks(Fault::WindowNeverEnds) {
                    return None;
                }
            }
            Step::Turn { request } => self.turn(state, request)?,
            Step::TurnLapses => {
                state.ledger.turn.take()?;
                if self.lacks(Fault::TurnNeverLapses) {
                    return None;
                }
            }
            _ => self.change(state, step)?,
        }
        Some(())
    }

    fn ask(&self, state: &mut State, request: usize, cache: usize) -> Option<()> {
        let asked = state.requests[request].clone();
        let slot = usize::from(asked.slot);
        let pod = state.now().pods[slot];
        let key = (asked.slot, pod.uid, asked.operation);
        match pod.is {
            Is::Up => {}
            Is::Failed | Is::Starting if asked.operation != Operation::Begin => {
                let only_at = Some(pod.version);
                state.requests[request].phase = Phase::Admitted { key, only_at };
                return Some(());
            }
            _ => {
                state.requests[request].phase = Phase::Done;
                return Some(());
            }
        }
        let position = state.caches[cache];
        let pods = *state.at(position);
        let view = self.view(&pods, position);
        let live = self.view(&state.now().pods, state.now().version);
        let claim = Claim {
            at: pod.version,
            group: self.slots[slot].group,
        };
        let place = live.place(slot);
        let is_new = !state.ledger.claims.contains_key(&key);
        let turn = state.ledger.turn;
        let mut next = state.ledger.clone();
        if !next.admit(&view, Ask { key, place, claim }) {
            return None;
        }
        let group = claim.group;
        state.blind |= self.is_lost_elsewhere(&pods, group, place);
        state.jumped |= is_new && turn.is_some_and(|(of, next)| of == group && next != place);
        state.requests[request].phase = if self.split_writes {
            let base = std::mem::take(&mut state.ledger);
            state.ledger = base.clone();
            Phase::Writing { key, base, next }
        } else {
            state.ledger = next;
            admitted(key)
        };
        Some(())
    }

    fn commit(&self, state: &mut State, request: usize) -> Option<()> {
        let Phase::Admitted { key, only_at } = state.requests[request].phase else {
            return None;
        };
        let slot = usize::from(key.0);
        let pod = state.now().pods[slot];
        let at = only_at.or_else(|| {
            let claim = state.ledger.claims.get(&key);
            claim
                .filter(|_| key.2 != Operation::Evict)
                .map(|claim| claim.at)
        });
        let conditional = only_at.is_some() || key.2 != Operation::Evict;
        let is_met = pod.uid == key.1
            && !matches!(pod.is, Is::Gone | Is::Terminating)
            && (!conditional || at == Some(pod.version));
        if !is_met {
            state.requests[request].again();
            return Some(());
        }
        state.requests[request].phase = Phase::Done;
        let becomes = match key.2 {
            Operation::Begin => Is::Offline,
            Operation::Delete | Operation::Evict if self.slow => Is::Terminating,
            Operation::Delete | Operation::Evict => Is::Gone,
        };
        if pod.is == Is::Up {
            state.lost[slot] = Some(pod.zone.map_or(Place::Alone(key.0), Place::Zone));
        }
        self.change_pod(state, slot, becomes);
        Some(())
    }

    fn release(&self, state: &mut State, step: Step) -> Option<()> {
        let (key, position) = match step {
            Step::Release { key, cache } => (key, state.caches[cache]),
            Step::Lapse { key } => (key, state.now().version),
            _ => return None,
        };
        if position < state.ledger.watermark {
            return None;
        }
        let claim = state.ledger.claims.get(&key)?;
        let pod = state.at(position)[usize::from(key.0)];
        let is_gone = pod.uid != key.1 && pod.version > claim.at
            || pod.uid == key.1 && matches!(pod.is, Is::Gone | Is::Terminating);
        let is_newer = pod.version > claim.at && key.2 != Operation::Evict;
        if matches!(step, Step::Lapse { .. }) {
            let uses = |request: &Request| match &request.phase {
                Phase::Admitted { key: of, only_at } => *of == key && only_at.is_none(),
                Phase::Writing { key: of, .. } => *of == key,
                Phase::Start | Phase::Done => false,
            };
            if state.requests.iter().any(uses) {
                return None;
            }
        } else if !is_gone && !is_newer {
            return None;
        }
        state.ledger.release(key, pod.version);
        Some(())
    }

    fn turn(&self, state: &mut State, request: usize) -> Option<()> {
        let slot = usize::from(state.requests[request].slot);
        let live = self.view(&state.now().pods, state.now().version);
        let (place, group) = (live.place(slot), self.slots[slot].group);
        let open = state.ledger.windows[usize::from(group)]?;
        let is_up = live.pods[slot].is == Is::Up;
        if open == place || !is_up || state.ledger.turn.is_some() {
            return None;
        }
        state.requests[request].may_wait = false;
        state.ledger.turn = Some((group, place));
        Some(())
    }

    fn change(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Make { slot } => {
                state.mishaps_left.surges -= u8::from(self.slots[slot].extra);
                let is = if self.slow { Is::Pending } else { Is::Up };
                state.change(slot, |pod| pod.uid += 1);
                state.history.last_mut()?.pods[slot].is = is;
                self.make_good(state);
            }
            Step::Bind { slot, zone } => state.change(slot, |pod| {
                pod.is = Is::Starting;
                pod.zone = zone;
            }),
            Step::Rise { slot } => self.change_pod(state, slot, Is::Up),
            Step::Finish { slot } => self.change_pod(state, slot, Is::Gone),
            Step::Fail { slot } => {
                state.mishaps_left.failures -= 1;
                self.change_pod(state, slot, Is::Failed);
            }
            Step::Vanish { slot } => {
                state.mishaps_left.vanished -= 1;
                self.change_pod(state, slot, Is::Gone);
            }
            Step::Relabel { slot, zone } => {
                let is_same = state.now().pods[slot].zone == Some(zone);
                if is_same || !self.lacks(Fault::RelabelAllowed) {
                    return None;
                }
                state.mishaps_left.relabels -= 1;
                state.change(slot, |pod| pod.zone = Some(zone));
            }
            _ => return None,
        }
        Some(())
    }

    fn change_pod(&self, state: &mut State, slot: usize, is: Is) {
        state.change(slot, |pod| pod.is = is);
        self.make_good(state);
    }

    fn make_good(&self, state: &mut State) {
        let now = *state.now();
        let is_whole = !self.pinned && self.is_whole(&now.pods);
        for (lost, pod) in state.lost.iter_mut().zip(&now.pods) {
            if pod.is == Is::Up || is_whole {
                *lost = None;
            }
        }
    }
}

impl Request {
    /// Retries the request, or gives it up.
    fn again(&mut self) {
        self.phase = if self.retries > 0 {
            Phase::Start
        } else {
            Phase::Done
        };
        self.retries = self.retries.saturating_sub(1);
    }
}

fn admitted(key: super::arithmetic::Key) -> Phase {
    Phase::Admitted { key, only_at: None }
}
