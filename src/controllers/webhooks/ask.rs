//! The two calls of the protocol (contract 5.5), and what they need of the Pods.

use std::collections::BTreeMap;

use futures::StreamExt;
use serde_json::Value;

use super::super::{CALL_TIMEOUT, Context};
use super::places::{Place, Route};
use super::{Call, http, rulecalls, trace_id};
use crate::api::rulecalls::{Answer, Progress};
use crate::apirequest;
use crate::cluster::pods;
use crate::domain::rules::webhook::{Action, Candidate, Parameter, from_slim};

/// Pods that are read at once for their parameters.
const READS: usize = 8;

/// What came of asking.
#[derive(Default)]
pub struct Outcome {
    /// About these nothing could be asked, by the reason.
    pub failed: BTreeMap<Trouble, Vec<Candidate>>,
    /// About these the endpoint was asked.
    pub asked: Vec<Candidate>,
    /// The answer, if the endpoint was asked at all.
    pub answer: Option<Result<Heard<Answer>, String>>,
}

/// What an endpoint has answered.
pub struct Heard<T> {
    /// The answer.
    pub answer: T,
    /// What is wrong with the rule's `caBundle` though the endpoint is trusted.
    pub warning: Option<String>,
}

fn read<T: rulecalls::Fields>(answered: http::Answered) -> Result<Heard<T>, String> {
    let answer = rulecalls::read(&answered.body)?;
    Ok(Heard {
        answer,
        warning: answered.warning,
    })
}

/// Why nothing can be asked about a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// It can't be read now.
    Unread(String),
    /// The rule asks for something that it can't have.
    Parameter(String),
}

/// Asks about operations on Pods, each Pod named once. What is sent along is taken now.
pub async fn ask(context: &Context, call: &Call, place: &Place, about: &[Candidate]) -> Outcome {
    let webhook = &call.webhook;
    let named: BTreeMap<String, Candidate> =
        about.iter().map(|c| (c.name.clone(), c.clone())).collect();
    let values = futures::stream::iter(named.into_values())
        .map(|candidate| async move {
            let values = values(context, call, &candidate).await;
            (candidate.name, values)
        })
        .buffered(READS);
    let values: Vec<_> = values.collect().await;
    let (mut resources, mut odd) = (Vec::new(), BTreeMap::new());
    for (name, values) in values {
        match values {
            Ok(values) => resources.push((name, values)),
            Err(why) => drop(odd.insert(name, why)),
        }
    }
    let mut outcome = Outcome::default();
    for candidate in about {
        match odd.get(&candidate.name) {
            Some(why) => {
                let failed = outcome.failed.entry(why.clone()).or_default();
                failed.push(candidate.clone());
            }
            None => outcome.asked.push(candidate.clone()),
        }
    }
    if resources.is_empty() {
        return outcome;
    }
    let request = webhook.request(&call.rule.name, trace_id(), resources);
    let answer = match serde_json::to_vec(&request) {
        Ok(body) => {
            let endpoint = &webhook.endpoint;
            let sent = async {
                let reach = &context.calls.reach;
                let answered = http::call(&endpoint.url, &endpoint.ca, Some(body), reach).await?;
                read(answered)
            };
            context.calls.call(place, sent).await
        }
        Err(e) => Err(e.to_string()),
    };
    outcome.answer = Some(answer);
    outcome
}

/// Polls a task.
pub async fn poll(
    context: &Context,
    call: &Call,
    place: &Place,
    task: &str,
) -> Result<Heard<Progress>, String> {
    let poll = call.webhook.poll.as_ref().ok_or("the rule has no poll")?;
    let (url, endpoint) = (poll.url(task), &poll.endpoint);
    let sent = async { read(http::call(&url, &endpoint.ca, None, &context.calls.reach).await?) };
    context.calls.call(place, sent).await
}

impl Call {
    /// Where the call goes.
    pub fn route(&self) -> Route {
        let poll = self.webhook.poll.as_ref().map(|poll| &poll.endpoint);
        let endpoint = match &self.action {
            Action::Ask(_) => None,
            Action::Poll(_) => poll,
        };
        Route {
            namespace: self.key.namespace.clone(),
            endpoint: http::authority(endpoint.unwrap_or(&self.webhook.endpoint)),
        }
    }
}

/// The parameters for a Pod; it is read only for fields that the cache does not keep.
async fn values(
    context: &Context,
    call: &Call,
    candidate: &Candidate,
) -> Result<BTreeMap<String, String>, Trouble> {
    let (namespace, name) = (&call.key.namespace, &candidate.name);
    let unread = |why: &str| Trouble::Unread(format!("the Pod could not be read: {why}"));
    let pod: Value = if call.webhook.needs_whole_pods() {
        let read = pods::get_raw(&context.client, namespace, name);
        let pod = apirequest::within(CALL_TIMEOUT, read).await;
        let pod = pod.map_err(|failure| unread(&failure.text()))?;
        let same = |pod: &Value| pod["metadata"]["uid"] == *candidate.pod_uid;
        pod.filter(same).ok_or_else(|| unread("it is gone"))?
    } else {
        let state = context.index.read();
        let pod = state.pod(namespace, &candidate.pod_uid);
        pod.map(|pod| from_slim(pod))
            .ok_or_else(|| unread("it is gone"))?
    };
    Parameter::values(&call.webhook.parameters, &pod).map_err(Trouble::Parameter)
}
