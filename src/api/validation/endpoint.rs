//! Validates URLs and certificates of HTTP endpoints. Admission checks only their form and opens no
//! connection. The errors quote no value: a URL may contain a password, and the error of a stored rule is
//! shown to every user who deletes a Pod.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::Uri;
use http::uri::Authority;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::FieldError;

/// The error of a URL.
pub fn url_error(url: &str, path: &str) -> Option<FieldError> {
    if url.is_empty() {
        return Some(FieldError::missing_field(
            path,
            "is required: set it to an http or https URL",
        ));
    }
    let good = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some_and(has_host)
    });
    let problem =
        "must be an http or https URL with a host, such as https://check.example.com/pods";
    (!good).then(|| FieldError::missing_field(path, problem))
}

// `Authority` accepts a port that is not a number, such as `a:port`, so this function checks the port.
fn has_host(authority: &Authority) -> bool {
    let address = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = address.strip_prefix(authority.host()).unwrap_or(address);
    !authority.host().is_empty() && (port.is_empty() || authority.port_u16().is_some())
}

/// The error of a certificate bundle, which is base64 of PEM. An empty bundle, or a mere line break (which
/// some clients send), means no bundle.
pub fn ca_bundle_error(bundle: &str, path: &str) -> Option<FieldError> {
    let error = |problem: &str| Some(FieldError::missing_field(path, problem));
    let Some(pem) = decode_ca_bundle(bundle) else {
        return error(
            "must be base64: encode the PEM file, for example with base64 <ca.crt | tr -d '\\n'",
        );
    };
    if pem.trim_ascii().is_empty() {
        return None;
    }
    let mut certificates = 0;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let readable =
            certificate.is_ok_and(|der| x509_parser::parse_x509_certificate(&der).is_ok());
        if !readable {
            return error(
                "has a PEM block that is no certificate: encode a file of X.509 certificates only",
            );
        }
        certificates += 1;
    }
    match certificates {
        0 => error(
            "has no certificate in it: encode a PEM file that begins with -----BEGIN CERTIFICATE-----",
        ),
        _ => None,
    }
}

/// The decoded bytes of a bundle, which need not be PEM; `None` if the bundle is not base64.
pub fn decode_ca_bundle(bundle: &str) -> Option<Vec<u8>> {
    // Line breaks between the characters are allowed, as in Go.
    let text: String = bundle
        .chars()
        .filter(|c| !matches!(c, '\r' | '\n'))
        .collect();
    BASE64_STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn encoded(text: &str) -> String {
        BASE64_STANDARD.encode(text)
    }

    #[test]
    fn urls_are_validated() {
        for good in [
            "http://a",
            "https://a.example:8443/x?y=z",
            "http://10.0.0.1:80",
            "https://[::1]:9443/",
            "http://u:p@a:1/",
        ] {
            assert_eq!(url_error(good, "url"), None, "{good}");
        }
        for bad in [
            "a",
            "a:80",
            "/path",
            "ftp://a",
            "https://",
            "https:///x",
            "https://a b",
            "http://a:port",
            "mailto:a@b",
        ] {
            let error = url_error(bad, "url").unwrap();
            assert_eq!(
                error.to_string(),
                "url: must be an http or https URL with a host, such as https://check.example.com/pods"
            );
        }
        assert_eq!(
            url_error("", "url").unwrap().to_string(),
            "url: is required: set it to an http or https URL"
        );
    }

    #[test]
    fn ca_bundles_are_validated() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()])
            .unwrap()
            .cert
            .pem();
        let mut wrapped = encoded(&pem);
        wrapped.insert(64, '\n');
        for good in [
            "",
            "Cg==",
            "\n",
            &encoded(&pem),
            &encoded(&format!("{pem}{pem}")),
            &wrapped,
        ] {
            assert_eq!(ca_bundle_error(good, "caBundle"), None, "{good}");
        }
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (bad, want) in [
            ("***".to_owned(), "must be base64"),
            (pem.clone(), "must be base64"),
            (encoded("hello"), "has no certificate in it"),
            (encoded(broken), "has a PEM block that is no certificate"),
            (
                encoded(&format!("{pem}{broken}")),
                "has a PEM block that is no certificate",
            ),
        ] {
            let error = ca_bundle_error(&bad, "caBundle").unwrap();
            assert!(error.problem.starts_with(want), "{error}");
        }
    }
}
