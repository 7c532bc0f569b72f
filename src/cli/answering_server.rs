//! Asks through the API server whether a server of Operating answers: a dry run of a rule that it refuses.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::api::podtransitionrule::PodTransitionRule;
use crate::api_request::{self, ApiFailure};

/// The namespace in which the rule would be created. Every cluster has it.
const NAMESPACE: &str = "default";

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
    /// Whether a server answers is not known, with the reason.
    Unknown(String),
}

/// Asks, and writes nothing.
pub async fn find_answering(client: &Client) -> Answering {
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "operating-asks" },
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
    let api: Api<PodTransitionRule> = Api::namespaced(client.clone(), NAMESPACE);
    match api_request::within(TIMEOUT, api.create(&params, &rule)).await {
        Ok(_) => Answering::NotAsked,
        Err(ApiFailure::Answered(status)) => classify(status.code, &status.message),
        Err(failure) => Answering::Unknown(failure.text()),
    }
}

fn classify(code: u16, message: &str) -> Answering {
    let text = message.to_owned();
    if code == 404 {
        return Answering::NotAsked;
    }
    if message.contains("failed calling webhook") {
        return Answering::Nobody(text);
    }
    match message.contains("kusionstack.io\" denied the request") {
        true => Answering::Server(text),
        false => Answering::Unknown(text),
    }
}
