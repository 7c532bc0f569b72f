//! Webhook rules (contract 5.5) without I/O: the requests to an endpoint, the meaning of its answers, and the times of
//! the next call and poll. A verdict is bound to one operation on one Pod and to one generation of the rule object.

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

use crate::api::endpoint_protocol::{EndpointRequest, POD_API_VERSION, RequestedPod};
use crate::api::keys;
pub use crate::api::podtransitionrule::AskedPod as Candidate;
use crate::api::podtransitionrule::{
    self as api, FailurePolicy, POLL_INTERVAL_SECONDS, POLL_TIMEOUT_SECONDS,
};
use crate::api::url_encoding::percent_encode;
use crate::api::validation::endpoint;

pub use address::EndpointNetworks;
pub use call_state::{CallAction, CallPlan, CallState, IgnoredPass};
pub use parameters::{CompiledParameter, slim_pod_json};
pub use verdicts::EndpointVerdicts;

/// Query parameter for the task ID, if the rule names no other.
const TASK_ID: &str = "task-id";

/// The reason why a Pod waits before its endpoint has answered.
pub const UNANSWERED_MESSAGE: &str = "its endpoint has not let the Pod pass yet";

/// A compiled webhook rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledWebhook {
    /// The endpoint that is asked about Pods.
    pub endpoint: RuleEndpoint,
    /// How tasks are polled. `None` if the rule has no tasks.
    pub poll: Option<TaskPolling>,
    /// Whether Pods wait while the endpoint fails. If false, they pass.
    pub fail: bool,
    /// Whether Pods wait although the spec says `Ignore`, because no user has written `Ignore` since Operating checks
    /// such writes.
    pub is_former_ignore: bool,
    /// The parameters that are sent with each Pod.
    pub parameters: Vec<CompiledParameter>,
    /// The stage, if the spec has one.
    pub stage: Option<String>,
    /// Changes whenever an answer could mean something else under the changed rule.
    pub fingerprint: String,
}

/// An HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleEndpoint {
    /// http or https URL.
    pub url: String,
    /// PEM certificates that the endpoint's certificate is verified against. If empty, the system's certificates are
    /// used.
    pub ca: Vec<u8>,
}

/// How the tasks of an endpoint are polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPolling {
    /// The endpoint that is polled.
    pub endpoint: RuleEndpoint,
    /// Query parameter for the task ID.
    pub key: String,
    /// Time between two polls.
    pub interval: Duration,
    /// Time after which polling ends without a result.
    pub timeout: Duration,
}

impl CompiledWebhook {
    /// Compiles the webhook rule at `path`. The error names the field and the remedy. `ignores` is whether its
    /// `failurePolicy: Ignore` has an effect; see [`keys::IGNORES_FAILURES`].
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

    /// Why Pods wait while the endpoint fails, although the spec seems to say otherwise. `None` if the spec has its
    /// effect.
    pub fn ignored_policy_warning(&self) -> Option<String> {
        let key = keys::IGNORES_FAILURES;
        self.is_former_ignore.then(|| {
            format!(
                "Pods wait although failurePolicy is Ignore, because Ignore was stored before this server checked such writes, \
                 and Kuperator stores it in every webhook rule: to let Pods pass, annotate the PodTransitionRule with {key} and \
                 the name of the rule"
            )
        })
    }

    /// Whether a parameter needs a field that the slim Pod does not have.
    pub fn needs_whole_pods(&self) -> bool {
        self.parameters
            .iter()
            .any(CompiledParameter::needs_whole_pod)
    }

    /// The body of a call about `resources`, which are names of Pods with their parameters.
    pub fn call_body(
        &self,
        rule: &str,
        trace_id: String,
        resources: Vec<(String, std::collections::BTreeMap<String, String>)>,
    ) -> EndpointRequest {
        let resources = resources
            .into_iter()
            .map(|(name, parameters)| RequestedPod {
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
    /// The URL for polling a task.
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
            percent_encode(&self.key),
            percent_encode(task)
        )
    }
}

fn compile_poll(poll: &api::Poll, path: &str) -> Result<TaskPolling, String> {
    let seconds = |value: Option<i64>, default: i64, field: &str| {
        let seconds = u64::try_from(value.unwrap_or(default)).unwrap_or(0);
        if seconds < 1 {
            return Err(format!("{path}.{field}: must be 1 or more seconds"));
        }
        // The maximum of a century is long enough for users, and such a duration can be added to a time.
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
    // An unreadable bundle that is already stored verifies nothing. A call reports this. Kuperator never used the
    // bundle.
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
