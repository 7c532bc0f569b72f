//! Who is at the other end of a connection.

/// Put into the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// No listener asks for more.
    Anyone,
    /// Has shown a client certificate of somebody who may call.
    Known,
    /// Has shown none, or one of somebody else.
    Unknown,
}
