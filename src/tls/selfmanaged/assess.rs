//! What a Secret needs, by the clock. Pure.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::server::ParsedCertificate;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::names::text;
use super::{Material, Names};
use crate::tls::pair::validity;
use crate::tls::{Pair, provider};

/// How far back validity begins, for clocks that are behind ours.
pub(super) const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// Names of a former leaf that are carried over at most.
const CARRIED_OVER: usize = 16;

/// Lifetimes. Each certificate is renewed when two thirds of its own have passed.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Of an authority.
    pub authority: SignedDuration,
    /// Of a leaf; ends with its authority at the latest.
    pub leaf: SignedDuration,
    /// Between the steps of a change of authority: long enough for every replica and API server to see each.
    pub settle: SignedDuration,
    /// Of a segment of the webhook paths. Short, because error texts can show one.
    pub segment: SignedDuration,
    /// Between the steps of a change of segment. Replicas look at the Secret each minute.
    pub segment_settle: SignedDuration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            authority: SignedDuration::from_hours(10 * 365 * 24),
            leaf: SignedDuration::from_hours(365 * 24),
            settle: SignedDuration::from_hours(1),
            segment: SignedDuration::from_hours(24),
            segment_settle: SignedDuration::from_mins(10),
        }
    }
}

/// What to do next. The text says why, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// A new authority and a leaf of it at once; former authorities stay trusted.
    Everything(String),
    /// A new authority in front of the others; the leaf stays.
    Authority(String),
    /// A new leaf of the first authority.
    Leaf(String),
    /// Trust the first authority only.
    Forget(String),
}

/// The next step for the Secret's content (`None` when there is no Secret) at `now`.
pub fn assess(current: Option<&Material>, now: Timestamp, names: &Names, policy: &Policy) -> Step {
    let Some(current) = current else {
        return Step::Everything("there is no Secret yet".to_owned());
    };
    let roots = current.roots(now);
    let Some(first) = roots.first() else {
        return Step::Everything("ca.crt holds no valid certificate".to_owned());
    };
    let can_sign = current.signer(first).is_some();
    let authority_due = is_due(first, now);
    let pair = match usable(current, &roots, now, names) {
        Ok(pair) => pair,
        Err(why) if can_sign && !authority_due => return Step::Leaf(why),
        Err(why) => return Step::Everything(why),
    };
    let leaf_due = two_thirds(pair.not_before(), pair.not_after()) <= now;
    if authority_due || (leaf_due && !can_sign) {
        let why = if authority_due {
            "two thirds of its life have passed"
        } else {
            "ca.key cannot sign the next leaf"
        };
        return Step::Authority(why.to_owned());
    }
    if !is_signed_by(&pair, &roots[..1], now) {
        return match is_settled(first, now, policy) {
            true => Step::Leaf("the new authority is known everywhere".to_owned()),
            false => Step::Keep,
        };
    }
    if leaf_due {
        return Step::Leaf("two thirds of its life have passed".to_owned());
    }
    let leaf = CertificateDer::from(pair.leaf());
    if roots.len() > 1 && is_settled(&leaf, now, policy) {
        return Step::Forget("no leaf of a former authority is in service".to_owned());
    }
    Step::Keep
}

/// The names for the next leaf: `names`, and those of the current leaf if it is good but lacks some of them. Replicas
/// that want different names, as in a rolling change of the webhook URL, would otherwise take turns at replacing it.
pub(super) fn next_names(current: &Material, now: Timestamp, names: &Names) -> Names {
    match valid(current, &current.roots(now), now) {
        Ok(pair) if missing(&pair, names).is_some() => names.and(alternative_names(pair.leaf())),
        _ => names.clone(),
    }
}

/// The pair, if clients that trust `roots` accept it now under all names.
fn usable(
    current: &Material,
    roots: &[CertificateDer<'_>],
    now: Timestamp,
    names: &Names,
) -> Result<Pair, String> {
    let pair = valid(current, roots, now)?;
    match missing(&pair, names) {
        Some(name) => Err(format!("the leaf lacks the name {name}")),
        None => Ok(pair),
    }
}

/// The pair, if clients that trust `roots` accept it now under some name.
fn valid(current: &Material, roots: &[CertificateDer<'_>], now: Timestamp) -> Result<Pair, String> {
    let pair =
        Pair::from_pem(&current.tls_crt, &current.tls_key).map_err(|error| error.to_string())?;
    if now < pair.not_before() || pair.not_after() <= now {
        return Err("the leaf is not valid now".to_owned());
    }
    if !is_signed_by(&pair, roots, now) {
        return Err("the leaf is of no authority in ca.crt".to_owned());
    }
    Ok(pair)
}

/// The first name that the leaf lacks.
fn missing(pair: &Pair, names: &Names) -> Option<String> {
    let leaf = CertificateDer::from(pair.leaf());
    let parsed = ParsedCertificate::try_from(&leaf).ok();
    let has = |name| {
        parsed
            .as_ref()
            .is_some_and(|leaf| verify_server_name(leaf, name).is_ok())
    };
    names.iter().find(|name| !has(name)).map(text)
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
        .take(CARRIED_OVER)
        .collect()
}

/// Whether one of `roots` has issued the leaf, directly or through the chain.
pub(super) fn is_signed_by(pair: &Pair, roots: &[CertificateDer<'_>], now: Timestamp) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let algorithms = provider().signature_verification_algorithms.all;
    let leaf = CertificateDer::from(pair.leaf());
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

fn two_thirds(start: Timestamp, end: Timestamp) -> Timestamp {
    start + end.duration_since(start) * 2 / 3
}

fn is_due(der: &CertificateDer<'_>, now: Timestamp) -> bool {
    validity(der).is_none_or(|(start, end)| two_thirds(start, end) <= now)
}

fn is_settled(der: &CertificateDer<'_>, now: Timestamp, policy: &Policy) -> bool {
    validity(der).is_some_and(|(start, _)| start + BACKDATE + policy.settle <= now)
}
