//! Events about Pods that wait long, and about the rules that they wait for. Nothing is read from the API server, and
//! where nobody waits nothing is written.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::api::keys;
use crate::cluster::events::about_pod;
use crate::cluster::index::{Namespace, State};
use crate::domain::explain::notices::{self, Notice, Notices, Waiting, line};
use crate::domain::explain::{Around, Controller, Observed, RuleObject};
use crate::domain::pod::Pod;

/// Looks this often, or as often as is needed to see a shorter threshold pass.
const PERIOD: Duration = Duration::from_secs(15);

/// Tells of waits until `stop`.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let threshold = SignedDuration::try_from(context.wait_notice).unwrap_or(SignedDuration::MAX);
    let mut notices = Notices::new(threshold);
    let period = (context.wait_notice / 4).clamp(Duration::from_millis(250), PERIOD);
    tokio::select! { () = stop.cancelled() => return, () = context.index.wait_synced() => {} }
    loop {
        tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(period) => {} }
        for (about, warning, reason, message) in look(&context, &mut notices) {
            context.events.record(&about, warning, reason, &message);
        }
    }
}

/// An Event: about what, whether it warns, reason, message.
type Event = (ObjectReference, bool, &'static str, String);

fn look(context: &Context, notices: &mut Notices) -> Vec<Event> {
    let state = context.index.read();
    let mut waits = Vec::new();
    for (_, namespace) in state.namespaces() {
        let rules: Vec<RuleObject> = objects(namespace).collect();
        let in_flight = namespace.pods.values().filter(|pod| is_in_flight(pod));
        waits.extend(
            in_flight.flat_map(|pod| notices::waiting(pod, rules.iter()).collect::<Vec<_>>()),
        );
    }
    let told = notices.decide(waits, (context.now)());
    told.into_iter()
        .filter_map(|notice| event(context, &state, notice))
        .collect()
}

fn is_in_flight(pod: &Pod) -> bool {
    let mut labels = pod.metadata.labels.keys();
    labels.any(|key| key.contains(keys::LIFECYCLE_DOMAIN))
}

fn objects(namespace: &Namespace) -> impl Iterator<Item = RuleObject> {
    namespace.rules.values().map(|entry| RuleObject {
        object: Arc::clone(&entry.object),
        set: Arc::clone(&entry.snapshot.rules),
    })
}

fn event(context: &Context, state: &State, notice: Notice) -> Option<Event> {
    match notice {
        Notice::Pod(wait) => {
            let (pod, line) = explained(context, state, &wait)?;
            let (reason, warning) = notices::reason(wait.phase);
            let about = about_pod(&pod);
            Some((about, warning, reason, line))
        }
        Notice::Rule {
            rule,
            waiting,
            longest,
        } => {
            let (pod, line) = explained(context, state, &longest)?;
            let home = state.namespace(&pod.metadata.namespace)?;
            let entry = home
                .rules
                .values()
                .find(|e| *e.snapshot.rules.uid == *rule)?;
            let message = match waiting {
                1 => format!("Pod {} waits: {line}", pod.metadata.name),
                n => format!(
                    "{n} operations wait, that on Pod {} the longest: {line}",
                    pod.metadata.name
                ),
            };
            Some((
                entry.object.object_ref(&()),
                false,
                notices::RULE_REASON,
                message,
            ))
        }
    }
}

/// The Pod of a wait, and the explanation in one line.
fn explained(context: &Context, state: &State, wait: &Waiting) -> Option<(Arc<Pod>, String)> {
    let mut namespaces = state.namespaces();
    let (name, home, pod) = namespaces.find_map(|(name, home)| {
        let pod = home.pods.get(wait.pod.as_str())?;
        Some((name, home, pod))
    })?;
    let owner = pod.controller().filter(|owner| owner.is_collaset());
    let set = owner.and_then(|owner| context.index.objects.sets.get(name, &owner.name));
    let observed = Observed {
        pod: Arc::clone(pod),
        rules: objects(home).collect(),
        pods: home.pods.values().cloned().collect(),
        controller: set.map(Controller::CollaSet),
        jobs: Vec::new(),
        around: Around::default(),
        notes: Vec::new(),
        now: (context.now)(),
    };
    Some((Arc::clone(pod), line(&observed, &wait.operation)?))
}
