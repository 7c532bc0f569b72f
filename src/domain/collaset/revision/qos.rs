//! The QoS class of a Pod, which no resize may change.

use serde_json::Value;

use crate::domain::quantity;

/// The resources that determine the QoS class, and the only ones that Kubernetes resizes.
pub const COMPUTE_RESOURCES: [&str; 2] = ["cpu", "memory"];

/// Returns the QoS class of a Pod spec, computed as in Kubernetes but without Pod-level resources.
pub fn qos_class(spec: &Value) -> &'static str {
    let containers: Vec<_> = ["containers", "initContainers"]
        .into_iter()
        .filter_map(|list| spec.get(list)?.as_array())
        .flatten()
        .flat_map(|c| {
            COMPUTE_RESOURCES.map(|name| {
                (
                    positive_nanos(c, "limits", name),
                    positive_nanos(c, "requests", name),
                )
            })
        })
        .map(|(limit, request)| (limit, request.or(limit)))
        .collect();
    if containers
        .iter()
        .all(|(limit, request)| limit.or(*request).is_none())
    {
        "BestEffort"
    } else if containers
        .iter()
        .all(|(limit, request)| limit.is_some() && limit == request)
    {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Returns a resource of a container itself, if the quantity is greater than 0.
fn positive_nanos(container: &Value, kind: &str, name: &str) -> Option<i128> {
    let value = container.get("resources")?.get(kind)?.get(name)?;
    quantity::nanos(value).filter(|nanos| *nanos > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn class_follows_requests_and_limits_of_all_containers() {
        let spec = |resources: [Value; 2]| json!({ "containers": resources.map(|r| json!({ "resources": r })) });
        let full = json!({ "limits": { "cpu": "1", "memory": "1Gi" } });
        assert_eq!(
            qos_class(&spec([json!({}), json!({ "limits": { "cpu": "0" } })])),
            "BestEffort"
        );
        assert_eq!(qos_class(&spec([full.clone(), full.clone()])), "Guaranteed");
        let same =
            json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1000m" } });
        assert_eq!(qos_class(&spec([full.clone(), same])), "Guaranteed");
        assert_eq!(qos_class(&spec([full.clone(), json!({})])), "Burstable");
        assert_eq!(
            qos_class(&spec([full, json!({ "requests": { "cpu": "1" } })])),
            "Burstable"
        );
    }
}
