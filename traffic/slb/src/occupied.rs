//! At which load balancers Pods of a Service were found.
//!
//! The label of a Service can change while its former load balancer still sends requests to Pods. Only this memory knows
//! the former one, so it is read until it has none of the Pods. Another process knows nothing of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Number of Services from which on those that are gone are forgotten.
const MANY: usize = 4096;
/// A Service with Pods is read every few minutes. One that was not read for so long is gone.
const GONE: Duration = Duration::from_secs(3600);

/// At which load balancers the last reads have found Pods of each Service, by UID.
#[derive(Default)]
pub(crate) struct Occupied {
    services: Mutex<HashMap<String, Places>>,
}

struct Places {
    read: Instant,
    load_balancers: BTreeSet<String>,
}

impl Occupied {
    /// The load balancers other than `present` at which Pods of a Service were found.
    pub(crate) fn former(&self, service: &str, present: &str) -> Vec<String> {
        let services = self.lock();
        let places = services.get(service).into_iter();
        let all = places.flat_map(|places| &places.load_balancers);
        all.filter(|id| *id != present).cloned().collect()
    }

    /// Notes whether a read has found Pods of a Service at a load balancer.
    pub(crate) fn note(&self, service: &str, load_balancer: &str, found: bool) {
        let mut services = self.lock();
        if !found {
            if let Some(places) = services.get_mut(service) {
                places.load_balancers.remove(load_balancer);
                if places.load_balancers.is_empty() {
                    services.remove(service);
                }
            }
            return;
        }
        if services.len() > MANY {
            services.retain(|_, places| places.read.elapsed() < GONE);
        }
        let places = services
            .entry(service.to_owned())
            .or_insert_with(|| Places {
                read: Instant::now(),
                load_balancers: BTreeSet::new(),
            });
        places.read = Instant::now();
        places.load_balancers.insert(load_balancer.to_owned());
    }

    /// The Service goes.
    pub(crate) fn forget(&self, service: &str) {
        self.lock().remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Places>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_load_balancer_is_known_until_it_has_no_pod() {
        let occupied = Occupied::default();
        occupied.note("a", "lb-1", true);
        occupied.note("a", "lb-2", true);
        occupied.note("b", "lb-3", true);
        assert_eq!(occupied.former("a", "lb-2"), ["lb-1"]);
        assert_eq!(occupied.former("a", "lb-3"), ["lb-1", "lb-2"]);
        occupied.note("a", "lb-1", false);
        assert!(occupied.former("a", "lb-2").is_empty());
        occupied.note("b", "lb-3", false);
        occupied.forget("a");
        assert!(occupied.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn services_that_are_gone_are_forgotten_when_there_are_many() {
        let occupied = Occupied::default();
        for n in 0..=MANY {
            occupied.note(&format!("gone-{n}"), "lb-1", true);
        }
        tokio::time::advance(GONE).await;
        occupied.note("a", "lb-1", true);
        assert_eq!(occupied.lock().len(), 1);
    }
}
