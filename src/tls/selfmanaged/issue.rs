//! Issues authorities and leaves with ECDSA P-256 keys from the random source of the system.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::{CertificateDer, ServerName};
use time::OffsetDateTime;

use super::renewal::{BACKDATE, next_names};
use super::{CertificateNames, Material, RenewalPolicy, RenewalStep};
use crate::tls::certificate_pair::parse_validity;

/// Maximum number of former authorities that stay trusted.
const MAX_FORMER_AUTHORITIES: usize = 3;

/// Why a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// Key generation or encoding failed.
    #[error("making a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The lifetime ends later than a certificate can express.
    #[error("making a certificate: the lifetime ends beyond the year 9999; shorten it")]
    Lifetime,
    /// `ca.key` is not the key of `ca.crt`, or cannot sign.
    #[error("making a certificate: ca.key cannot sign for the first certificate in ca.crt")]
    Signer,
}

/// Carries out a step. [`RenewalStep::Keep`] changes nothing.
///
/// # Errors
/// [`IssueError`] if the step does not fit `current`, or if a certificate cannot be issued.
pub fn apply_step(
    step: &RenewalStep,
    current: Option<&Material>,
    now: Timestamp,
    names: &CertificateNames,
    policy: &RenewalPolicy,
) -> Result<Material, IssueError> {
    let current = current.cloned().unwrap_or_default();
    let names = &next_names(&current, now, names);
    match step {
        RenewalStep::Keep => Ok(current),
        RenewalStep::Everything(_) => {
            issue_leaf(add_authority(current, now, policy)?, now, names, policy)
        }
        RenewalStep::Authority(_) => add_authority(current, now, policy),
        RenewalStep::Leaf(_) => issue_leaf(current, now, names, policy),
        RenewalStep::Forget(_) => {
            let first = current.roots(now).into_iter().take(1).collect::<Vec<_>>();
            Ok(Material {
                ca_crt: pem_bundle(&first).into_bytes(),
                ..current
            })
        }
    }
}

fn add_authority(
    current: Material,
    now: Timestamp,
    policy: &RenewalPolicy,
) -> Result<Material, IssueError> {
    let mut params = CertificateParams::new(Vec::new())?;
    // The name is unique, so that clients do not try the key of a former authority first.
    params.distinguished_name =
        common_name(format!("operating-webhook-ca@{}", now.as_millisecond()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = shift_time(now, -BACKDATE)?;
    params.not_after = shift_time(now, policy.authority)?;
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

    let mut roots = vec![authority.der().clone()];
    roots.extend(current.roots(now).into_iter().take(MAX_FORMER_AUTHORITIES));
    Ok(Material {
        ca_crt: pem_bundle(&roots).into_bytes(),
        ca_key: authority.key().serialize_pem().into_bytes(),
        ..current
    })
}

fn issue_leaf(
    current: Material,
    now: Timestamp,
    names: &CertificateNames,
    policy: &RenewalPolicy,
) -> Result<Material, IssueError> {
    let roots = current.roots(now);
    let first = roots.first().ok_or(IssueError::Signer)?;
    let signer: Issuer<'_, KeyPair> = current.signer(first).ok_or(IssueError::Signer)?;
    let (_, authority_end) = parse_validity(first).ok_or(IssueError::Signer)?;

    let mut params = CertificateParams::default();
    params.subject_alt_names = names
        .iter()
        .map(subject_alt_name)
        .collect::<Result<_, _>>()?;
    params.distinguished_name = common_name("operating-webhook".to_owned());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = shift_time(now, -BACKDATE)?;
    params.not_after =
        shift_time(now, policy.leaf)?.min(shift_time(authority_end, SignedDuration::ZERO)?);
    let key = KeyPair::generate()?;
    let leaf = params.signed_by(&key, &signer)?;
    Ok(Material {
        tls_crt: leaf.pem().into_bytes(),
        tls_key: key.serialize_pem().into_bytes(),
        ..current
    })
}

fn subject_alt_name(name: &ServerName<'_>) -> Result<SanType, IssueError> {
    match name {
        ServerName::IpAddress(ip) => Ok(SanType::IpAddress(IpAddr::from(*ip))),
        name => Ok(SanType::DnsName(
            super::names::server_name_text(name).try_into()?,
        )),
    }
}

fn common_name(name: String) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn shift_time(now: Timestamp, by: SignedDuration) -> Result<OffsetDateTime, IssueError> {
    let moment = now.checked_add(by).map_err(|_| IssueError::Lifetime)?;
    OffsetDateTime::from_unix_timestamp(moment.as_second()).map_err(|_| IssueError::Lifetime)
}

/// PEM of certificates, one after another.
pub(super) fn pem_bundle(roots: &[CertificateDer<'_>]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    roots
        .iter()
        .map(|der| pem::encode_config(&pem::Pem::new("CERTIFICATE", der.to_vec()), config))
        .collect()
}
