//! Whether the present load balancer serves in place of the former ones, so that these may lose their members.

use jiff::Timestamp;

use super::memory::Memory;
use super::summary::Summary;
use super::view::{PodInput, View};

impl Summary {
    /// Whether every Pod that should serve does, as a complete read has told, and no Pod is off that could not be
    /// registered. The read may be old: [`Memory::confirm_settled`] asks for another one.
    pub fn is_settled(&self, view: &View, memory: &Memory) -> bool {
        let serves = memory.is_read() && self.pending + self.failed == 0;
        view.refused.is_none() && serves && unproven(view, memory).is_none()
    }
}

impl Memory {
    /// Whether a read confirms that the present load balancer serves, as it seemed at this look. The last read may be older
    /// than the loss of a member, so another one is asked for.
    pub fn confirm_settled(&mut self, seems_settled: bool, now: Timestamp) -> bool {
        if !seems_settled {
            self.settling = None;
            return false;
        }
        let since = *self.settling.get_or_insert_with(|| {
            self.must_observe = true;
            now
        });
        self.observed.is_some_and(|observed| observed > since)
    }
}

/// A Pod that should serve again some time, and by which it is not known yet that the present load balancer can serve
/// in place of the former ones: its name and the reason. While no Pod should serve, nothing is known at all.
pub fn unproven(view: &View, memory: &Memory) -> Option<(String, String)> {
    let selected = || view.pods.iter().filter(|(_, input)| input.selected);
    let name = |input: &PodInput| input.pod.id.name.clone();
    let lacked = |uid: &str| memory.pods.get(uid).is_some_and(|known| known.lacked);
    let mut off = selected().filter(|(uid, input)| !input.ended && !view.should_serve(uid));
    if let Some((_, input)) = off.clone().find(|(uid, _)| lacked(uid)) {
        let reason = "the former load balancer is kept until the Pod, which is off traffic now, serves at the present one";
        return Some((name(input), reason.to_owned()));
    }
    if selected().any(|(uid, _)| view.should_serve(uid)) {
        return None;
    }
    let (_, input) = off.next()?;
    let reason = "the former load balancer is kept until a Pod serves at the present one, and all are off traffic now";
    Some((name(input), reason.to_owned()))
}
