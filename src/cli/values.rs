//! Parsers for the values of flags. Each error says what is expected.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::domain::lifecycle::{NAME_RULE, is_label_name};
use crate::domain::operationjob::restart::settings::RestartMethod;

/// Parses a method to restart containers.
pub fn restart_method(text: &str) -> Result<RestartMethod, String> {
    let method = RestartMethod::parse(text);
    method.ok_or_else(|| "use ContainerRecreateRequest, ImageReference or auto".to_owned())
}

/// A duration such as `500ms`, `60s` or `1m30s`, not negative.
pub fn duration(text: &str) -> Result<Duration, String> {
    let remedy = "write a duration such as 500ms, 60s or 1m30s";
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| remedy.to_owned())?;
    Duration::try_from(parsed).map_err(|_| format!("must not be negative; {remedy}"))
}

/// An ID or a type of an operation, which are parts of label keys and label values.
pub fn operation_name(text: &str) -> Result<String, String> {
    match is_label_name(text) {
        true => Ok(text.to_owned()),
        false => Err(NAME_RULE.to_owned()),
    }
}

/// A feature gate, and whether it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureGate {
    /// `GraceDeleteWebhook`.
    GraceDelete(bool),
    CollaSets(bool),
    /// `ResourceConsist`.
    ResourceConsist(bool),
    /// `AlibabaCloudSlb`.
    AlibabaCloudSlb(bool),
    /// No gate: the value is empty.
    None,
}

/// Parses `Name=true` or `Name=false`. Gates that Kuperator also has keep their names (contract 2.6).
pub fn feature_gate(text: &str) -> Result<FeatureGate, String> {
    let remedy = "write NAME=true or NAME=false, where NAME is GraceDeleteWebhook, CollaSets, ResourceConsist or AlibabaCloudSlb";
    if text.trim().is_empty() {
        return Ok(FeatureGate::None);
    }
    let (name, value) = text.split_once('=').ok_or_else(|| remedy.to_owned())?;
    let on = match value.trim().to_ascii_lowercase().as_str() {
        "true" => true,
        "false" => false,
        _ => return Err(format!("{value:?} is neither true nor false; {remedy}")),
    };
    match (name.trim(), on) {
        ("GraceDeleteWebhook", on) => Ok(FeatureGate::GraceDelete(on)),
        ("CollaSets", on) => Ok(FeatureGate::CollaSets(on)),
        ("ResourceConsist", on) => Ok(FeatureGate::ResourceConsist(on)),
        ("AlibabaCloudSlb", on) => Ok(FeatureGate::AlibabaCloudSlb(on)),
        (name, _) => Err(format!("there is no feature {name:?} here; {remedy}")),
    }
}

/// Parses `https://host[:port]`, in the form that the API server accepts in a webhook configuration. Removes a final
/// slash.
pub fn webhook_url(text: &str) -> Result<String, String> {
    let remedy = "write https://HOST:PORT, without user, path and query";
    let uri: http::Uri = text.parse().map_err(|e| format!("{e}; {remedy}"))?;
    let authority = uri.authority().map(|a| a.as_str()).unwrap_or_default();
    if uri.scheme_str() != Some("https") || authority.is_empty() || authority.contains('@') {
        return Err(remedy.to_owned());
    }
    if uri.path() != "/" || uri.query().is_some() || text.contains('#') {
        return Err(remedy.to_owned());
    }
    Ok(format!("https://{authority}"))
}

/// Parses a network such as `10.0.0.0/8`, or one address.
pub fn cidr(text: &str) -> Result<IpNet, String> {
    let remedy = "write a network such as 10.0.0.0/8 or fd00::/8, or an address";
    let net = text
        .parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map_err(|_| remedy.to_owned())
}

/// Parses the name of a namespace: a DNS label of up to 63 characters.
pub fn namespace(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let well_formed = (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    let remedy = "write up to 63 lower-case letters, digits and '-', the first and last not a '-'";
    if well_formed {
        Ok(text.to_owned())
    } else {
        Err(remedy.to_owned())
    }
}

/// Parses the `namespace/name` of an object.
pub fn namespaced_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((ns, name)) if namespace(ns).is_ok() && !name.is_empty() && !name.contains('/') => {
            Ok(text.to_owned())
        }
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("60s").unwrap(), Duration::from_secs(60));
        assert_eq!(duration("1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("500ms").unwrap(), Duration::from_millis(500));
        for bad in ["", "60", "soon"] {
            assert_eq!(
                duration(bad).unwrap_err(),
                "write a duration such as 500ms, 60s or 1m30s",
                "{bad}"
            );
        }
        assert!(
            duration("-5s")
                .unwrap_err()
                .starts_with("must not be negative")
        );
    }

    #[test]
    fn feature_gates_are_parsed() {
        assert_eq!(
            feature_gate("GraceDeleteWebhook=true").unwrap(),
            FeatureGate::GraceDelete(true)
        );
        assert_eq!(
            feature_gate(" GraceDeleteWebhook = False").unwrap(),
            FeatureGate::GraceDelete(false)
        );
        assert_eq!(
            feature_gate("CollaSets=false").unwrap(),
            FeatureGate::CollaSets(false)
        );
        assert_eq!(feature_gate("").unwrap(), FeatureGate::None);
        assert_eq!(
            feature_gate("AlibabaCloudSlb=false").unwrap(),
            FeatureGate::AlibabaCloudSlb(false)
        );
        for bad in ["GraceDeleteWebhook", "GraceDeleteWebhook=on", "Other=true"] {
            assert!(
                feature_gate(bad).unwrap_err().ends_with(
                    "write NAME=true or NAME=false, where NAME is GraceDeleteWebhook, CollaSets, ResourceConsist or AlibabaCloudSlb"
                ),
                "{bad}"
            );
        }
    }

    #[test]
    fn urls_are_https_and_bare() {
        assert_eq!(
            webhook_url("https://localhost:9443").unwrap(),
            "https://localhost:9443"
        );
        assert_eq!(
            webhook_url("https://localhost:9443/").unwrap(),
            "https://localhost:9443"
        );
        assert_eq!(
            webhook_url("https://[::1]:9443").unwrap(),
            "https://[::1]:9443"
        );
        for bad in [
            "http://localhost",
            "localhost:9443",
            "https://a/b",
            "https://a?b",
            "https://u:p@a",
            "https://a/#b",
            "",
        ] {
            assert!(
                webhook_url(bad)
                    .unwrap_err()
                    .contains("write https://HOST:PORT"),
                "{bad}"
            );
        }
    }

    #[test]
    fn networks_are_parsed() {
        for (text, want) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("::1", "::1/128"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(cidr(text).unwrap().to_string(), want);
        }
        for bad in ["", "10.0.0.0/33", "ten", "10.0.0/8"] {
            assert!(cidr(bad).unwrap_err().contains("10.0.0.0/8"), "{bad}");
        }
    }

    #[test]
    fn names_are_validated() {
        assert_eq!(
            namespace("kusionstack-system").unwrap(),
            "kusionstack-system"
        );
        for bad in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
        assert_eq!(namespaced_name("a/b").unwrap(), "a/b");
        for bad in ["a", "a/", "/b", "a/b/c"] {
            assert_eq!(
                namespaced_name(bad).unwrap_err(),
                "write NAMESPACE/NAME",
                "{bad}"
            );
        }
    }
}
