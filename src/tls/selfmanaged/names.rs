//! The names under which clients reach the server.

use std::net::IpAddr;

use rustls_pki_types::ServerName;

/// Why a certificate cannot have a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is no name at all.
    #[error(
        "the certificate needs at least one name: a DNS name or an IP address of the webhook URL or Service"
    )]
    None,
    /// The text is neither a DNS name nor an IP address.
    #[error(
        "{0:?} is neither a DNS name nor an IP address; write it without scheme, port and brackets"
    )]
    Bad(String),
}

/// Subject alternative names: at least one, sorted, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateNames(Vec<ServerName<'static>>);

impl CertificateNames {
    /// Checks DNS names and IP addresses, for example the host of the webhook URL, or `<name>.<namespace>.svc` of the
    /// Service.
    ///
    /// # Errors
    /// [`NameError`] quotes the invalid name.
    pub fn new<S: Into<String>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<CertificateNames, NameError> {
        let mut texts: Vec<String> = names.into_iter().map(Into::into).collect();
        texts.sort();
        texts.dedup();
        if texts.is_empty() {
            return Err(NameError::None);
        }
        let parse =
            |text: String| ServerName::try_from(text.clone()).map_err(|_| NameError::Bad(text));
        texts
            .into_iter()
            .map(parse)
            .collect::<Result<_, _>>()
            .map(CertificateNames)
    }

    /// These names and those of `more` that are valid.
    pub(super) fn with_names(&self, more: impl IntoIterator<Item = String>) -> CertificateNames {
        let more = more
            .into_iter()
            .filter(|name| ServerName::try_from(name.as_str()).is_ok());
        CertificateNames::new(self.to_strings().into_iter().chain(more))
            .unwrap_or_else(|_| self.clone())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ServerName<'static>> {
        self.0.iter()
    }

    /// The names as strings.
    pub fn to_strings(&self) -> Vec<String> {
        self.0.iter().map(server_name_text).collect()
    }
}

pub(super) fn server_name_text(name: &ServerName<'_>) -> String {
    match name {
        ServerName::DnsName(name) => name.as_ref().to_owned(),
        ServerName::IpAddress(ip) => IpAddr::from(*ip).to_string(),
        _ => String::new(),
    }
}
