//! Decides which responses prove that an object does not exist.

use kube::core::Status;

/// Whether a response of the API server proves that this object does not exist: it is a failure with the reason
/// `NotFound` whose details name the object. A code 404 alone proves nothing, because it may come from a proxy, or from
/// a path that is no longer served. `resource` is the plural name. In the response, a subresource may follow it, as in
/// `deployments/scale`.
pub fn proves_not_found(status: &Status, group: &str, resource: &str, name: &str) -> bool {
    let Some(details) = &status.details else {
        return false;
    };
    let named = details.kind.split('/').next().unwrap_or_default();
    status.is_failure()
        && status.code == 404
        && status.reason == "NotFound"
        && details.group == group
        && named == resource
        && details.name == name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_not_found_naming_the_object_proves_absence() {
        let said = |status: &str, reason: &str, code: u16, details: serde_json::Value| {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": status, "reason": reason, "code": code, "details": details,
            });
            let status: Status = serde_json::from_value(status).unwrap();
            proves_not_found(&status, "example.com", "things", "web")
        };
        let details = |group: &str, kind: &str, name: &str| json!({ "group": group, "kind": kind, "name": name });
        let web = details("example.com", "things", "web");
        assert!(said("Failure", "NotFound", 404, web.clone()));
        let scale = details("example.com", "things/scale", "web");
        assert!(said("Failure", "NotFound", 404, scale));
        assert!(!said("Success", "NotFound", 404, web.clone()));
        assert!(!said("Failure", "", 404, web.clone()));
        assert!(!said("Failure", "NotFound", 410, web));
        for other in [
            details("other.com", "things", "web"),
            details("example.com", "others", "web"),
            details("example.com", "things", "db"),
            json!({}),
        ] {
            assert!(!said("Failure", "NotFound", 404, other.clone()), "{other}");
        }
        let bare = Status::failure("404 page not found", "Failed to parse error data");
        assert!(!proves_not_found(
            &bare.with_code(404),
            "example.com",
            "things",
            "web"
        ));
    }
}
