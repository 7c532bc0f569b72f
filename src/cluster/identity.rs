//! The user name of this program at the API server.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::OnceCell;

/// The user name of this program, read once. Every authenticated user may read its own name (`system:basic-user`).
#[derive(Debug, Default)]
pub struct Identity(OnceCell<String>);

impl Identity {
    /// The name, such as `system:serviceaccount:kusionstack-system:operating`.
    ///
    /// # Errors
    /// The error of the API server, if it does not answer or refuses.
    pub async fn user_name(&self, client: &Client) -> kube::Result<&str> {
        let ask = async || {
            let api: Api<SelfSubjectReview> = Api::all(client.clone());
            let review = SelfSubjectReview::default();
            let answer = api.create(&PostParams::default(), &review).await?;
            let user = answer.status.and_then(|status| status.user_info);
            Ok(user.and_then(|user| user.username).unwrap_or_default())
        };
        self.0.get_or_try_init(ask).await.map(String::as_str)
    }
}
