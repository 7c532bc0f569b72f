//! Webhook rules (contract 5.5), the part without I/O: what an endpoint is asked, what its answers mean, when to ask
//! and poll next. Verdicts are bound to one operation on one Pod and to one generation of the rule object.

mod address;
mod call_results;
mod call_state;
mod fingerprint;
mod parameters;
mod status_size;
mod verdicts;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::api::endpoint_protocol::{EndpointRequest, POD_API_VERSION, RequestResource};
use crate::api::keys;
pub use crate::api::podtransitionrule::AskedPod as Candidate;
use crate::api::podtransitionrule::{
    self as api, FailurePolicy, POLL_INTERVAL_SECONDS, POLL_TIMEOUT_SECONDS,
};
use crate::api::validation::endpoint;

pub use address::EndpointNetworks;
pub use call_state::{CallAction, CallPlan, CallState, IgnoredFailure};
pub use parameters::{Parameter, slim_pod_json};
pub use verdicts::EndpointVerdicts;

/// Query parameter that carries the task ID where a rule does not name one.
const TASK_ID: &str = "task-id";

/// What a Pod waits for before its endpoint has said anything.
pub const UNANSWERED_MESSAGE: &str = "its endpoint has not let the Pod pass yet";

/// A webhook rule, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledWebhook {
    /// Where Pods are asked about.
    pub endpoint: RuleEndpoint,
    /// Where tasks are polled, if anywhere.
    pub poll: Option<TaskPolling>,
    /// Whether Pods wait while the endpoint fails; otherwise they pass.
    pub fail: bool,
    /// Whether they wait though the spec says `Ignore`, since nobody has written that while Operating judged the write.
    pub is_former_ignore: bool,
    /// What is sent along.
    pub parameters: Vec<Parameter>,
    /// The stage, if the spec says one.
    pub stage: Option<String>,
    /// Tells the rule from any that answers would mean something else under.
    pub fingerprint: String,
}

/// An HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEndpoint {
    /// http or https URL.
    pub url: String,
    /// PEM certificates that it is checked against; empty: the system's.
    pub ca: Vec<u8>,
}

/// How tasks are polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPolling {
    /// Where.
    pub endpoint: RuleEndpoint,
    /// Query parameter that carries the task ID.
    pub key: String,
    /// Time between two polls.
    pub interval: Duration,
    /// Time after which polling is given up.
    pub timeout: Duration,
}

impl CompiledWebhook {
    /// Compiles the webhook rule at `path`; the error is field and remedy. `ignores`: whether its `failurePolicy: Ignore` counts, see
    /// [`keys::IGNORES_FAILURES`].
    pub fn compile(
        rule: &api::WebhookRule,
        stage: Option<&api::Stage>,
        path: &str,
        ignores: bool,
    ) -> Result<CompiledWebhook, String> {
        let config = rule
            .client_config
            .as_ref()
            .ok_or_else(|| format!("{path}.clientConfig: is required"))?;
        let path_config = format!("{path}.clientConfig");
        let poll = config
            .poll
            .as_ref()
            .map(|poll| compile_poll(poll, &format!("{path_config}.poll")));
        let fail = match &rule.failure_policy {
            Some(FailurePolicy::Ignore) => !ignores,
            None | Some(FailurePolicy::Fail) => true,
            Some(FailurePolicy::Other(text)) => {
                return Err(format!(
                    "{path}.failurePolicy: {text:?} is neither Ignore nor Fail"
                ));
            }
        };
        Ok(CompiledWebhook {
            endpoint: compile_endpoint(&config.url, &config.ca_bundle, &path_config)?,
            poll: poll.transpose()?,
            fail,
            is_former_ignore: fail && rule.failure_policy == Some(FailurePolicy::Ignore),
            parameters: parameters::compile_parameters(
                &rule.parameters,
                &format!("{path}.parameters"),
            )?,
            stage: stage.map(|stage| stage.as_str().to_owned()),
            fingerprint: fingerprint::fingerprint(rule, stage, fail),
        })
    }

    /// Why Pods wait while the endpoint fails, where the spec seems to say otherwise.
    pub fn ignored_policy_warning(&self) -> Option<String> {
        let key = keys::IGNORES_FAILURES;
        self.is_former_ignore.then(|| {
            format!(
                "Pods wait though failurePolicy is Ignore, since that was stored before this server judged it, as Kuperator does with \
                 every rule: annotate the PodTransitionRule with {key} and the name of the rule if they are to pass"
            )
        })
    }

    /// Whether parameters are taken from fields that the slim Pod does not have.
    pub fn needs_whole_pods(&self) -> bool {
        self.parameters.iter().any(Parameter::needs_whole_pod)
    }

    /// The body of a call about `resources`: names of Pods with their parameters.
    pub fn call_body(
        &self,
        rule: &str,
        trace_id: String,
        resources: Vec<(String, std::collections::BTreeMap<String, String>)>,
    ) -> EndpointRequest {
        let resources = resources
            .into_iter()
            .map(|(name, parameters)| RequestResource {
                api_version: POD_API_VERSION,
                kind: "Pod",
                name,
                parameters,
            })
            .collect();
        EndpointRequest {
            trace_id,
            rule_name: rule.to_owned(),
            stage: self.stage.clone(),
            resources,
        }
    }
}

impl TaskPolling {
    /// The URL that a task is polled at.
    pub fn poll_url(&self, task: &str) -> String {
        let url = self.endpoint.url.split('#').next().unwrap_or_default();
        let joint = match url.split_once('?') {
            None => "?",
            Some((_, "")) => "",
            Some(_) if url.ends_with('&') => "",
            Some(_) => "&",
        };
        format!(
            "{url}{joint}{}={}",
            escape_query(&self.key),
            escape_query(task)
        )
    }
}

/// A text as part of a query: all but what RFC 3986 never reserves is escaped.
fn escape_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn compile_poll(poll: &api::Poll, path: &str) -> Result<TaskPolling, String> {
    let seconds = |value: Option<i64>, default: i64, field: &str| {
        let seconds = u64::try_from(value.unwrap_or(default)).unwrap_or(0);
        if seconds < 1 {
            return Err(format!("{path}.{field}: must be 1 or more seconds"));
        }
        // A century is as good as more, and times can be added to it.
        Ok(Duration::from_secs(seconds.min(100 * 366 * 86_400)))
    };
    Ok(TaskPolling {
        endpoint: compile_endpoint(&poll.url, &poll.ca_bundle, path)?,
        key: match poll.raw_query_key.as_str() {
            "" => TASK_ID.to_owned(),
            key => key.to_owned(),
        },
        interval: seconds(
            poll.interval_seconds,
            POLL_INTERVAL_SECONDS,
            "intervalSeconds",
        )?,
        timeout: seconds(poll.timeout_seconds, POLL_TIMEOUT_SECONDS, "timeoutSeconds")?,
    })
}

fn compile_endpoint(url: &str, ca_bundle: &str, path: &str) -> Result<RuleEndpoint, String> {
    if let Some(error) = endpoint::url_error(url, &format!("{path}.url")) {
        return Err(error.to_string());
    }
    // A stored bundle that nobody can read verifies nothing, which is told when the endpoint is called: Kuperator never used it.
    let mut ca =
        endpoint::decode_ca_bundle(ca_bundle).unwrap_or_else(|| ca_bundle.as_bytes().to_vec());
    if ca.trim_ascii().is_empty() {
        ca.clear();
    }
    Ok(RuleEndpoint {
        url: url.to_owned(),
        ca,
    })
}
