//! Signatures of the kind ACS3-HMAC-SHA256, as the reference "Request syntax and signature method V3" describes them.

use ring::{digest, hmac};

use crate::secret::Credentials;

const ALGORITHM: &str = "ACS3-HMAC-SHA256";

/// A request that is to be signed. Its method is POST, its path `/`, and its body empty.
pub(crate) struct Unsigned<'a> {
    /// Host, with its port if the URL has one.
    pub host: &'a str,
    /// Name of the action.
    pub action: &'a str,
    /// Version of the API.
    pub version: &'a str,
    /// UTC, as `2024-01-01T00:00:00Z`. Accepted for about 15 minutes.
    pub date: &'a str,
    /// A text that no other request has.
    pub nonce: &'a str,
    /// Parameters.
    pub parameters: &'a [(String, String)],
}

/// The query and the headers of a signed request. The header `host` is left out, since the HTTP client sends it.
pub(crate) struct Signed {
    pub query: String,
    pub headers: Vec<(&'static str, String)>,
}

/// Signs a request.
pub(crate) fn sign(request: &Unsigned<'_>, credentials: &Credentials) -> Signed {
    let body_hash = hex(digest::digest(&digest::SHA256, b"").as_ref());
    let mut headers = vec![
        ("host", request.host.to_owned()),
        ("x-acs-action", request.action.to_owned()),
        ("x-acs-content-sha256", body_hash.clone()),
        ("x-acs-date", request.date.to_owned()),
        ("x-acs-signature-nonce", request.nonce.to_owned()),
        ("x-acs-version", request.version.to_owned()),
    ];
    let key_id = credentials.key_id.reveal();
    if let Some(token) = &credentials.token {
        headers.push(("x-acs-accesskey-id", key_id.to_owned()));
        headers.push(("x-acs-security-token", token.reveal().to_owned()));
    }
    headers.sort();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers.iter().map(|(k, v)| format!("{k}:{v}\n")).collect();

    let query = query(request.parameters);
    let canonical = ["POST", "/", &query, &lines, &names, &body_hash].join("\n");
    let canonical = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("{ALGORITHM}\n{canonical}");
    let key = hmac::Key::new(
        hmac::HMAC_SHA256,
        credentials.key_secret.reveal().as_bytes(),
    );
    let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());

    headers.retain(|(name, _)| *name != "host");
    headers.push((
        "authorization",
        format!("{ALGORITHM} Credential={key_id},SignedHeaders={names},Signature={signature}"),
    ));
    Signed { query, headers }
}

/// A query or a form: sorted by name, percent-encoded.
pub(crate) fn query(parameters: &[(String, String)]) -> String {
    let mut parameters: Vec<_> = parameters.iter().collect();
    parameters.sort();
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(k, v)| format!("{}={}", encode(k), encode(v)))
        .collect();
    pairs.join("&")
}

/// Percent-encodes all bytes but the unreserved ones of RFC 3986.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::secret::Secret;

    fn credentials(id: &str, secret: &str, token: Option<&str>) -> Credentials {
        Credentials {
            key_id: Secret::new(id.to_owned()),
            key_secret: Secret::new(secret.to_owned()),
            token: token.map(|token| Secret::new(token.to_owned())),
        }
    }

    fn header<'a>(signed: &'a Signed, name: &str) -> Option<&'a str> {
        let found = signed.headers.iter().find(|(k, _)| *k == name);
        found.map(|(_, v)| v.as_str())
    }

    fn signature(signed: &Signed) -> &str {
        let authorization = header(signed, "authorization").unwrap();
        authorization.split("Signature=").nth(1).unwrap()
    }

    #[test]
    fn published_vector_is_met() {
        let parameters = [
            ("RegionId".to_owned(), "cn-shanghai".to_owned()),
            (
                "ImageId".to_owned(),
                "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd".to_owned(),
            ),
        ];
        let request = Unsigned {
            host: "ecs.cn-shanghai.aliyuncs.com",
            action: "RunInstances",
            version: "2014-05-26",
            date: "2023-10-26T10:22:32Z",
            nonce: "3156853299f313e23d1673dc12e1703d",
            parameters: &parameters,
        };
        let signed = sign(
            &request,
            &credentials("YourAccessKeyId", "YourAccessKeySecret", None),
        );
        assert_eq!(
            signature(&signed),
            "06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
        );
    }

    fn slb(parameters: &[(String, String)]) -> Unsigned<'_> {
        Unsigned {
            host: "slb.aliyuncs.com",
            action: "DescribeHealthStatus",
            version: "2014-05-15",
            date: "2024-01-01T00:00:00Z",
            nonce: "n1",
            parameters,
        }
    }

    #[test]
    fn vector_of_load_balancer_is_met() {
        let parameters = [("LoadBalancerId".to_owned(), "lb-1".to_owned())];
        let signed = sign(&slb(&parameters), &credentials("id", "testsecret", None));
        assert_eq!(
            signature(&signed),
            "8d61cfe5f0eeb82c6c41a5baa33f5b0dc6062d6331f2c6c053afe37cfbeb12dc"
        );
        assert_eq!(signed.query, "LoadBalancerId=lb-1");
        assert_eq!(header(&signed, "x-acs-security-token"), None);
    }

    #[test]
    fn token_is_signed() {
        let signed = sign(&slb(&[]), &credentials("id", "secret", Some("token")));
        assert_eq!(header(&signed, "x-acs-security-token"), Some("token"));
        let authorization = header(&signed, "authorization").unwrap();
        assert!(
            authorization.contains("SignedHeaders=host;x-acs-accesskey-id;x-acs-action;x-acs-content-sha256;x-acs-date;x-acs-security-token;x-acs-signature-nonce;x-acs-version,"),
            "{authorization}"
        );
    }

    #[test]
    fn reserved_bytes_are_encoded() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let encoded = query(&[pair("b", "a b*c~/ü"), pair("a.10", "&="), pair("a.1", "+")]);
        assert_eq!(encoded, "a.1=%2B&a.10=%26%3D&b=a%20b%2Ac~%2F%C3%BC");
    }
}
