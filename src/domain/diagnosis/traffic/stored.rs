//! What a stored Service says about its traffic.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::traffic::adapter_in_use::AdapterInUse;
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
    let present = || in_use(service).present().map(str::to_owned);
    let adapter = reported.or_else(present);
    adapter.filter(|name| !name.is_empty())
}

/// The adapters that managed the traffic of a Service before, and may still have members registered. The record does not
/// name an adapter that has made no change yet.
pub fn former_adapters(service: &Service) -> Vec<String> {
    let in_use = in_use(service);
    let reported = report(service).map(|report| report.adapter);
    let is_new = |name: &String| !name.is_empty() && in_use.names().all(|other| other != name);
    let present = match reported.filter(is_new) {
        Some(_) => "",
        None => in_use.present().unwrap_or_default(),
    };
    in_use.formers(present).map(str::to_owned).collect()
}

/// The record of the adapters that may have registered members.
fn in_use(service: &Service) -> AdapterInUse<'_> {
    let annotations = service.metadata.annotations.as_ref();
    annotations.map_or_else(AdapterInUse::default, AdapterInUse::of)
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

/// When a member counts as drained at the latest. `None` if it does not drain: then a time in the report of another version
/// of the server has another meaning.
pub fn drain_limit(member: &WaitingMember) -> Option<Timestamp> {
    let says_so = |until: &Timestamp| {
        let is_cut = member.message.ends_with('…');
        is_cut || member.state == "Draining" || member.message.contains(&limit_text(*until))
    };
    member.until.filter(says_so)
}

/// How a message of the report names the limit.
fn limit_text(until: Timestamp) -> String {
    format!("drained by {until} at the latest")
}

/// The state of a member that waits, with the time that is left.
pub fn member_text(member: &WaitingMember, now: Timestamp) -> String {
    let Some(until) = drain_limit(member) else {
        return member.message.clone();
    };
    let remaining = until.duration_since(now).as_secs();
    let remaining = match remaining {
        0.. => format!("in {}", messages::format_age(remaining)),
        _ => format!("{} ago", messages::format_age(-remaining)),
    };
    let limit = limit_text(until);
    match member.message.contains(&limit) {
        true => {
            let with_remaining = format!("{limit} ({remaining})");
            member.message.replacen(&limit, &with_remaining, 1)
        }
        false => format!("{}, {limit} ({remaining})", member.message),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn record_without_a_first_name_has_no_former_adapter() {
        let adapters = |record: &str| {
            let annotations = json!({ (keys::CONSIST_ADAPTER_IN_USE): record });
            let service = json!({ "metadata": { "annotations": annotations } });
            let service: Service = serde_json::from_value(service).unwrap();
            (adapter(&service), former_adapters(&service))
        };
        let edge = Some("edge".to_owned());
        assert_eq!(adapters(",edge"), (edge.clone(), vec![]));
        assert_eq!(adapters("edge,slb"), (edge, vec!["slb".to_owned()]));
        assert_eq!(adapters(""), (None, vec![]));
    }

    #[test]
    fn adapter_without_a_change_leaves_the_others_as_former_ones() {
        let formers = |record: &str, reported: &str| {
            let report = EmployerReport::of_error(reported, "down");
            let annotations = json!({
                (keys::CONSIST_ADAPTER_IN_USE): record,
                (keys::CONSIST_STATUS): serde_json::to_string(&report).unwrap(),
            });
            let service = json!({ "metadata": { "annotations": annotations } });
            former_adapters(&serde_json::from_value(service).unwrap())
        };
        assert_eq!(formers("edge", "slb"), ["edge"]);
        assert_eq!(formers("slb,edge", "slb"), ["edge"]);
        assert_eq!(formers("slb,edge", "edge"), ["edge"], "the report is old");
        assert!(formers("edge", "edge").is_empty() && formers("edge", "").is_empty());
    }

    #[test]
    fn only_a_drain_has_a_drain_limit() {
        let until = Timestamp::UNIX_EPOCH;
        let has_limit = |state: &str, message: &str| {
            let member = WaitingMember {
                state: state.to_owned(),
                message: message.to_owned(),
                until: Some(until),
                ..WaitingMember::default()
            };
            let is_told = member_text(&member, until).contains("drained by");
            assert_eq!(is_told, drain_limit(&member).is_some());
            is_told
        };
        assert!(has_limit("Draining", "requests may still be open"));
        assert!(has_limit("Absent", "requests may still arr…"));
        let named = "requests may still arrive: drained by 1970-01-01T00:00:00Z at the latest";
        assert!(has_limit("Absent", named));
        let late = "traffic is on, and a call without an answer may still take it off";
        assert!(!has_limit("Serving", late));
    }
}
