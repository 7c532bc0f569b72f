//! A role that the holder of an OIDC token assumes: the action `AssumeRoleWithOIDC` of STS, version 2015-04-01. The
//! call is not signed. In Kubernetes the token is that of a ServiceAccount, which the kubelet renews in its file.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use traffic::AdapterError;

use crate::endpoint::Endpoint;
use crate::failure::{Failure, cut};
use crate::http::{Http, Post};
use crate::secret::{Credentials, Fetched, Secret};
use crate::secret_file::read;
use crate::signature::query;
use crate::wire::RoleBody;

const ACTION: &str = "AssumeRoleWithOIDC";
/// Credentials are fetched anew when less than this time of their life is left, or a third of their life.
const MARGIN: Duration = Duration::from_secs(300);

/// Credentials are fetched at most this often, even if they have expired at once because a clock is wrong.
const SHORTEST: Duration = Duration::from_secs(5);

/// How to assume the role.
pub(crate) struct Oidc {
    pub http: Http,
    pub endpoint: Endpoint,
    pub role_arn: String,
    pub provider_arn: String,
    pub token_file: PathBuf,
    /// Shown in the audit log of the account.
    pub session_name: String,
}

impl Oidc {
    /// Reads the token, and assumes the role.
    ///
    /// # Errors
    /// Why that failed.
    pub(crate) async fn fetch(&self) -> Result<Fetched, AdapterError> {
        let token = read("credentials.oidc.oidcTokenFile", &self.token_file).await?;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let public = [
            pair("Action", ACTION),
            pair("Format", "JSON"),
            pair(
                "SignatureNonce",
                &format!("{:032x}", rand::random::<u128>()),
            ),
            pair("Timestamp", &date()),
            pair("Version", "2015-04-01"),
        ];
        // The token is in the body, so that no access log has it.
        let form = [
            pair("OIDCProviderArn", &self.provider_arn),
            pair("OIDCToken", token.reveal()),
            pair("RoleArn", &self.role_arn),
            pair("RoleSessionName", &self.session_name),
        ];
        let hidden = Credentials {
            key_id: Secret::new(String::new()),
            key_secret: Secret::new(String::new()),
            token: Some(token),
        };
        let post = Post {
            action: ACTION,
            url: self.endpoint.url(&query(&public)),
            headers: Vec::new(),
            form: Some(query(&form)),
            credentials: Some(&hidden),
        };
        let body = self.http.send(post).await.map_err(error)?;
        let Ok(body) = serde_json::from_slice::<RoleBody>(&body) else {
            let reason = format!("{ACTION}: the answer has no credentials");
            return Err(AdapterError::Transient(reason));
        };
        let role = body.credentials;
        let now = Instant::now();
        let life = role.expiration.duration_since(Timestamp::now());
        let life = Duration::try_from(life).unwrap_or_default();
        Ok(Fetched {
            credentials: Credentials {
                key_id: Secret::new(role.access_key_id),
                key_secret: Secret::new(role.access_key_secret),
                token: Some(Secret::new(role.security_token)),
            },
            renew_at: Some(now + life.saturating_sub(MARGIN.min(life / 3)).max(SHORTEST)),
            dead_at: Some(now + life),
        })
    }
}

/// The kubelet renews the token, and an administrator may correct the role: no error of this call is final.
fn error(failure: Failure) -> AdapterError {
    match failure {
        Failure::Refused { code, message, .. } if !code.starts_with("Throttling") => {
            let text = format!(
                "{ACTION} was refused with {}: {}; check the role, its trust policy, the issuer \
                 and `credentials.oidc`",
                cut(&code),
                cut(&message)
            );
            AdapterError::Transient(text)
        }
        failure => failure.into_error(),
    }
}

/// Now, as the API writes times.
pub(crate) fn date() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
