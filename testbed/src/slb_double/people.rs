//! Who may call: keys, roles and the tokens of roles.

use std::collections::BTreeMap;
use std::time::Duration;

use time::OffsetDateTime;

/// A role that the holder of an OIDC token may assume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// ARN of the role.
    pub role: String,
    /// ARN of the issuer of tokens.
    pub provider: String,
    /// The token that the double accepts.
    pub token: String,
}

/// A temporary key.
#[derive(Clone, Debug)]
struct Temporary {
    secret: String,
    token: String,
    until: OffsetDateTime,
}

/// Keys and roles.
#[derive(Clone, Debug)]
pub struct People {
    /// Secrets of keys by their ID.
    pub keys: BTreeMap<String, String>,
    /// Roles that can be assumed.
    pub roles: Vec<Role>,
    /// How long a temporary key is valid.
    pub lifetime: Duration,
    temporary: BTreeMap<String, Temporary>,
    issued: usize,
}

impl People {
    pub(super) fn new() -> People {
        People {
            keys: BTreeMap::from([("key-id".to_owned(), "key-secret".to_owned())]),
            roles: Vec::new(),
            lifetime: Duration::from_secs(3600),
            temporary: BTreeMap::new(),
            issued: 0,
        }
    }

    /// Issues a temporary key: its ID, secret, token and the end of its life.
    pub fn issue(&mut self) -> (String, String, String, OffsetDateTime) {
        self.issued += 1;
        let n = self.issued;
        let (id, secret, token) = (
            format!("STS.key-{n}"),
            format!("temporary-secret-{n}"),
            format!("temporary-token-{n}"),
        );
        let until = OffsetDateTime::now_utc() + self.lifetime;
        let temporary = Temporary {
            secret: secret.clone(),
            token: token.clone(),
            until,
        };
        self.temporary.insert(id.clone(), temporary);
        (id, secret, token, until)
    }

    /// Ends the life of all temporary keys.
    pub fn expire(&mut self) {
        for temporary in self.temporary.values_mut() {
            temporary.until = OffsetDateTime::UNIX_EPOCH;
        }
    }

    /// The secret of a key, or the code of an error.
    pub(super) fn secret(&self, id: &str, token: Option<&str>) -> Result<&str, &'static str> {
        if let Some(secret) = self.keys.get(id) {
            return match token {
                None => Ok(secret),
                Some(_) => Err("InvalidSecurityToken.MismatchWithAccessKey"),
            };
        }
        let Some(temporary) = self.temporary.get(id) else {
            return Err("InvalidAccessKeyId.NotFound");
        };
        match token {
            None => Err("MissingSecurityToken"),
            Some(token) if token != temporary.token => Err("InvalidSecurityToken.Malformed"),
            Some(_) if temporary.until <= OffsetDateTime::now_utc() => {
                Err("InvalidSecurityToken.Expired")
            }
            Some(_) => Ok(&temporary.secret),
        }
    }
}
