//! Which protections of a Pod do not show that traffic is on.

use super::employers::Employers;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::protecting_employers;

impl Employers {
    /// The employers whose protection must go when a Pod comes back that was off traffic. Its members may be off by now.
    /// With the protection, the Pod would count as available. The leader protects it again when they serve.
    ///
    /// An employer that is out of order is no exception. While nobody can put the members back, the Pod must not count
    /// as available.
    pub fn stale_protections(&self, pod: &Pod) -> Vec<EmployerName> {
        if pod.is_terminating() {
            return Vec::new(); // it could not get the protection again
        }
        let mut names = protecting_employers(pod);
        names.retain(|name| self.may_protect_again(name, pod));
        names
    }

    /// Whether the leader protects a Pod again when it serves. If the Pod is not to be served any more, the leader
    /// removes both marks, and not before the members are off.
    fn may_protect_again(&self, name: &EmployerName, pod: &Pod) -> bool {
        // Another program protects Pods for employers of other kinds.
        self.kind(&name.kind).is_some()
            && self.get(name).is_none_or(|employer| {
                employer.managed && (employer.adapter.is_err() || employer.selects(pod))
            })
    }
}
