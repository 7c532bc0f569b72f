//! Decides by the clock what the Secret needs. It does no I/O.

use std::fmt;
use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::names::server_name_text;
use super::{CertificateNames, Material};
use crate::tls::certificate_pair::parse_validity;
use crate::tls::{CertificatePair, crypto_provider};

/// Time before now at which the validity of a certificate begins, for clients whose clocks are behind.
pub(super) const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// Maximum number of names of a former leaf that are carried over.
const MAX_CARRIED_NAMES: usize = 16;

/// Lifetimes of certificates and segments. A certificate is renewed when two thirds of its lifetime have passed.
#[derive(Clone, Debug)]
pub struct RenewalPolicy {
    /// Lifetime of an authority.
    pub authority: SignedDuration,
    /// Lifetime of a leaf. It ends with its authority at the latest.
    pub leaf: SignedDuration,
    /// Time between the steps of a change of authority. It must be long enough for every replica and API server to see
    /// each step.
    pub settle: SignedDuration,
    /// Lifetime of a segment of the webhook paths. It is short, because error texts can show a segment.
    pub segment: SignedDuration,
    /// Time between the steps of a change of segment. Replicas read the Secret each minute.
    pub segment_settle: SignedDuration,
}

impl Default for RenewalPolicy {
    fn default() -> Self {
        RenewalPolicy {
            authority: SignedDuration::from_hours(10 * 365 * 24),
            leaf: SignedDuration::from_hours(365 * 24),
            settle: SignedDuration::from_hours(1),
            segment: SignedDuration::from_hours(24),
            segment_settle: SignedDuration::from_mins(10),
        }
    }
}

/// The next step for the Secret. The text says why, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalStep {
    /// The Secret needs no change.
    Keep,
    /// Issue a new authority and at once a leaf of it. Former authorities stay trusted.
    Everything(String),
    /// Issue a new authority and put it before the others. The leaf stays.
    Authority(String),
    /// Issue a new leaf of the first authority.
    Leaf(String),
    /// Remove all authorities except the first.
    Forget(String),
}

impl fmt::Display for RenewalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenewalStep::Keep => write!(f, "the webhook certificate needs no change"),
            RenewalStep::Everything(why) => write!(
                f,
                "issuing a new authority and a webhook certificate that it signs: {why}"
            ),
            RenewalStep::Authority(why) => write!(
                f,
                "issuing a new authority, which will sign the next webhook certificate: {why}"
            ),
            RenewalStep::Leaf(why) => write!(f, "issuing a new webhook certificate: {why}"),
            RenewalStep::Forget(why) => write!(f, "removing the former authorities: {why}"),
        }
    }
}

/// The next step for the content of the Secret (`None` if there is no Secret) at `now`.
pub fn next_step(
    current: Option<&Material>,
    now: Timestamp,
    names: &CertificateNames,
    policy: &RenewalPolicy,
) -> RenewalStep {
    let Some(current) = current else {
        return RenewalStep::Everything("there is no Secret yet".to_owned());
    };
    let roots = current.roots(now);
    let Some(first) = roots.first() else {
        return RenewalStep::Everything("ca.crt holds no valid certificate".to_owned());
    };
    let can_sign = current.signer(first).is_some();
    let authority_due = is_renewal_due(first, now);
    let pair = match check_pair_names(current, &roots, now, names) {
        Ok(pair) => pair,
        Err(reason) if can_sign && !authority_due => return RenewalStep::Leaf(reason),
        Err(reason) => return RenewalStep::Everything(reason),
    };
    let leaf_due = renewal_time(pair.not_before(), pair.not_after()) <= now;
    if authority_due || (leaf_due && !can_sign) {
        let reason = if authority_due {
            "two thirds of the lifetime of the authority have passed"
        } else {
            "ca.key cannot sign the next leaf"
        };
        return RenewalStep::Authority(reason.to_owned());
    }
    if !is_signed_by(&pair, &roots[..1], now) {
        return match is_known_everywhere(first, now, policy) {
            true => RenewalStep::Leaf("the new authority is known everywhere".to_owned()),
            false => RenewalStep::Keep,
        };
    }
    if leaf_due {
        return RenewalStep::Leaf(
            "two thirds of the lifetime of the certificate have passed".to_owned(),
        );
    }
    let leaf = CertificateDer::from(pair.leaf_der());
    if roots.len() > 1 && is_known_everywhere(&leaf, now, policy) {
        return RenewalStep::Forget("no leaf of a former authority is in service".to_owned());
    }
    RenewalStep::Keep
}

/// The names for the next leaf: `names`, and those of the current leaf if it is valid but lacks some of them. Otherwise
/// replicas that want different names, as in a rolling change of the webhook URL, would replace the leaf again and
/// again.
pub(super) fn next_names(
    current: &Material,
    now: Timestamp,
    names: &CertificateNames,
) -> CertificateNames {
    match check_pair(current, &current.roots(now), now) {
        Ok(pair) if missing_name(&pair, names).is_some() => {
            names.with_names(alternative_names(pair.leaf_der()))
        }
        _ => names.clone(),
    }
}

/// The pair, if clients that trust `roots` accept it now under all names.
fn check_pair_names(
    current: &Material,
    roots: &[CertificateDer<'_>],
    now: Timestamp,
    names: &CertificateNames,
) -> Result<CertificatePair, String> {
    let pair = check_pair(current, roots, now)?;
    match missing_name(&pair, names) {
        Some(name) => Err(format!("the leaf lacks the name {name}")),
        None => Ok(pair),
    }
}

/// The pair, if clients that trust `roots` accept it now under at least one name.
fn check_pair(
    current: &Material,
    roots: &[CertificateDer<'_>],
    now: Timestamp,
) -> Result<CertificatePair, String> {
    let pair = CertificatePair::from_pem(&current.tls_crt, &current.tls_key)
        .map_err(|error| error.to_string())?;
    if now < pair.not_before() || pair.not_after() <= now {
        return Err("the leaf is not valid now".to_owned());
    }
    if !is_signed_by(&pair, roots, now) {
        return Err("the leaf is of no authority in ca.crt".to_owned());
    }
    Ok(pair)
}

/// The first name that the leaf lacks.
fn missing_name(pair: &CertificatePair, names: &CertificateNames) -> Option<String> {
    let leaf = CertificateDer::from(pair.leaf_der());
    let parsed = ParsedCertificate::try_from(&leaf).ok();
    let has = |name| {
        parsed
            .as_ref()
            .is_some_and(|leaf| verify_server_name(leaf, name).is_ok())
    };
    names.iter().find(|name| !has(name)).map(server_name_text)
}

fn alternative_names(leaf: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(leaf) else {
        return Vec::new();
    };
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets)
                .ok()
                .map(|octets| IpAddr::from(octets).to_string()),
            _ => <[u8; 16]>::try_from(*octets)
                .ok()
                .map(|octets| IpAddr::from(octets).to_string()),
        },
        _ => None,
    };
    extension
        .value
        .general_names
        .iter()
        .filter_map(text)
        .take(MAX_CARRIED_NAMES)
        .collect()
}

/// Whether one of `roots` has signed the leaf, directly or through the chain.
pub(super) fn is_signed_by(
    pair: &CertificatePair,
    roots: &[CertificateDer<'_>],
    now: Timestamp,
) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let algorithms = crypto_provider().signature_verification_algorithms.all;
    let leaf = CertificateDer::from(pair.leaf_der());
    ParsedCertificate::try_from(&leaf)
        .and_then(|leaf| {
            verify_server_cert_signed_by_trust_anchor(
                &leaf,
                &store,
                pair.intermediates(),
                now,
                algorithms,
            )
        })
        .is_ok()
}

fn renewal_time(start: Timestamp, end: Timestamp) -> Timestamp {
    start + end.duration_since(start) * 2 / 3
}

fn is_renewal_due(der: &CertificateDer<'_>, now: Timestamp) -> bool {
    parse_validity(der).is_none_or(|(start, end)| renewal_time(start, end) <= now)
}

fn is_known_everywhere(der: &CertificateDer<'_>, now: Timestamp, policy: &RenewalPolicy) -> bool {
    parse_validity(der).is_some_and(|(start, _)| start + BACKDATE + policy.settle <= now)
}
