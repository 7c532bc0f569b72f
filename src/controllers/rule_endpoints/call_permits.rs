//! Permits for calls to endpoints. Namespaces share them, so that no tenant delays the others.
//!
//! The more permits a namespace holds, the more permits must be free before it gets another one. Therefore some permits
//! stay free for namespaces that hold none. When a permit becomes free, the namespace that holds the fewest permits
//! gets it. Namespaces that hold the same number take turns, and so do the endpoints of a namespace.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Number of all permits.
const MAX_CALL_PERMITS: usize = 32;

/// A namespace gets another permit while more than this many times its own permits are free. Therefore a namespace
/// alone gets a quarter of all permits.
const FREE_FACTOR: usize = 3;

/// Number of permits for one endpoint. A namespace gets another one while more of them are free than it holds.
/// Therefore a namespace alone gets half of them. A slow endpoint thus leaves permits to other endpoints of its
/// namespace, and to other namespaces that call it.
const MAX_ENDPOINT_PERMITS: usize = 8;

/// The caller and the endpoint of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallRoute {
    /// The namespace of the rule.
    pub namespace: String,
    /// Protocol, host and port of the endpoint.
    pub endpoint: String,
}

/// All permits.
#[derive(Debug, Default)]
pub struct CallPermits(Mutex<PermitState>);

#[derive(Debug, Default)]
struct PermitState {
    /// The permits in use, at most [`MAX_CALL_PERMITS`].
    taken: Vec<CallRoute>,
    /// The waiting calls, by namespace and endpoint. No queue is empty.
    waiting: RoundRobin<RoundRobin<VecDeque<oneshot::Sender<CallPermit>>>>,
}

/// A queue in which an entry goes to the end when it gets a permit.
type RoundRobin<T> = VecDeque<(String, T)>;

/// A permit for one call. It is returned when it is dropped.
#[derive(Debug)]
pub struct CallPermit {
    permits: Arc<CallPermits>,
    route: CallRoute,
}

impl CallPermits {
    /// Requests a permit. The receiver gets it as soon as one is free.
    pub fn request_permit(self: &Arc<Self>, route: &CallRoute) -> oneshot::Receiver<CallPermit> {
        let (waiter, place) = oneshot::channel();
        {
            let mut state = self.0.lock();
            let endpoints = entry_or_insert(&mut state.waiting, &route.namespace);
            entry_or_insert(endpoints, &route.endpoint).push_back(waiter);
        }
        self.grant_permits();
        place
    }

    fn grant_permits(self: &Arc<Self>) {
        loop {
            let next = self.0.lock().take_next_waiter();
            let Some((route, waiter)) = next else { return };
            let places = Arc::clone(self);
            // If the receiver is gone, the permit is dropped here and thereby returned.
            drop(waiter.send(CallPermit {
                permits: places,
                route,
            }));
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.permits.0.lock().release_permit(&self.route);
        self.permits.grant_permits();
    }
}

impl PermitState {
    /// Takes a permit for the next waiting call that may have one.
    fn take_next_waiter(&mut self) -> Option<(CallRoute, oneshot::Sender<CallPermit>)> {
        loop {
            let (route, waiter) = self.pop_next_waiter()?;
            if !waiter.is_closed() {
                self.taken.push(route.clone());
                return Some((route, waiter));
            }
        }
    }

    /// Removes the next waiting call that may have a permit from its queue.
    fn pop_next_waiter(&mut self) -> Option<(CallRoute, oneshot::Sender<CallPermit>)> {
        let all = self.waiting.iter().enumerate();
        let next = all.filter_map(|(turn, (namespace, endpoints))| {
            let held = self.held_if_allowed(namespace)?;
            let mut endpoints = endpoints.iter();
            let endpoint =
                endpoints.position(|(endpoint, _)| self.has_free_permit(namespace, endpoint));
            Some((held, turn, endpoint?))
        });
        let (_, turn, endpoint) = next.min()?;
        let (namespace, mut endpoints) = self.waiting.remove(turn)?;
        let (endpoint, mut queue) = endpoints.remove(endpoint)?;
        let waiter = queue.pop_front()?;
        if !queue.is_empty() {
            endpoints.push_back((endpoint.clone(), queue));
        }
        if !endpoints.is_empty() {
            self.waiting.push_back((namespace.clone(), endpoints));
        }
        let route = CallRoute {
            namespace,
            endpoint,
        };
        Some((route, waiter))
    }

    /// How many permits a namespace holds, if it may have another one.
    fn held_if_allowed(&self, namespace: &str) -> Option<usize> {
        let taken = self.taken.iter();
        let held = taken.filter(|t| t.namespace == namespace).count();
        (held * FREE_FACTOR < MAX_CALL_PERMITS - self.taken.len()).then_some(held)
    }

    fn has_free_permit(&self, namespace: &str, endpoint: &str) -> bool {
        let taken = self.taken.iter().filter(|t| t.endpoint == endpoint);
        let held = taken.clone().filter(|t| t.namespace == namespace).count();
        held < MAX_ENDPOINT_PERMITS - taken.count()
    }

    fn release_permit(&mut self, route: &CallRoute) {
        if let Some(place) = self.taken.iter().position(|taken| taken == route) {
            self.taken.swap_remove(place);
        }
    }
}

fn entry_or_insert<'a, T: Default>(turns: &'a mut RoundRobin<T>, of: &str) -> &'a mut T {
    let known = turns.iter().position(|(key, _)| key == of);
    let turn = known.unwrap_or_else(|| {
        turns.push_back((of.to_owned(), T::default()));
        turns.len() - 1
    });
    &mut turns[turn].1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Waiting = Vec<oneshot::Receiver<CallPermit>>;

    fn ask(
        places: &Arc<CallPermits>,
        namespace: &str,
        endpoint: &str,
    ) -> oneshot::Receiver<CallPermit> {
        places.request_permit(&CallRoute {
            namespace: namespace.to_owned(),
            endpoint: endpoint.to_owned(),
        })
    }

    /// Sends 400 requests of a namespace, spread over `endpoints` endpoints of its own. Returns the permits, and the
    /// requests that wait.
    fn flood(
        places: &Arc<CallPermits>,
        namespace: &str,
        endpoints: usize,
    ) -> (Vec<CallPermit>, Waiting) {
        let mut waiting: Waiting = (0..400)
            .map(|n| ask(places, namespace, &format!("{namespace}:{}", n % endpoints)))
            .collect();
        (got(&mut waiting), waiting)
    }

    fn got(waiting: &mut Waiting) -> Vec<CallPermit> {
        let mut got = Vec::new();
        waiting.retain_mut(|place| match place.try_recv() {
            Ok(place) => {
                got.push(place);
                false
            }
            Err(_) => true,
        });
        got
    }

    fn is_at_rest(places: &CallPermits) -> bool {
        let state = places.0.lock();
        state.taken.is_empty() && state.waiting.is_empty()
    }

    #[test]
    fn namespace_with_hundreds_waiting_makes_no_other_namespace_wait() {
        for (endpoints, most) in [
            (1, MAX_ENDPOINT_PERMITS / 2),
            (2, MAX_CALL_PERMITS / 4),
            (40, MAX_CALL_PERMITS / 4),
            (400, MAX_CALL_PERMITS / 4),
        ] {
            let places = Arc::<CallPermits>::default();
            let (held, waiting) = flood(&places, "hostile", endpoints);
            assert_eq!(held.len(), most, "{endpoints} endpoints");
            for endpoint in ["b:0", "hostile:0"] {
                let place = ask(&places, "b", endpoint).try_recv();
                assert!(place.is_ok(), "{endpoint} beside {endpoints} endpoints");
            }
            drop((held, waiting));
        }
    }

    #[test]
    fn nine_busy_namespaces_leave_permit_for_tenth() {
        let places = Arc::<CallPermits>::default();
        let hostile: Vec<_> = (0..9)
            .map(|n| flood(&places, &format!("hostile-{n}"), 40))
            .collect();
        assert!(hostile.iter().all(|(held, _)| !held.is_empty()));
        ask(&places, "b", "b").try_recv().unwrap();
    }

    #[test]
    fn namespace_without_a_place_gets_the_next_one() {
        let places = Arc::<CallPermits>::default();
        let mut hostile: Vec<_> = (0..10)
            .map(|n| flood(&places, &format!("hostile-{n}"), 40))
            .collect();
        assert_eq!(places.0.lock().taken.len(), MAX_CALL_PERMITS);
        let mut late = ["x", "y"].map(|namespace| ask(&places, namespace, "late"));
        let mut took = Vec::new();
        for place in &mut late {
            assert!(place.try_recv().is_err());
            drop(hostile[0].0.pop());
            took.push(place.try_recv().unwrap());
        }
    }

    #[test]
    fn namespaces_that_hold_the_same_take_turns() {
        let places = Arc::<CallPermits>::default();
        let full: Vec<_> = (0..10)
            .map(|n| flood(&places, &format!("full-{n}"), 40).0)
            .collect();
        let mut waiting = ["a", "a", "b", "b"].map(|namespace| ask(&places, namespace, "e"));
        let mut order = Vec::new();
        // The permits of the other namespaces are returned one by one. Each namespace that gets a permit returns it at
        // once.
        for place in full.into_iter().flatten() {
            drop(place);
            let now = waiting.iter_mut().filter_map(|place| place.try_recv().ok());
            order.extend(now.map(|place| place.route.namespace.clone()));
        }
        assert_eq!(order, ["a", "b", "a", "b"]);
    }

    #[test]
    fn all_callers_are_served_and_dropped_ones_free_permits() {
        let places = Arc::<CallPermits>::default();
        let (mut held, mut waiting) = flood(&places, "a", 40);
        let (gone, others) = flood(&places, "b", 1);
        drop(others);
        let mut served = 0;
        while let Some(place) = held.pop() {
            served += 1;
            drop(place);
            held.extend(got(&mut waiting));
        }
        assert_eq!(served, 400);
        assert_eq!(places.0.lock().taken.len(), gone.len());
        drop(gone);
        assert!(is_at_rest(&places));
    }
}
