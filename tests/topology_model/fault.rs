//! The rules of the arithmetic; each control removes one rule.

use super::model::{LIMIT, REST, SAFE, SEEN, TURN};

/// A rule of the arithmetic that a control removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A claim is written without a check that the ledger is unchanged.
    NoCompareAndSwap,
    /// A decision may be based on a cache that is older than the last release.
    NoWatermark,
    /// Claims from before the rule had zones hold no request.
    EarlierClaimsIgnored,
    /// A Pod of another zone that is known to be down does not count as a loss.
    DownIgnored,
    /// An absent Pod does not count as a loss.
    MissingIgnored,
    /// A Pod that is not scheduled does not count as a loss.
    UnscheduledIgnored,
    /// A loss in an unknown zone counts for the zone of the request.
    UnknownTakenForHere,
    /// All Pods without the label count as one zone.
    UnlabelledShareAZone,
    /// The ledger does not remember which zone is open.
    NoWindow,
    /// The window ends although fewer Pods are available than expected, if no loss is known in its zone.
    WindowEndsShort,
    /// The window ends although claims exist.
    WindowEndsWithClaims,
    /// The window ends on a cache that is older than the last release.
    WindowEndsBehind,
    /// The end of a window does not raise the watermark.
    EndLeavesNoMark,
    /// No replica ends the window.
    WindowNeverEnds,
    /// The label of a scheduled Pod may be changed.
    RelabelAllowed,
    /// A zone continues although another zone has the turn.
    TurnIgnored,
    /// An unused turn never lapses.
    TurnNeverLapses,
    /// Losses of other partitions count for this one.
    PartitionsIgnored,
    /// The zone is the only limit.
    NoMaximum,
}

impl Fault {
    /// The property that this fault breaks.
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
