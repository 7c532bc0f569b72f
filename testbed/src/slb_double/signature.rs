//! Verifies signatures of the kind ACS3-HMAC-SHA256.

use std::collections::BTreeMap;

use http::HeaderMap;
use ring::{digest, hmac};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::state::State;

/// How far a date may be from now, in seconds.
const WINDOW: i64 = 15 * 60;

/// Verifies a request.
///
/// # Errors
/// The code of the error.
pub(super) fn verify(
    state: &mut State,
    method: &str,
    query: &[(String, String)],
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(), &'static str> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let (key, signed, signature) =
        parse(header("authorization").unwrap_or_default()).ok_or("IncompleteSignature")?;
    let names: Vec<&str> = signed.split(';').collect();
    let must_be_signed =
        |name: &str| name == "host" || name == "content-type" || name.starts_with("x-acs-");
    let unsigned = |name: &&str| must_be_signed(name) && !names.contains(name);
    if headers
        .keys()
        .map(|name| name.as_str())
        .any(|name| unsigned(&name))
    {
        return Err("IncompleteSignature");
    }
    let hash = hex(digest::digest(&digest::SHA256, body).as_ref());
    if header("x-acs-content-sha256") != Some(hash.as_str()) {
        return Err("InvalidContentSha256");
    }
    let date = header("x-acs-date").unwrap_or_default();
    let date = OffsetDateTime::parse(date, &Rfc3339).map_err(|_| "InvalidTimeStamp.Format")?;
    let age = (OffsetDateTime::now_utc() - date).whole_seconds();
    if age.abs() > WINDOW {
        return Err("InvalidTimeStamp.Expired");
    }
    let secret = state.people.secret(key, header("x-acs-security-token"))?;

    // By name, and not by the whole pair: `a.1` comes before `a.10`.
    let mut query: Vec<_> = query.iter().collect();
    query.sort();
    let pairs: Vec<String> = query
        .iter()
        .map(|(k, v)| format!("{}={}", encode(k), encode(v)))
        .collect();
    let mut lines = BTreeMap::new();
    for name in &names {
        let value = header(name).ok_or("IncompleteSignature")?;
        lines.insert(*name, value.trim());
    }
    if !names.is_sorted() {
        return Err("IncompleteSignature");
    }
    let lines: String = lines.iter().map(|(k, v)| format!("{k}:{v}\n")).collect();
    let canonical = [method, "/", &pairs.join("&"), &lines, signed, &hash].join("\n");
    let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("ACS3-HMAC-SHA256\n{canonical}");
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    if hex(hmac::sign(&key, text.as_bytes()).as_ref()) != signature {
        return Err("SignatureDoesNotMatch");
    }
    let nonce = header("x-acs-signature-nonce").ok_or("MissingSignatureNonce")?;
    match state.nonces.insert(nonce.to_owned()) {
        true => Ok(()),
        false => Err("SignatureNonceUsed"),
    }
}

fn parse(authorization: &str) -> Option<(&str, &str, &str)> {
    let rest = authorization.strip_prefix("ACS3-HMAC-SHA256 ")?;
    let mut parts = rest.split(',');
    Some((
        parts.next()?.strip_prefix("Credential=")?,
        parts.next()?.strip_prefix("SignedHeaders=")?,
        parts.next()?.strip_prefix("Signature=")?,
    ))
}

fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    let each = |b: u8| match plain(b) {
        true => char::from(b).to_string(),
        false => format!("%{b:02X}"),
    };
    text.bytes().map(each).collect()
}

/// Lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of a request, signed with this implementation.
    fn signed(date: OffsetDateTime, query: &[(String, String)]) -> HeaderMap {
        let hash = hex(digest::digest(&digest::SHA256, b"").as_ref());
        let date = date
            .replace_nanosecond(0)
            .unwrap()
            .format(&Rfc3339)
            .unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "slb.example"),
            ("x-acs-content-sha256", &hash),
            ("x-acs-date", &date),
            ("x-acs-signature-nonce", "nonce-1"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let names = "host;x-acs-content-sha256;x-acs-date;x-acs-signature-nonce";
        let lines: String = names
            .split(';')
            .map(|name| format!("{name}:{}\n", headers[name].to_str().unwrap()))
            .collect();
        let query: Vec<String> = query.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let canonical = format!("POST\n/\n{}\n{lines}\n{names}\n{hash}", query.join("&"));
        let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key-secret");
        let text = format!("ACS3-HMAC-SHA256\n{canonical}");
        let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
        let authorization = format!(
            "ACS3-HMAC-SHA256 Credential=key-id,SignedHeaders={names},Signature={signature}"
        );
        headers.insert("authorization", authorization.parse().unwrap());
        headers
    }

    fn check(
        state: &mut State,
        headers: &HeaderMap,
        query: &[(String, String)],
    ) -> Result<(), &'static str> {
        verify(state, "POST", query, headers, b"")
    }

    #[test]
    fn replayed_request_is_refused() {
        let mut state = State::new();
        let headers = signed(OffsetDateTime::now_utc(), &[]);
        assert_eq!(check(&mut state, &headers, &[]), Ok(()));
        assert_eq!(check(&mut state, &headers, &[]), Err("SignatureNonceUsed"));
    }

    #[test]
    fn changed_parameter_is_refused() {
        let query = |value: &str| [("LoadBalancerId".to_owned(), value.to_owned())];
        let headers = signed(OffsetDateTime::now_utc(), &query("lb-1"));
        let changed = check(&mut State::new(), &headers, &query("lb-2"));
        assert_eq!(changed, Err("SignatureDoesNotMatch"));
        assert_eq!(check(&mut State::new(), &headers, &query("lb-1")), Ok(()));
    }

    #[test]
    fn old_request_is_refused() {
        let headers = signed(OffsetDateTime::now_utc() - time::Duration::minutes(16), &[]);
        let result = check(&mut State::new(), &headers, &[]);
        assert_eq!(result, Err("InvalidTimeStamp.Expired"));
    }

    #[test]
    fn unsigned_header_is_refused() {
        let mut headers = signed(OffsetDateTime::now_utc(), &[]);
        headers.insert("x-acs-action", "RemoveBackendServers".parse().unwrap());
        let result = check(&mut State::new(), &headers, &[]);
        assert_eq!(result, Err("IncompleteSignature"));
    }
}
