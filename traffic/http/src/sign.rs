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

#[cfg(test)]
mod tests {
    use super::signature;

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
