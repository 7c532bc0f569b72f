//! What a stored Service says about its traffic.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::is_clean_finalizer;
use crate::domain::traffic::report::{EmployerReport, WaitingMember};

/// An annotation of a Service.
pub fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    let annotations = service.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// The report of a Service. `None` if there is none, or if it can't be read.
pub fn report(service: &Service) -> Option<EmployerReport> {
    serde_json::from_str(annotation(service, keys::CONSIST_STATUS)?).ok()
}

/// The adapter that manages the traffic of a Service: the adapter of its report, or else the adapter that has taken it
/// over and has not reported yet.
pub fn adapter(service: &Service) -> Option<String> {
    let reported = report(service).map(|report| report.adapter);
    let in_use = annotation(service, keys::CONSIST_ADAPTER_IN_USE);
    let in_use = in_use.and_then(|names| names.split(',').next());
    let adapter = reported.or_else(|| in_use.map(str::to_owned));
    adapter.filter(|name| !name.is_empty())
}

/// The adapters that managed the traffic of a Service before, and may still have members registered.
pub fn former_adapters(service: &Service) -> Vec<String> {
    let names = annotation(service, keys::CONSIST_ADAPTER_IN_USE);
    let formers = names.into_iter().flat_map(|names| names.split(',').skip(1));
    let named = formers.filter(|name| !name.is_empty());
    named.map(str::to_owned).collect()
}

/// Whether the traffic of a Service is to be managed.
pub fn is_managed(service: &Service) -> bool {
    let labels = service.metadata.labels.as_ref();
    let value = labels.and_then(|labels| labels.get(keys::CONTROL));
    value.is_some_and(|value| value == keys::CONTROL_VALUE)
}

/// Whether the server still has to remove something before the Service may go.
pub fn is_held(service: &Service) -> bool {
    let mut finalizers = service.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| is_clean_finalizer(finalizer))
}

/// The labels of the Pods that a Service selects. Empty if it selects none.
pub fn selector(service: &Service) -> BTreeMap<String, String> {
    let spec = service.spec.as_ref();
    let selector = spec.and_then(|spec| spec.selector.clone());
    selector.unwrap_or_default()
}

/// Whether a Service selects a Pod.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref();
    let selector = selector.and_then(|spec| spec.selector.as_ref());
    let has = |(key, value): (&String, &String)| pod.label(key) == Some(value);
    selector.is_some_and(|labels| !labels.is_empty() && labels.iter().all(has))
}

/// The state of a member that waits, with the time that is left.
pub fn member_text(member: &WaitingMember, now: Timestamp) -> String {
    let Some(until) = member.until else {
        return member.message.clone();
    };
    let remaining = until.duration_since(now).as_secs();
    let remaining = match remaining {
        0.. => format!("in {}", messages::format_age(remaining)),
        _ => format!("{} ago", messages::format_age(-remaining)),
    };
    let limit = format!("drained by {until} at the latest");
    match member.message.contains(&limit) {
        true => {
            let with_remaining = format!("{limit} ({remaining})");
            member.message.replacen(&limit, &with_remaining, 1)
        }
        false => format!("{}, {limit} ({remaining})", member.message),
    }
}
