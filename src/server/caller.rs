//! Says who calls on a connection.

/// The caller, as an extension of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// The listener does not check client certificates.
    Anyone,
    /// The client has shown the certificate of a caller that is allowed.
    Known,
    /// The client has shown no certificate, or the certificate of another client.
    Unknown,
}
