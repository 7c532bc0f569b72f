//! Paths of fields of a Pod, as the parameters of webhook rules name them (contract 5.5).

use std::fmt;

/// The parts of a Pod that contain fields.
const ROOT_FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// Fields of `metadata`, besides labels and annotations, that webhook rules may send to an endpoint.
const READABLE_METADATA: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "name",
    "namespace",
    "ownerReferences",
    "uid",
];

/// Fields of `spec` that webhook rules may send to an endpoint. Other fields are excluded because they may
/// contain a password: containers hold environments, commands and probes, and volumes hold the attributes of
/// drivers.
const READABLE_SPEC: [&str; 33] = [
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "dnsPolicy",
    "enableServiceLinks",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
];

/// Fields of `status` that webhook rules may send to an endpoint. The state of a container is excluded
/// because its termination message may be the end of the container's log.
const READABLE_STATUS: [&str; 12] = [
    "conditions",
    "hostIP",
    "hostIPs",
    "message",
    "nominatedNodeName",
    "observedGeneration",
    "phase",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "startTime",
];

/// kubectl stores the whole applied object in this annotation, with the environments of containers.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A parsed path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldPath {
    /// `metadata.labels` or `metadata.annotations`: a whole map.
    Map(MapField),
    /// `metadata.labels['key']` or `metadata.annotations['key']`.
    Entry(MapField, String),
    /// Names of nested fields; the list is not empty.
    Fields(Vec<String>),
}

/// A map in `metadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapField {
    /// `labels`.
    Labels,
    /// `annotations`.
    Annotations,
}

impl MapField {
    /// Name of the field in `metadata`.
    pub const fn as_str(self) -> &'static str {
        match self {
            MapField::Labels => "labels",
            MapField::Annotations => "annotations",
        }
    }
}

impl FieldPath {
    /// Parses a path. The error names the problem and the remedy.
    pub fn parse(text: &str) -> Result<FieldPath, &'static str> {
        for map in [MapField::Labels, MapField::Annotations] {
            let rest = text
                .strip_prefix("metadata.")
                .and_then(|t| t.strip_prefix(map.as_str()));
            match rest {
                Some("") => return Ok(FieldPath::Map(map)),
                Some(rest) if rest.starts_with('[') => {
                    let key = rest.strip_prefix("['").and_then(|r| r.strip_suffix("']"));
                    let key = key.filter(|k| !k.is_empty() && !k.contains(['\'', '[', ']']));
                    return key
                        .map(|key| FieldPath::Entry(map, key.to_owned()))
                        .ok_or("must name one key in quotes, such as metadata.labels['app']");
                }
                _ => {}
            }
        }
        if text.contains(['[', ']']) {
            return Err(
                "has an index, which only metadata.labels['key'] and metadata.annotations['key'] may have: name a field \
                 that holds the whole list",
            );
        }
        let fields: Vec<String> = text.split('.').map(str::to_owned).collect();
        if fields
            .iter()
            .any(|f| f.is_empty() || f.contains(char::is_whitespace))
        {
            return Err("must be field names joined by dots, such as status.podIP");
        }
        if !ROOT_FIELDS.contains(&fields[0].as_str()) {
            return Err("must begin with metadata, spec or status, such as spec.nodeName");
        }
        Ok(FieldPath::Fields(fields))
    }

    /// Checks whether webhook rules may send the field to an endpoint. The error names the problem and the
    /// remedy. The author of a rule chooses the endpoint, and may have no permission to read Pods or their
    /// logs.
    pub fn check_handed_out(&self) -> Result<(), String> {
        let fields = match self {
            FieldPath::Map(_) => return Ok(()),
            FieldPath::Entry(_, key) if key != LAST_APPLIED => return Ok(()),
            FieldPath::Entry(..) => {
                return Err(
                    "is not sent to endpoints: it repeats the environments of containers; name another annotation"
                        .to_owned(),
                );
            }
            FieldPath::Fields(fields) => fields,
        };
        let root = fields.first().map_or("", String::as_str);
        let (allowed, example) = match root {
            "metadata" => (
                &READABLE_METADATA[..],
                "metadata.name or metadata.labels['app']",
            ),
            "spec" => (&READABLE_SPEC[..], "spec.nodeName"),
            "status" => (&READABLE_STATUS[..], "status.podIP"),
            _ => return Ok(()),
        };
        match fields.get(1) {
            Some(field) if allowed.contains(&field.as_str()) => Ok(()),
            _ => Err(format!(
                "is not sent to endpoints, since containers, volumes and the states of containers may contain \
                 secrets: name a field such as {example}, or put the value into an annotation of the Pod and name \
                 metadata.annotations['KEY']"
            )),
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldPath::Map(map) => write!(f, "metadata.{}", map.as_str()),
            FieldPath::Entry(map, key) => write!(f, "metadata.{}['{key}']", map.as_str()),
            FieldPath::Fields(fields) => f.write_str(&fields.join(".")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_read_and_print_alike() {
        for text in [
            "metadata.name",
            "metadata.labels",
            "metadata.annotations",
            "metadata.labels['app.kubernetes.io/name']",
            "metadata.annotations['a']",
            "metadata.labelsAndMore",
            "status.podIP",
            "spec.securityContext.runAsUser",
        ] {
            assert_eq!(FieldPath::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn fields_that_may_contain_secrets_are_not_handed_out() {
        for secret in [
            "spec",
            "spec.containers",
            "spec.containers.env",
            "spec.initContainers",
            "spec.ephemeralContainers",
            "spec.volumes",
            "spec.imagePullSecrets",
            "spec.unheardOf.env",
            "status",
            "status.containerStatuses",
            "status.initContainerStatuses",
            "status.ephemeralContainerStatuses",
            "metadata",
            "metadata.managedFields",
            "metadata.labelsAndMore",
            "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']",
        ] {
            let error = FieldPath::parse(secret).unwrap().check_handed_out();
            let error = error.unwrap_err();
            assert!(
                error.starts_with("is not sent to endpoints"),
                "{secret}: {error}"
            );
            assert!(error.contains("name a"), "{secret}: {error}");
        }
        for plain in [
            "apiVersion",
            "kind",
            "metadata.name",
            "metadata.labels",
            "metadata.annotations",
            "metadata.annotations['a']",
            "spec.nodeName",
            "spec.securityContext.runAsUser",
            "status.podIP",
            "status.conditions",
        ] {
            let path = FieldPath::parse(plain).unwrap();
            assert_eq!(path.check_handed_out(), Ok(()), "{plain}");
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for (text, why) in [
            ("", "joined by dots"),
            (".", "joined by dots"),
            ("status..podIP", "joined by dots"),
            ("status. podIP", "joined by dots"),
            ("nodeName", "must begin with"),
            ("spec.containers[0].image", "has an index"),
            ("metadata.labels[app]", "one key in quotes"),
            ("metadata.labels['']", "one key in quotes"),
            ("metadata.labels['a'].b", "one key in quotes"),
            ("metadata.labels['a']['b']", "one key in quotes"),
        ] {
            assert!(FieldPath::parse(text).unwrap_err().contains(why), "{text}");
        }
    }
}
