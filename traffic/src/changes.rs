//! Changes of members, and what became of them.

use std::collections::BTreeMap;

use crate::{AdapterError, Member, MemberKey, Presence};

/// Changes that an adapter should make now. No member occurs twice. Each list has at most
/// [`Settings::batch`](crate::Settings::batch) members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Members to register, or to set to this weight and this Pod if they are registered already.
    pub register: Vec<Member>,
    /// Registered members that should get no new requests. Always empty unless the adapter
    /// [drains](crate::Control::Drains).
    pub drain: Vec<Member>,
    /// Members to remove. It is no error if a member is not registered.
    pub deregister: Vec<Member>,
}

impl Changes {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.register.is_empty() && self.drain.is_empty() && self.deregister.is_empty()
    }

    /// All members that change.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let lists = [&self.register, &self.drain, &self.deregister];
        lists.into_iter().flatten()
    }

    /// The answer that every change failed with `error`.
    pub fn all_failed(&self, error: &AdapterError) -> Applied {
        let failed = |member: &Member| (member.key.clone(), Err(error.clone()));
        self.members().map(failed).collect()
    }
}

/// What became of each change: what the load balancer now does with the member, or why the change failed. After
/// [`AdapterError::Transient`], and about a member that is missing here, it is not known whether the change was made:
/// the members are read again. The other errors mean that it was not made.
pub type Applied = BTreeMap<MemberKey, Result<Presence, AdapterError>>;
