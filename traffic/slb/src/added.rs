//! Servers that were added a moment ago.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use traffic::{Member, MemberKey};

use crate::mark::EmployerMark;

/// How long a server that was added, or that may have been added, is believed to be there although it is not listed.
/// Reads may be older than writes.
const BELIEVED: Duration = Duration::from_secs(10);

/// Servers that were added, or that may have been added, a moment ago.
#[derive(Default)]
pub(crate) struct Added {
    servers: Mutex<HashMap<(EmployerMark, MemberKey), (Instant, Member)>>,
}

impl Added {
    /// A call that adds the server will be sent. Until it has succeeded, the weight of the server counts as 0, so that
    /// it is added again if its answer is lost.
    pub(crate) fn will_add(&self, mark: &EmployerMark, member: &Member) {
        self.insert(
            mark,
            Member {
                weight: 0,
                ..member.clone()
            },
        );
    }

    /// The call has succeeded.
    pub(crate) fn was_added(&self, mark: &EmployerMark, member: &Member) {
        self.insert(mark, member.clone());
    }

    fn insert(&self, mark: &EmployerMark, member: Member) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.retain(|_, (at, _)| at.elapsed() < BELIEVED);
        servers.insert((mark.clone(), member.key.clone()), (Instant::now(), member));
    }

    /// The server was not added, or it was removed.
    pub(crate) fn is_not_there(&self, mark: &EmployerMark, key: &MemberKey) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.remove(&(mark.clone(), key.clone()));
    }

    /// Whether the server may be there although it is not listed.
    pub(crate) fn may_be_there(&self, mark: &EmployerMark, key: &MemberKey) -> bool {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let server = servers.get(&(mark.clone(), key.clone()));
        server.is_some_and(|(at, _)| at.elapsed() < BELIEVED)
    }

    /// The servers of an employer that may be there, in these groups.
    pub(crate) fn in_groups(&self, mark: &EmployerMark, groups: &BTreeSet<&str>) -> Vec<Member> {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let believed = servers.iter().filter(|((owner, key), (at, _))| {
            owner == mark && groups.contains(key.group.as_str()) && at.elapsed() < BELIEVED
        });
        believed.map(|(_, (_, member))| member.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use traffic::{Employer, PodId};

    use super::*;

    fn member() -> Member {
        Member {
            key: MemberKey {
                group: "rsp-1".to_owned(),
                address: "10.0.0.1".parse().unwrap(),
                port: 80,
            },
            pod: PodId::default(),
            weight: 100,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn added_server_is_believed_for_a_while() {
        let added = Added::default();
        let mark = EmployerMark::new("", &Employer::default());
        let member = member();
        let believed = || added.in_groups(&mark, &BTreeSet::from(["rsp-1"]));
        added.will_add(&mark, &member);
        assert_eq!(believed()[0].weight, 0);
        added.was_added(&mark, &member);
        assert_eq!(believed(), std::slice::from_ref(&member));
        assert!(added.may_be_there(&mark, &member.key));
        assert_eq!(added.in_groups(&mark, &BTreeSet::from(["rsp-2"])), []);
        tokio::time::advance(BELIEVED).await;
        assert!(!added.may_be_there(&mark, &member.key));
        assert_eq!(believed(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn removed_server_is_not_believed() {
        let added = Added::default();
        let mark = EmployerMark::new("", &Employer::default());
        let member = member();
        added.will_add(&mark, &member);
        added.is_not_there(&mark, &member.key);
        assert!(!added.may_be_there(&mark, &member.key));
    }
}
