//! The rules of the arithmetic; each control removes one rule.

use super::model::{LIMIT, REST, SAFE, SEEN, TURN};

/// A rule taken out, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A claim is written whatever the ledger is meanwhile.
    NoCompareAndSwap,
    /// A decision may be based on a cache that is older than the last release.
    NoWatermark,
    /// Claims from before the rule had zones hold nobody.
    EarlierClaimsIgnored,
    /// A Pod of another zone that is seen to be down is no loss.
    DownIgnored,
    /// A Pod that does not exist is no loss.
    MissingIgnored,
    /// A Pod that is not scheduled is no loss.
    UnscheduledIgnored,
    /// A loss of which the zone is not known counts for the zone that is asked for.
    UnknownTakenForHere,
    /// All Pods without the label count as one zone.
    UnlabelledShareAZone,
    /// The ledger does not remember which zone is open.
    NoWindow,
    /// The window ends although fewer Pods are available than expected, if no loss is known in its zone.
    WindowEndsShort,
    /// The window ends although claims are left.
    WindowEndsWithClaims,
    /// The window ends on a cache that is older than the last release.
    WindowEndsBehind,
    /// The end of a window raises no watermark.
    EndLeavesNoMark,
    /// Nobody ends the window.
    WindowNeverEnds,
    /// The label of a scheduled Pod may be changed.
    RelabelAllowed,
    /// A zone continues although it is the turn of another zone.
    TurnIgnored,
    /// A turn that nobody takes never lapses.
    TurnNeverLapses,
    /// Losses of other partitions are not told apart from those of this one.
    PartitionsIgnored,
    /// The zone is the only limit.
    NoMaximum,
}

impl Fault {
    /// The property that breaks.
    pub fn breaks(self) -> &'static str {
        match self {
            Fault::DownIgnored
            | Fault::MissingIgnored
            | Fault::UnscheduledIgnored
            | Fault::UnknownTakenForHere
            | Fault::EndLeavesNoMark => SEEN,
            Fault::WindowNeverEnds | Fault::TurnNeverLapses | Fault::PartitionsIgnored => REST,
            Fault::TurnIgnored => TURN,
            Fault::NoMaximum | Fault::NoWatermark => LIMIT,
            _ => SAFE,
        }
    }
}
