//! Which employers must see the end of a Pod. Of a Pod that is gone, only the UID is known.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::domain::traffic::names::EmployerName;
use crate::ledger::store::Uid;

/// The Pods that the last look at each employer saw.
#[derive(Default)]
pub struct WatchedPods(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    employers: HashMap<Uid, HashSet<EmployerName>>,
    pods: HashMap<EmployerName, HashSet<Uid>>,
}

impl WatchedPods {
    /// Replaces the Pods of an employer.
    pub fn set(&self, employer: &EmployerName, pods: HashSet<Uid>) {
        let mut watched = self.0.lock();
        let former = match pods.is_empty() {
            true => watched.pods.remove(employer),
            false => watched.pods.insert(employer.clone(), pods.clone()),
        };
        for uid in former.unwrap_or_default().difference(&pods) {
            if let Some(employers) = watched.employers.get_mut(uid) {
                employers.remove(employer);
                if employers.is_empty() {
                    watched.employers.remove(uid);
                }
            }
        }
        for uid in pods {
            let employers = watched.employers.entry(uid).or_default();
            employers.insert(employer.clone());
        }
    }

    /// The employers that saw a Pod.
    pub fn employers_of(&self, uid: &Uid) -> Vec<EmployerName> {
        let watched = self.0.lock();
        let employers = watched.employers.get(uid).into_iter().flatten();
        employers.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn employers_see_the_pods_of_their_last_look() {
        let watched = WatchedPods::default();
        let employer = |name| EmployerName::new("Service", "shop", name);
        let pods = |uids: &[&str]| uids.iter().map(|uid| Uid::from(*uid)).collect();
        watched.set(&employer("web"), pods(&["a", "b"]));
        watched.set(&employer("api"), pods(&["b"]));
        assert_eq!(watched.employers_of(&Uid::from("b")).len(), 2);
        watched.set(&employer("web"), pods(&["a"]));
        assert_eq!(watched.employers_of(&Uid::from("b")), [employer("api")]);
        watched.set(&employer("web"), pods(&[]));
        watched.set(&employer("api"), pods(&[]));
        assert!(watched.0.lock().employers.is_empty());
    }
}
