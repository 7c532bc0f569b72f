//! How a server says which version answers: in the denial of the invalid rule with which `operating check` asks.

use super::routes::WEBHOOK_REVISION;
use crate::api::crd::CRD_REVISION;

/// Name of the rule. A rule of this name is never stored, because whoever asks sends a dry run of an invalid rule.
pub const ASKING_RULE: &str = "operating-asks";

const BEGIN: &str = "answered by Operating ";
const CRDS: &str = ", CRD revision ";
const WEBHOOKS: &str = ", webhook revision ";

/// The version of a program, and the revisions of the objects that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnsweringVersion {
    /// Version of the program.
    pub version: String,
    /// Revision of its CRDs.
    pub crds: u32,
    /// Revision of its webhook configurations.
    pub webhooks: u32,
}

impl AnsweringVersion {
    /// The version of this program.
    pub fn own() -> AnsweringVersion {
        AnsweringVersion {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            crds: CRD_REVISION,
            webhooks: WEBHOOK_REVISION,
        }
    }

    /// The version and the revisions, without the words of a denial.
    pub fn version_only(&self) -> String {
        let text = self.to_string();
        text.strip_prefix(BEGIN).unwrap_or(&text).to_owned()
    }

    /// The version that a denial names; `None` if it names none.
    pub fn parse(denial: &str) -> Option<AnsweringVersion> {
        let (_, text) = denial.split_once(BEGIN)?;
        let (version, text) = text.split_once(CRDS)?;
        let (crds, text) = text.split_once(WEBHOOKS)?;
        let end = text.find(|c: char| !c.is_ascii_digit());
        Some(AnsweringVersion {
            version: version.to_owned(),
            crds: crds.parse().ok()?,
            webhooks: text[..end.unwrap_or(text.len())].parse().ok()?,
        })
    }
}

impl std::fmt::Display for AnsweringVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AnsweringVersion {
            version,
            crds,
            webhooks,
        } = self;
        write!(f, "{BEGIN}{version}{CRDS}{crds}{WEBHOOKS}{webhooks}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_read_from_the_denial_that_carries_it() {
        let own = AnsweringVersion::own();
        let denial = format!("PodTransitionRule operating-asks is invalid: spec ({own})");
        assert_eq!(AnsweringVersion::parse(&denial), Some(own));
        for other in [
            "",
            "is invalid: spec",
            "answered by Operating 1, CRD revision x",
        ] {
            assert_eq!(AnsweringVersion::parse(other), None, "{other}");
        }
    }
}
