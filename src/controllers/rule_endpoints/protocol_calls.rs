//! Makes the two calls of the endpoint protocol (contract 5.5), and reads the Pods that they need.

use std::collections::BTreeMap;

use futures::StreamExt;
use serde_json::Value;

use super::super::ControllerContext;
use super::super::api_calls::API_CALL_TIMEOUT;
use super::call_permits::{CallPermit, PermitKey};
use super::{EndpointCall, endpoint_protocol, http, trace_id};
use crate::api::endpoint_protocol::{EndpointResponse, Progress};
use crate::api_request;
use crate::cluster::pod_requests;
use crate::domain::rules::webhook::{CallAction, Candidate, CompiledParameter, slim_pod_json};

/// Maximum number of Pods that are read at once for their parameters.
const MAX_CONCURRENT_READS: usize = 8;

/// The outcome of a call that asks an endpoint about operations.
#[derive(Default)]
pub struct AskOutcome {
    /// Operations about which the endpoint could not be asked, by the reason.
    pub failed: BTreeMap<ParametersError, Vec<Candidate>>,
    /// Operations about which the endpoint was asked.
    pub asked: Vec<Candidate>,
    /// The answer; `None` if the endpoint was not asked.
    pub answer: Option<Result<EndpointAnswer<EndpointResponse>, String>>,
}

pub struct EndpointAnswer<T> {
    /// The parsed answer.
    pub answer: T,
    /// The problem with the rule's `caBundle`, if the endpoint is trusted all the same.
    pub warning: Option<String>,
}

fn parse_answer<T: endpoint_protocol::ProtocolFields>(
    http_answer: http::HttpAnswer,
) -> Result<EndpointAnswer<T>, String> {
    let answer = endpoint_protocol::parse_response(&http_answer.body)?;
    Ok(EndpointAnswer {
        answer,
        warning: http_answer.warning,
    })
}

/// Why the endpoint can't be asked about a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParametersError {
    /// The Pod can't be read now.
    Unread(String),
    /// The value of a parameter of the rule can't be taken from the Pod.
    Parameter(String),
}

/// Asks the endpoint about operations on Pods. The request names each Pod once, with its present parameters.
pub async fn ask_endpoint(
    context: &ControllerContext,
    call: &EndpointCall,
    permit: &CallPermit,
    operations: &[Candidate],
) -> AskOutcome {
    let webhook = &call.webhook;
    let pods: BTreeMap<String, Candidate> = operations
        .iter()
        .map(|c| (c.name.clone(), c.clone()))
        .collect();
    let values = futures::stream::iter(pods.into_values())
        .map(|candidate| async move {
            let values = pod_parameters(context, call, &candidate).await;
            (candidate.name, values)
        })
        .buffered(MAX_CONCURRENT_READS);
    let values: Vec<_> = values.collect().await;
    let (mut resources, mut errors) = (Vec::new(), BTreeMap::new());
    for (name, values) in values {
        match values {
            Ok(values) => resources.push((name, values)),
            Err(error) => drop(errors.insert(name, error)),
        }
    }
    let mut outcome = AskOutcome::default();
    for candidate in operations {
        match errors.get(&candidate.name) {
            Some(error) => {
                let failed = outcome.failed.entry(error.clone()).or_default();
                failed.push(candidate.clone());
            }
            None => outcome.asked.push(candidate.clone()),
        }
    }
    if resources.is_empty() {
        return outcome;
    }
    let request = webhook.call_body(&call.rule.name, trace_id(), resources);
    let answer = match serde_json::to_vec(&request) {
        Ok(body) => {
            let endpoint = &webhook.endpoint;
            let call = async {
                let policy = &context.endpoint_caller.address_policy;
                let http_answer =
                    http::call_url(&endpoint.url, &endpoint.ca, Some(body), policy).await?;
                parse_answer(http_answer)
            };
            context.endpoint_caller.run_counted(permit, call).await
        }
        Err(e) => Err(e.to_string()),
    };
    outcome.answer = Some(answer);
    outcome
}

pub async fn poll_task(
    context: &ControllerContext,
    call: &EndpointCall,
    permit: &CallPermit,
    task: &str,
) -> Result<EndpointAnswer<Progress>, String> {
    let poll = call.webhook.poll.as_ref().ok_or("the rule has no poll")?;
    let (url, endpoint) = (poll.poll_url(task), &poll.endpoint);
    let request = async {
        let policy = &context.endpoint_caller.address_policy;
        parse_answer(http::call_url(&url, &endpoint.ca, None, policy).await?)
    };
    context.endpoint_caller.run_counted(permit, request).await
}

impl EndpointCall {
    /// The key of the permit that the call needs.
    pub fn permit_key(&self) -> PermitKey {
        let poll = self.webhook.poll.as_ref().map(|poll| &poll.endpoint);
        let endpoint = match &self.action {
            CallAction::Ask(_) => None,
            CallAction::Poll(_) => poll,
        };
        PermitKey {
            namespace: self.key.namespace.clone(),
            endpoint: http::endpoint_origin(endpoint.unwrap_or(&self.webhook.endpoint)),
        }
    }
}

/// The parameters for a Pod. The Pod is read live only if the rule needs fields that the cache does not contain.
async fn pod_parameters(
    context: &ControllerContext,
    call: &EndpointCall,
    candidate: &Candidate,
) -> Result<BTreeMap<String, String>, ParametersError> {
    let (namespace, name) = (&call.key.namespace, &candidate.name);
    let unread =
        |error: &str| ParametersError::Unread(format!("the Pod could not be read: {error}"));
    let pod: Value = if call.webhook.needs_whole_pods() {
        let read = pod_requests::get_raw_pod(&context.client, namespace, name);
        let pod = api_request::within(API_CALL_TIMEOUT, read).await;
        let pod = pod.map_err(|failure| unread(&failure.text()))?;
        let same = |pod: &Value| pod["metadata"]["uid"] == *candidate.pod_uid;
        pod.filter(same).ok_or_else(|| unread("it is gone"))?
    } else {
        let state = context.index.read_state();
        let pod = state.pod(namespace, &candidate.pod_uid);
        pod.map(|pod| slim_pod_json(pod))
            .ok_or_else(|| unread("it is gone"))?
    };
    CompiledParameter::pod_values(&call.webhook.parameters, &pod)
        .map_err(ParametersError::Parameter)
}
