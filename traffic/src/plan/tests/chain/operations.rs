//! How operations take Pods off traffic, and what the webhook writes then.

use std::time::Duration;

use super::super::model::DRAIN;
use super::state::Chain;

/// How far the clock of a node may be from that of the webhook.
const CLOCK_SKEW: Duration = Duration::from_secs(30);

impl Chain {
    /// Between two steps of a look, a Pod may turn.
    pub fn race(&mut self) {
        if self.troubles.races && self.random.one_in(4) {
            let picked = self.pick_pod();
            picked.into_iter().for_each(|uid| self.turn(&uid));
        }
    }

    /// An operation begins, is undone or ends, or the Pod becomes Ready.
    pub fn turn(&mut self, uid: &str) {
        let pod = &self.pods[uid];
        let (is_on, in_operation) = (pod.input.pod.on, pod.in_operation);
        if pod.input.ended {
            return;
        }
        if !in_operation {
            match !is_on && self.random.one_in(2) {
                true => self.become_ready(uid),
                false => self.begin_operation(uid),
            }
            return;
        }
        let operating = pod.operating;
        if !operating && self.random.one_in(3) {
            self.end_operation(uid); // it is undone
        } else if self.random.one_in(3) {
            self.change_operation(uid);
        } else if operating {
            self.end_operation(uid);
        }
    }

    pub fn become_ready(&mut self, uid: &str) {
        let (now, ready_since) = (self.now, self.condition_time());
        let pod = self.pod_mut(uid);
        pod.input.ready_since = ready_since;
        pod.input.pod.on = true;
        pod.last_on = Some(now);
        pod.version += 1;
        self.note(format!("{uid} becomes Ready"));
        self.count_availability(uid);
    }

    /// An operation takes the Pod off traffic. The webhook protects it in the same write if it may get requests.
    pub fn begin_operation(&mut self, uid: &str) {
        let (now, ready_since, stamp) = (self.now, self.condition_time(), self.stamp());
        let expects = self.expects_traffic();
        let is_recorded = !self.record.is_empty();
        let is_observed = self.configured[self.chosen] && self.observes(self.chosen);
        let any_may_get_requests = !is_observed || self.names_formers();
        let pod = self.pod_mut(uid);
        let since = pod.last_on.map(|at| now.duration_since(at).unsigned_abs());
        let may_be_ready = since.is_some_and(|since| since < DRAIN + CLOCK_SKEW);
        let may_get_requests = any_may_get_requests || pod.input.pod.on || may_be_ready;
        if pod.input.pod.on {
            pod.last_on = Some(now);
            pod.input.ready_since = ready_since;
        }
        pod.input.operations = [format!("operation={stamp}")].into();
        pod.in_operation = true;
        pod.input.pod.on = false;
        pod.available = false;
        pod.version += 1;
        let is_managed = pod.input.selected && expects || pod.expected;
        let is_reachable = is_recorded && !pod.input.pod.addresses.is_empty();
        if may_get_requests && is_managed && is_reachable {
            (pod.input.protected, pod.expected) = (true, true);
        }
        pod.was_marked |= pod.expected;
        let is_unmarked = !pod.input.protected && !pod.expected;
        pod.unguarded = is_unmarked && !expects || !pod.was_marked;
        pod.unselected = is_unmarked && !pod.input.selected;
        let protected = pod.input.protected;
        self.note(format!(
            "an operation takes {uid} off, protected: {protected}"
        ));
        self.advance_operation(uid);
    }

    /// The operation goes on when nothing protects the Pod.
    pub fn advance_operation(&mut self, uid: &str) {
        let now = self.now;
        let pod = self.pod_mut(uid);
        if pod.in_operation && !pod.input.protected && !pod.operating {
            pod.operating = true;
            pod.released = Some(now);
            pod.version += 1;
            self.note(format!("the operation works on {uid}"));
        }
    }

    /// Another operation keeps the Pod off from now on, and the first one ends.
    fn change_operation(&mut self, uid: &str) {
        let stamp = self.stamp();
        let pod = self.pod_mut(uid);
        pod.input.operations = [format!("operation={stamp}")].into();
        pod.version += 1;
        self.note(format!("another operation keeps {uid} off"));
    }

    /// The operation ends or is undone. The webhook removes the protection in the same write.
    pub fn end_operation(&mut self, uid: &str) {
        let (now, ready_since) = (self.now, self.condition_time());
        let is_configured = self.configured[self.chosen];
        let pod = self.pod_mut(uid);
        pod.input.ready_since = ready_since;
        (pod.in_operation, pod.operating) = (false, false);
        pod.input.operations.clear();
        if pod.expected && (!is_configured || pod.input.selected) {
            pod.input.protected = false;
        }
        pod.input.pod.on = !pod.input.ended;
        pod.last_on = Some(now);
        pod.version += 1;
        self.note(format!("no operation keeps {uid} off any more"));
        self.count_availability(uid);
    }
}
