//! The mark in the description of a server, which says whose server it is: `op/<employer>/<UID of the Pod>/<its name>`.
//!
//! A description has at most 80 letters, digits, `-`, `/`, `.` and `_`. So the employer is a hash, the UID is written in
//! base64, and a name that does not fit is left out.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use traffic::{Employer, PodId};

/// The beginning of each mark.
const PREFIX: &str = "op/";
/// Longest description.
const LONGEST: usize = 80;

/// What identifies an employer in marks. It is made from the name of the cluster and from kind, namespace and name, and
/// not from the UID: a Service that is created anew takes over its servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EmployerMark(String);

/// Whose a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The employer's, with the Pod. Its name is empty if it did not fit.
    Own(PodId),
    /// Another employer's, or somebody's who is unknown.
    Other,
}

impl EmployerMark {
    pub(crate) fn new(cluster: &str, employer: &Employer) -> EmployerMark {
        let parts = [cluster, &employer.kind, &employer.namespace, &employer.name];
        let hash = digest::digest(&digest::SHA256, parts.join("\0").as_bytes());
        EmployerMark(URL_SAFE_NO_PAD.encode(&hash.as_ref()[..12]))
    }

    /// The description of a server of this employer; `None` if the UID can't be part of a description.
    pub(crate) fn description(&self, pod: &PodId) -> Option<String> {
        let short = format!("{PREFIX}{}/{}/", self.0, write_uid(&pod.uid)?);
        let long = format!("{short}{}", pod.name);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        match long.len() <= LONGEST && pod.name.chars().all(plain) {
            true => Some(long),
            false => Some(short).filter(|short| short.len() <= LONGEST),
        }
    }

    /// Whose the server with this description is.
    pub(crate) fn owner(&self, description: &str) -> Owner {
        self.read(description).map_or(Owner::Other, Owner::Own)
    }

    fn read(&self, description: &str) -> Option<PodId> {
        let mut parts = description.strip_prefix(PREFIX)?.splitn(3, '/');
        if parts.next()? != self.0 {
            return None;
        }
        Some(PodId {
            uid: read_uid(parts.next()?)?,
            name: parts.next()?.to_owned(),
        })
    }
}

/// A UID: the 16 bytes of a UUID in base64, or `.` and the text if it is no UUID.
fn write_uid(uid: &str) -> Option<String> {
    let digits = uid.replace('-', "");
    if let Some(number) = u128::from_str_radix(&digits, 16).ok()
        && uuid(number) == uid
    {
        return Some(URL_SAFE_NO_PAD.encode(number.to_be_bytes()));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let fits = !uid.is_empty() && uid.chars().all(plain);
    fits.then(|| format!(".{uid}"))
}

fn read_uid(text: &str) -> Option<String> {
    if let Some(uid) = text.strip_prefix('.') {
        return Some(uid.to_owned());
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    Some(uuid(u128::from_be_bytes(bytes.try_into().ok()?)))
}

/// The usual text of a UUID.
fn uuid(number: u128) -> String {
    let digits = format!("{number:032x}");
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    parts.join("-")
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

    fn pod(uid: &str, name: &str) -> PodId {
        PodId {
            uid: uid.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn mark_is_read_back() {
        let mark = EmployerMark::new("", &employer("web"));
        let long = "a".repeat(200);
        for (uid, name, read) in [
            (UID, "web-7d4b9-x2x4z", "web-7d4b9-x2x4z"),
            (UID, long.as_str(), ""),
            ("00000000-0000-0000-0000-000000000001", "a.b", "a.b"),
            ("d41d8cd98f00b204e9800998ecf8427e", "static", "static"),
            ("some-id", "web-0", "web-0"),
        ] {
            let description = mark.description(&pod(uid, name)).unwrap();
            assert!(description.len() <= LONGEST, "{description}");
            let plain = |c: char| c.is_ascii_alphanumeric() || "-/._".contains(c);
            assert!(description.chars().all(plain), "{description}");
            assert_eq!(mark.owner(&description), Owner::Own(pod(uid, read)));
        }
    }

    #[test]
    fn names_of_37_characters_fit() {
        let mark = EmployerMark::new("", &employer("web"));
        let name = "n".repeat(37);
        let description = mark.description(&pod(UID, &name)).unwrap();
        assert_eq!(mark.owner(&description), Owner::Own(pod(UID, &name)));
    }

    #[test]
    fn other_employers_and_clusters_are_others() {
        let mark = EmployerMark::new("a", &employer("web"));
        let description = mark.description(&pod(UID, "web-0")).unwrap();
        let others = [
            EmployerMark::new("a", &employer("api")),
            EmployerMark::new("b", &employer("web")),
        ];
        for other in others {
            assert_eq!(other.owner(&description), Owner::Other);
        }
        let cut = &description[..description.len() - 8];
        assert_ne!(mark.owner(cut), mark.owner(&description));
        for text in ["", "test-112", "op/", "op/zz", &description[..25]] {
            assert_eq!(mark.owner(text), Owner::Other, "{text}");
        }
    }

    #[test]
    fn unfit_uids_have_no_description() {
        let mark = EmployerMark::new("", &employer("web"));
        for uid in ["", "a b", "ä", &"a".repeat(80)] {
            assert_eq!(mark.description(&pod(uid, "web-0")), None, "{uid}");
        }
    }
}
