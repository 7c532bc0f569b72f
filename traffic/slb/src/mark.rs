//! The mark in the description of a server, which says whose server it is.

use ring::digest;
use traffic::Employer;

use crate::signature::hex;

/// The beginning of each mark. A description may have letters, digits, `-`, `/`, `.` and `_`.
const PREFIX: &str = "op/";
/// Longest description.
const LONGEST: usize = 80;

/// What identifies an employer in marks: 16 hexadecimal digits. It is made from the name of the cluster and from kind,
/// namespace and name, and not from the UID: a Service that is created anew takes over its servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EmployerMark(String);

/// Whose a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The employer's, with the UID of the Pod.
    Own(String),
    /// Another employer's, or somebody's who is unknown.
    Other,
}

impl EmployerMark {
    pub(crate) fn new(cluster: &str, employer: &Employer) -> EmployerMark {
        let parts = [cluster, &employer.kind, &employer.namespace, &employer.name];
        let hash = digest::digest(&digest::SHA256, parts.join("\0").as_bytes());
        EmployerMark(hex(&hash.as_ref()[..8]))
    }

    /// The description of a server of this employer; `None` if the UID can't be part of a description.
    pub(crate) fn description(&self, uid: &str) -> Option<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let text = format!("{PREFIX}{}/{uid}", self.0);
        let fits = !uid.is_empty() && uid.chars().all(plain) && text.len() <= LONGEST;
        fits.then_some(text)
    }

    /// Whose the server with this description is.
    pub(crate) fn owner(&self, description: &str) -> Owner {
        let rest = description.strip_prefix(PREFIX);
        match rest.and_then(|rest| rest.split_once('/')) {
            Some((hash, uid)) if hash == self.0 => Owner::Own(uid.to_owned()),
            _ => Owner::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const UID: &str = "7f9c24e8-3b12-4a8e-9a37-0d6d1c2b3a4f";

    fn employer(name: &str) -> Employer {
        Employer {
            kind: "Service".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            ..Employer::default()
        }
    }

    #[test]
    fn mark_is_read_back() {
        let mark = EmployerMark::new("", &employer("web"));
        let description = mark.description(UID).unwrap();
        assert!(description.len() <= LONGEST, "{description}");
        assert_eq!(mark.owner(&description), Owner::Own(UID.to_owned()));
    }

    #[test]
    fn other_employers_and_clusters_are_others() {
        let mark = EmployerMark::new("a", &employer("web"));
        let description = mark.description(UID).unwrap();
        let others = [
            EmployerMark::new("a", &employer("api")),
            EmployerMark::new("b", &employer("web")),
        ];
        for other in others {
            assert_eq!(other.owner(&description), Owner::Other);
        }
        for text in ["", "test-112", "op/", "op/zz"] {
            assert_eq!(mark.owner(text), Owner::Other, "{text}");
        }
    }

    #[test]
    fn unfit_uids_have_no_description() {
        let mark = EmployerMark::new("", &employer("web"));
        for uid in ["", "a b", "ä", &"a".repeat(80)] {
            assert_eq!(mark.description(uid), None, "{uid}");
        }
    }
}
