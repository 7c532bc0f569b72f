//! Texts that must not be shown, and the credentials that they make up.

use tokio::time::Instant;

/// A text that `Debug` does not show: part of a credential.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text, for a signature or a header of a request, and for nothing else.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// What signs a call: a permanent key, or a temporary key with its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// ID of the key.
    pub key_id: Secret,
    /// Secret of the key.
    pub key_secret: Secret,
    /// Token of a temporary key.
    pub token: Option<Secret>,
}

impl Credentials {
    /// Replaces all parts of the credentials in a text that comes from outside, since the API quotes requests.
    pub(crate) fn hide_in(&self, text: &str) -> String {
        let parts = [
            Some(&self.key_id),
            Some(&self.key_secret),
            self.token.as_ref(),
        ];
        let mut text = text.to_owned();
        for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            text = text.replace(part.reveal(), "***");
        }
        text
    }
}

/// Credentials with their times.
pub(crate) struct Fetched {
    pub credentials: Credentials,
    /// When to fetch them again; `None`: never.
    pub renew_at: Option<Instant>,
    /// When they end. Until then they are used if new ones can't be fetched.
    pub dead_at: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        Credentials {
            key_id: Secret::new("the-id".to_owned()),
            key_secret: Secret::new("the-secret".to_owned()),
            token: Some(Secret::new("the-token".to_owned())),
        }
    }

    #[test]
    fn debug_shows_no_credential() {
        let shown = format!("{:?}", credentials());
        assert!(!shown.contains("the-"), "{shown}");
    }

    #[test]
    fn quoted_credentials_are_hidden() {
        let text = "signed was the-token by the-id with the-secret";
        let hidden = credentials().hide_in(text);
        assert_eq!(hidden, "signed was *** by *** with ***");
    }
}
