//! In which groups an employer may have servers.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Group;
use crate::mark::EmployerMark;

/// Age at which all groups of the load balancers of a namespace are read again. Another replica may have written while
/// it was the leader.
const RESCAN: Duration = Duration::from_secs(600);

/// Remembers in which groups an employer may have servers. A Service may name other groups than before, or another
/// replica may have been the leader then, so all groups of the load balancers of its namespace are read at first.
#[derive(Default)]
pub(crate) struct Scans {
    scans: Mutex<HashMap<EmployerMark, Scan>>,
}

struct Scan {
    at: Instant,
    /// The groups that the Service named when all groups were read.
    named: BTreeSet<Group>,
    /// Those, and all others that had servers of the employer.
    groups: BTreeSet<Group>,
}

impl Scans {
    /// The groups to read. `None` if all groups must be read: they never were, or the Service names other ones now.
    pub(crate) fn groups(
        &self,
        mark: &EmployerMark,
        named: &BTreeSet<Group>,
    ) -> Option<BTreeSet<Group>> {
        let scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        let scan = scans
            .get(mark)
            .filter(|scan| scan.named == *named && scan.at.elapsed() < RESCAN)?;
        Some(scan.groups.clone())
    }

    /// All groups were read. These had servers of the employer.
    pub(crate) fn scanned(
        &self,
        mark: EmployerMark,
        named: BTreeSet<Group>,
        mut groups: BTreeSet<Group>,
    ) {
        groups.extend(named.iter().cloned());
        let scan = Scan {
            at: Instant::now(),
            named,
            groups,
        };
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        scans.insert(mark, scan);
    }

    /// The employer has no servers, and goes.
    pub(crate) fn forget(&self, mark: &EmployerMark) {
        let mut scans = self.scans.lock().unwrap_or_else(PoisonError::into_inner);
        scans.remove(mark);
    }
}

#[cfg(test)]
mod tests {
    use traffic::Employer;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn groups_are_remembered_while_the_service_names_the_same() {
        let scans = Scans::default();
        let mark = EmployerMark::new("", &Employer::default());
        let set = |id: &str| BTreeSet::from([Group::Virtual(id.to_owned())]);
        assert_eq!(scans.groups(&mark, &set("a")), None);
        scans.scanned(mark.clone(), set("a"), set("b"));
        let both: BTreeSet<_> = set("a").into_iter().chain(set("b")).collect();
        assert_eq!(scans.groups(&mark, &set("a")), Some(both));
        assert_eq!(scans.groups(&mark, &set("b")), None);
        tokio::time::advance(RESCAN).await;
        assert_eq!(scans.groups(&mark, &set("a")), None);
        scans.scanned(mark.clone(), set("a"), set("b"));
        scans.forget(&mark);
        assert_eq!(scans.groups(&mark, &set("a")), None);
    }
}
