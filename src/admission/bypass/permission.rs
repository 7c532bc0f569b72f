//! Checks whether the user of a request may bypass a rule: the Pod names a reason, and the user has the RBAC verb.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::BypassCheck;
use crate::api::keys;
use crate::api_request;

/// The RBAC verb on `podtransitionrules`. The name of the rule object is the resource name.
const BYPASS_VERB: &str = "bypass";
const PLURAL: &str = "podtransitionrules";
/// Time limit of a SubjectAccessReview. It is short, so that a denial is still in time when the API server does not
/// answer.
const ACCESS_REVIEW_TIMEOUT: Duration = Duration::from_secs(3);

impl BypassCheck<'_> {
    /// The reason in the annotation, if it applies to this request.
    pub(super) fn bypass_reason(&self) -> Option<&str> {
        let carrier = self.is_asked_for.then_some(self.carrier)?;
        carrier.annotation(keys::BYPASS).map(str::trim)
    }

    /// Whether the user asks for a bypass.
    pub fn is_requested(&self) -> bool {
        self.bypass_reason().is_some()
    }

    /// Whether the user may bypass a rule object. Without a name, the user must have the verb on all rule objects of
    /// the namespace.
    ///
    /// # Errors
    /// The text for the user; `None` if the user did not ask for a bypass.
    pub async fn may_bypass(&self, rule: Option<&str>) -> Result<(), Option<String>> {
        let key = keys::BYPASS;
        let Some(reason) = self.bypass_reason() else {
            return Err(None);
        };
        if reason.is_empty() {
            return Err(Some(format!(
                "its annotation {key} is empty: write the reason of the bypass as its value"
            )));
        }
        let user = &self.request.user_info.username;
        let limit = self.deadline.min(Instant::now() + ACCESS_REVIEW_TIMEOUT);
        let why = match api_request::by(limit, self.is_allowed(rule)).await {
            Ok(true) => return Ok(()),
            Ok(false) => {
                let object = rule.map_or_else(
                    || format!("all {PLURAL} of the namespace"),
                    |rule| format!("{PLURAL}/{rule}"),
                );
                return Err(Some(format!(
                    "its annotation {key} asks to bypass the rule, but {user} lacks the RBAC verb {BYPASS_VERB} on {object}"
                )));
            }
            Err(failure) => failure.text(),
        };
        Err(Some(format!(
            "its annotation {key} asks to bypass the rule, but the API server did not say whether {user} may ({why})"
        )))
    }

    /// Whether the user may bypass all of these rule objects. If the set is empty, the user must have the verb on all
    /// rule objects of the namespace.
    pub async fn may_bypass_all(&self, rules: &BTreeSet<String>) -> Result<(), Option<String>> {
        if rules.is_empty() {
            return self.may_bypass(None).await;
        }
        let asked = rules.iter().map(|rule| self.may_bypass(Some(rule)));
        try_join_all(asked).await.map(drop)
    }

    async fn is_allowed(&self, rule: Option<&str>) -> kube::Result<bool> {
        let user = &self.request.user_info;
        let extra = user.extra.iter().flatten();
        let extra = extra.map(|(key, values)| (key.clone(), values.clone().unwrap_or_default()));
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.username.clone()),
                uid: (!user.uid.is_empty()).then(|| user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(extra.collect()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(self.request.namespace.clone()),
                    verb: Some(BYPASS_VERB.to_owned()),
                    group: Some(keys::GROUP.to_owned()),
                    version: Some(keys::VERSION.to_owned()),
                    resource: Some(PLURAL.to_owned()),
                    name: rule.map(str::to_owned),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.context.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        let verdict = answer.status.unwrap_or_default();
        Ok(verdict.allowed && !verdict.denied.unwrap_or(false))
    }
}
