//! Checks the authority (`caBundle`) with which the API server verifies the server's certificate.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use x509_parser::pem::Pem;

use super::finding::Finding;

const CHECK: &str = "authority";
const REMEDY: &str = "The server sets it at its start; with cert-manager or --ca-file, see whether the Certificate or the file is \
                      current";

/// Judges the `caBundle` of every webhook of a configuration.
pub fn judge(name: &str, configuration: &Value, now: Timestamp) -> Finding {
    let hooks = configuration["webhooks"].as_array();
    for hook in hooks.into_iter().flatten() {
        let bundle = hook["clientConfig"]["caBundle"].as_str();
        if let Err(wrong) = judge_bundle(bundle.unwrap_or_default(), now) {
            let hook = hook["name"].as_str().unwrap_or_default();
            let message = format!("the caBundle of {hook} in {name} {wrong}");
            return Finding::problem(CHECK, message, REMEDY);
        }
    }
    Finding::ok(CHECK, format!("every caBundle of {name} is valid"))
}

/// # Errors
/// What is wrong, as the rest of a sentence. One valid certificate suffices: during a rotation there are two.
fn judge_bundle(bundle: &str, now: Timestamp) -> Result<(), String> {
    if bundle.is_empty() {
        return Err("is not set".to_owned());
    }
    let pem = STANDARD.decode(bundle);
    let pem = pem.map_err(|_| "is not base64".to_owned())?;
    let mut last = "holds no certificate in PEM form".to_owned();
    for block in Pem::iter_from_buffer(&pem).flatten() {
        let Ok(certificate) = block.parse_x509() else {
            continue;
        };
        let validity = certificate.validity();
        let seconds = now.as_second();
        if seconds < validity.not_before.timestamp() {
            last = format!("is valid only from {}", validity.not_before);
        } else if seconds > validity.not_after.timestamp() {
            last = format!("has expired at {}", validity.not_after);
        } else {
            return Ok(());
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cli::check::finding::State;

    fn bundle(from: i32, until: i32) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["ca".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn authority_must_be_set_readable_and_valid_now() {
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let (valid, expired, later) = (bundle(2025, 2030), bundle(2020, 2021), bundle(2030, 2040));
        for (pem, wrong) in [
            (valid.clone(), None),
            (format!("{expired}{valid}"), None),
            (expired, Some("has expired")),
            (later, Some("is valid only from")),
            (String::new(), Some("is not set")),
            ("text".to_owned(), Some("holds no certificate")),
        ] {
            let bundle = STANDARD.encode(&pem);
            let hook = json!({ "name": "h", "clientConfig": { "caBundle": bundle } });
            let finding = judge("m", &json!({ "webhooks": [hook] }), now);
            match wrong {
                None => assert_eq!(finding.state, State::Ok, "{finding:?}"),
                Some(wrong) => {
                    assert_eq!(finding.state, State::Problem, "{finding:?}");
                    assert!(finding.message.contains(wrong), "{finding:?}");
                }
            }
        }
        assert_eq!(judge_bundle("*", now), Err("is not base64".to_owned()));
    }
}
