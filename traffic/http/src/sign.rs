//! The HMAC signature of a request.

use ring::hmac;

/// Header with the time of the request, in seconds since 1970.
pub const TIMESTAMP_HEADER: &str = "x-operating-timestamp";

/// Header with the [`signature`].
pub const SIGNATURE_HEADER: &str = "x-operating-signature";

/// The signature of a request: `v1=` and the HMAC-SHA256, in lower-case hex, over these lines, which are joined by a
/// newline: the value of [`TIMESTAMP_HEADER`], the value of `x-request-id`, the name of the call (`observe` or `apply`),
/// the body.
///
/// The receiver computes the same value, and compares it in constant time. It should refuse times that are more than
/// five minutes away from its own clock, so that an old request can't be sent again.
#[must_use]
pub fn signature(key: &[u8], timestamp: i64, request_id: &str, call: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{timestamp}\n{request_id}\n{call}\n").as_bytes());
    context.update(body);
    let tag = context.sign();
    let hex = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
    format!("v1={}", hex.collect::<String>())
}

/// Whether a request has this [`signature`], for the receiver. Takes the same time for each wrong signature of the right
/// length. The receiver must also compare `timestamp` with its clock.
#[must_use]
pub fn is_signed(
    key: &[u8],
    timestamp: i64,
    request_id: &str,
    call: &str,
    body: &[u8],
    found: &str,
) -> bool {
    let expected = signature(key, timestamp, request_id, call, body);
    let differences = expected.bytes().zip(found.bytes());
    let differences = differences.fold(0, |all, (a, b)| all | (a ^ b));
    expected.len() == found.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::{is_signed, signature};

    #[test]
    fn receiver_accepts_the_whole_signature_only() {
        let signed = signature(b"key", 1, "id", "observe", b"{}");
        let accepts = |found: &str| is_signed(b"key", 1, "id", "observe", b"{}", found);
        assert!(accepts(&signed));
        assert!(!accepts(""));
        assert!(!accepts(signed.get(..60).unwrap_or_default()));
        assert!(!accepts(&format!("{signed}0")));
        assert!(!accepts(&signed.replace("v1", "v2")));
    }

    /// The expected value is of another implementation:
    /// `printf '1700000000\nid-1\nobserve\n{}' | openssl dgst -sha256 -hmac key`.
    #[test]
    fn signature_agrees_with_another_implementation() {
        let expected = "v1=4d231ec422fdf688ca4f9eab8070b6100b2952f86d086b479ee8575866923f77";
        assert_eq!(
            signature(b"key", 1_700_000_000, "id-1", "observe", b"{}"),
            expected
        );
    }

    #[test]
    fn signature_depends_on_every_part() {
        let first = signature(b"key", 1, "id", "observe", b"{}");
        let others = [
            signature(b"kez", 1, "id", "observe", b"{}"),
            signature(b"key", 2, "id", "observe", b"{}"),
            signature(b"key", 1, "ie", "observe", b"{}"),
            signature(b"key", 1, "id", "apply", b"{}"),
            signature(b"key", 1, "id", "observe", b"[]"),
        ];
        assert!(others.iter().all(|other| *other != first));
    }
}
