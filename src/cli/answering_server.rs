//! Asks through the API server whether a server of Operating answers: a dry run of a rule that it refuses.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::admission::version_answer::ASKING_RULE;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request::{self, ApiFailure};

/// A namespace in which the rule may be created. Every cluster has it.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Longest wait for the answer. The API server gives a webhook at most 30 s.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Who answers for rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answering {
    /// The webhook refused the rule, with this text.
    Server(String),
    /// The API server calls the webhook and gets no answer, with this text.
    Nobody(String),
    /// The API server calls no webhook, or does not know the kind.
    NotAsked,
    /// The user may not create rules in the namespace, with the words of the API server.
    Forbidden(String),
    /// Whether a server answers is not known, with the reason.
    Unknown(String),
}

/// Asks with a rule of the namespace, and writes nothing.
pub async fn find_answering(client: &Client, namespace: &str) -> Answering {
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": ASKING_RULE },
        // The schema allows this value of a label; only the server refuses it.
        "spec": { "selector": { "matchLabels": { "app": "no value of a label" } }, "rules": [] },
    });
    let rule: PodTransitionRule = match serde_json::from_value(rule) {
        Ok(rule) => rule,
        Err(error) => return Answering::Unknown(error.to_string()),
    };
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api: Api<PodTransitionRule> = Api::namespaced(client.clone(), namespace);
    match api_request::within(TIMEOUT, api.create(&params, &rule)).await {
        Ok(_) => Answering::NotAsked,
        Err(ApiFailure::Answered(status)) => classify(status.code, &status.message),
        Err(failure) => Answering::Unknown(failure.text()),
    }
}

fn classify(code: u16, message: &str) -> Answering {
    let text = message.to_owned();
    if code == 404 && message.starts_with("namespaces ") {
        return Answering::Unknown(text);
    }
    if code == 404 {
        return Answering::NotAsked;
    }
    if message.contains("failed calling webhook") {
        return Answering::Nobody(text);
    }
    if message.contains("kusionstack.io\" denied the request") {
        return Answering::Server(text);
    }
    // A policy denies with 403 and 422, too.
    match code == 403 && message.contains(" is forbidden: User ") {
        true => Answering::Forbidden(text),
        false => Answering::Unknown(text),
    }
}
