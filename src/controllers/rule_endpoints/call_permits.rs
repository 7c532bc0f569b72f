//! Permits for calls to endpoints. Namespaces share them, so that no tenant delays the others.
//!
//! The more permits a namespace holds, the more permits must be free before it gets another permit. Therefore some
//! permits stay free for namespaces that hold none. When a permit becomes free, the namespace that holds the fewest
//! permits gets it. Namespaces that hold the same number take turns, and so do the endpoints of a namespace.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

const MAX_CALL_PERMITS: usize = 32;

/// A namespace gets another permit while more than this many times its own permits are free. Therefore a namespace
/// alone gets a quarter of all permits.
const FREE_FACTOR: usize = 3;

/// Number of permits for one endpoint. A namespace gets another permit while more of them are free than it holds.
/// Therefore a namespace alone gets half of them. A slow endpoint thus leaves permits to other endpoints of its
/// namespace, and to other namespaces that call it.
const MAX_ENDPOINT_PERMITS: usize = 8;

/// The namespace and the endpoint of a call, among which the permits are shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermitKey {
    /// The namespace of the rule.
    pub namespace: String,
    /// Protocol, host and port of the endpoint.
    pub endpoint: String,
}

#[derive(Debug, Default)]
pub struct CallPermits(Mutex<PermitState>);

#[derive(Debug, Default)]
struct PermitState {
    /// The permits in use, at most [`MAX_CALL_PERMITS`].
    used: Vec<PermitKey>,
    /// The waiting calls, by namespace and endpoint. No queue is empty.
    waiting: RoundRobin<RoundRobin<VecDeque<oneshot::Sender<CallPermit>>>>,
}

/// A queue in which an entry goes to the end when it gets a permit.
type RoundRobin<T> = VecDeque<(String, T)>;

/// A permit for one call. It is returned when it is dropped.
#[derive(Debug)]
pub struct CallPermit {
    permits: Arc<CallPermits>,
    key: PermitKey,
}

impl CallPermits {
    /// Requests a permit. The receiver gets it as soon as one is free.
    pub fn request_permit(self: &Arc<Self>, key: &PermitKey) -> oneshot::Receiver<CallPermit> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.0.lock();
            let endpoints = entry_or_insert(&mut state.waiting, &key.namespace);
            entry_or_insert(endpoints, &key.endpoint).push_back(sender);
        }
        self.grant_permits();
        receiver
    }

    fn grant_permits(self: &Arc<Self>) {
        loop {
            let next = self.0.lock().take_next_waiter();
            let Some((key, sender)) = next else { return };
            let permits = Arc::clone(self);
            // If the receiver is gone, this drops the permit, which returns it.
            drop(sender.send(CallPermit { permits, key }));
        }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.permits.0.lock().release_permit(&self.key);
        self.permits.grant_permits();
    }
}

impl PermitState {
    /// Takes a permit for the next waiting call that may have one.
    fn take_next_waiter(&mut self) -> Option<(PermitKey, oneshot::Sender<CallPermit>)> {
        loop {
            let (key, sender) = self.pop_next_waiter()?;
            if !sender.is_closed() {
                self.used.push(key.clone());
                return Some((key, sender));
            }
        }
    }

    /// Removes the next waiting call that may have a permit from its queue.
    fn pop_next_waiter(&mut self) -> Option<(PermitKey, oneshot::Sender<CallPermit>)> {
        let all = self.waiting.iter().enumerate();
        let next = all.filter_map(|(position, (namespace, endpoints))| {
            let own_count = self.own_permits_if_allowed(namespace)?;
            let mut endpoints = endpoints.iter();
            let endpoint =
                endpoints.position(|(endpoint, _)| self.has_free_permit(namespace, endpoint));
            Some((own_count, position, endpoint?))
        });
        let (_, position, endpoint) = next.min()?;
        let (namespace, mut endpoints) = self.waiting.remove(position)?;
        let (endpoint, mut queue) = endpoints.remove(endpoint)?;
        let sender = queue.pop_front()?;
        if !queue.is_empty() {
            endpoints.push_back((endpoint.clone(), queue));
        }
        if !endpoints.is_empty() {
            self.waiting.push_back((namespace.clone(), endpoints));
        }
        let key = PermitKey {
            namespace,
            endpoint,
        };
        Some((key, sender))
    }

    /// How many permits a namespace holds, if it may get another permit.
    fn own_permits_if_allowed(&self, namespace: &str) -> Option<usize> {
        let own = self.used.iter().filter(|key| key.namespace == namespace);
        let own_count = own.count();
        let free_count = MAX_CALL_PERMITS - self.used.len();
        (own_count * FREE_FACTOR < free_count).then_some(own_count)
    }

    fn has_free_permit(&self, namespace: &str, endpoint: &str) -> bool {
        let used = self.used.iter().filter(|key| key.endpoint == endpoint);
        let own = used.clone().filter(|key| key.namespace == namespace);
        own.count() < MAX_ENDPOINT_PERMITS - used.count()
    }

    fn release_permit(&mut self, key: &PermitKey) {
        if let Some(position) = self.used.iter().position(|used| used == key) {
            self.used.swap_remove(position);
        }
    }
}

fn entry_or_insert<'a, T: Default>(entries: &'a mut RoundRobin<T>, name: &str) -> &'a mut T {
    let position = entries.iter().position(|(key, _)| key == name);
    let position = position.unwrap_or_else(|| {
        entries.push_back((name.to_owned(), T::default()));
        entries.len() - 1
    });
    &mut entries[position].1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Waiting = Vec<oneshot::Receiver<CallPermit>>;

    fn ask(
        pool: &Arc<CallPermits>,
        namespace: &str,
        endpoint: &str,
    ) -> oneshot::Receiver<CallPermit> {
        pool.request_permit(&PermitKey {
            namespace: namespace.to_owned(),
            endpoint: endpoint.to_owned(),
        })
    }

    /// Sends 400 requests of a namespace, spread over `endpoints` endpoints of its own. Returns the permits, and the
    /// requests that wait.
    fn flood(
        pool: &Arc<CallPermits>,
        namespace: &str,
        endpoints: usize,
    ) -> (Vec<CallPermit>, Waiting) {
        let mut waiting: Waiting = (0..400)
            .map(|n| ask(pool, namespace, &format!("{namespace}:{}", n % endpoints)))
            .collect();
        (take_granted(&mut waiting), waiting)
    }

    fn take_granted(waiting: &mut Waiting) -> Vec<CallPermit> {
        let mut granted = Vec::new();
        waiting.retain_mut(|receiver| match receiver.try_recv() {
            Ok(permit) => {
                granted.push(permit);
                false
            }
            Err(_) => true,
        });
        granted
    }

    fn is_at_rest(pool: &CallPermits) -> bool {
        let state = pool.0.lock();
        state.used.is_empty() && state.waiting.is_empty()
    }

    #[test]
    fn namespace_with_hundreds_waiting_makes_no_other_namespace_wait() {
        for (endpoints, most) in [
            (1, MAX_ENDPOINT_PERMITS / 2),
            (2, MAX_CALL_PERMITS / 4),
            (40, MAX_CALL_PERMITS / 4),
            (400, MAX_CALL_PERMITS / 4),
        ] {
            let pool = Arc::<CallPermits>::default();
            let (permits, waiting) = flood(&pool, "hostile", endpoints);
            assert_eq!(permits.len(), most, "{endpoints} endpoints");
            for endpoint in ["b:0", "hostile:0"] {
                let permit = ask(&pool, "b", endpoint).try_recv();
                assert!(permit.is_ok(), "{endpoint} beside {endpoints} endpoints");
            }
            drop((permits, waiting));
        }
    }

    #[test]
    fn nine_busy_namespaces_leave_permit_for_tenth() {
        let pool = Arc::<CallPermits>::default();
        let hostile: Vec<_> = (0..9)
            .map(|n| flood(&pool, &format!("hostile-{n}"), 40))
            .collect();
        assert!(hostile.iter().all(|(permits, _)| !permits.is_empty()));
        ask(&pool, "b", "b").try_recv().unwrap();
    }

    #[test]
    fn namespace_without_permit_gets_the_next_permit() {
        let pool = Arc::<CallPermits>::default();
        let mut hostile: Vec<_> = (0..10)
            .map(|n| flood(&pool, &format!("hostile-{n}"), 40))
            .collect();
        assert_eq!(pool.0.lock().used.len(), MAX_CALL_PERMITS);
        let mut newcomers = ["x", "y"].map(|namespace| ask(&pool, namespace, "late"));
        let mut granted = Vec::new();
        for receiver in &mut newcomers {
            assert!(receiver.try_recv().is_err());
            drop(hostile[0].0.pop());
            granted.push(receiver.try_recv().unwrap());
        }
    }

    #[test]
    fn namespaces_with_equally_many_permits_take_turns() {
        let pool = Arc::<CallPermits>::default();
        let full: Vec<_> = (0..10)
            .map(|n| flood(&pool, &format!("full-{n}"), 40).0)
            .collect();
        let mut waiting = ["a", "a", "b", "b"].map(|namespace| ask(&pool, namespace, "e"));
        let mut order = Vec::new();
        // The permits of the other namespaces are returned one by one. Each namespace that gets a permit returns it at
        // once.
        for permit in full.into_iter().flatten() {
            drop(permit);
            let granted = waiting
                .iter_mut()
                .filter_map(|receiver| receiver.try_recv().ok());
            order.extend(granted.map(|permit| permit.key.namespace.clone()));
        }
        assert_eq!(order, ["a", "b", "a", "b"]);
    }

    #[test]
    fn all_calls_are_served_and_dropped_calls_free_permits() {
        let pool = Arc::<CallPermits>::default();
        let (mut permits, mut waiting) = flood(&pool, "a", 40);
        let (other_permits, others) = flood(&pool, "b", 1);
        drop(others);
        let mut served = 0;
        while let Some(permit) = permits.pop() {
            served += 1;
            drop(permit);
            permits.extend(take_granted(&mut waiting));
        }
        assert_eq!(served, 400);
        assert_eq!(pool.0.lock().used.len(), other_permits.len());
        drop(other_permits);
        assert!(is_at_rest(&pool));
    }
}
