//! The messages between webhook rules and their endpoints (contract 5.5).

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lenient;

/// The `apiVersion` of every resource in an [`EndpointRequest`]; Kuperator writes this value and not `v1`.
pub const POD_API_VERSION: &str = "core/v1";

/// Body of the POST that asks about Pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRequest {
    /// Identifies this call.
    pub trace_id: String,
    /// Name of the rule.
    pub rule_name: String,
    /// Stage of the rule, only if the spec names a stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The Pods, sorted by name.
    pub resources: Vec<RequestedPod>,
}

/// A Pod that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestedPod {
    /// [`POD_API_VERSION`].
    pub api_version: &'static str,
    /// `Pod`.
    pub kind: &'static str,
    /// Name of the Pod.
    pub name: String,
    /// The parameters of the rule.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// Answer to an [`EndpointRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointResponse {
    /// Whether all Pods pass, or a task was started.
    #[serde(deserialize_with = "lenient::nullable")]
    pub success: bool,
    /// For people.
    #[serde(deserialize_with = "lenient::nullable")]
    pub message: String,
    /// Names of Pods that pass, whatever the result for the other Pods.
    #[serde(deserialize_with = "lenient::nullable")]
    pub finished_names: Vec<String>,
    /// Whether a task was started whose result the server must poll.
    #[serde(deserialize_with = "lenient::nullable")]
    pub poll: bool,
    /// Former name of `poll`.
    #[serde(rename = "async", deserialize_with = "lenient::nullable")]
    pub is_async: bool,
    /// ID of the task.
    #[serde(deserialize_with = "lenient::nullable")]
    pub task_id: String,
    /// ID of the task if `taskId` is empty.
    #[serde(deserialize_with = "lenient::nullable")]
    pub trace_id: String,
}

impl ProtocolFields for EndpointResponse {
    const NAMES: &[&str] = &[
        "success",
        "message",
        "finishedNames",
        "poll",
        "async",
        "taskId",
        "traceId",
    ];
}

impl ProtocolFields for Progress {
    const NAMES: &[&str] = &["success", "message", "finished", "finishedNames", "stop"];
}

/// An answer of an endpoint that is read by field names.
pub trait ProtocolFields: DeserializeOwned {
    /// Names of all fields.
    const NAMES: &[&str];
}

impl EndpointResponse {
    /// Whether the server must poll the result.
    pub fn is_long(&self) -> bool {
        self.poll || self.is_async
    }

    /// The ID of the task, if there is a task.
    pub fn task_id(&self) -> Option<&str> {
        [&self.task_id, &self.trace_id]
            .into_iter()
            .map(|id| id.trim())
            .find(|id| !id.is_empty())
    }
}

/// Parses the body of an [`EndpointResponse`] or [`Progress`]. Field names are matched as Go does for
/// Kuperator: case-insensitively, and if a field occurs in several spellings, the last value that is not null
/// is used. The error describes the problem without quoting the body, which may come from any server that the
/// author of a rule can name but not read.
pub fn parse_response<T: ProtocolFields>(body: &[u8]) -> Result<T, String> {
    // Serde would deserialize a struct from an array, too.
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(|e| {
        format!(
            "the answer is no JSON object (line {}, column {})",
            e.line(),
            e.column()
        )
    })?;
    let object = in_protocol_spelling(object, T::NAMES);
    let odd = |(key, value): (&String, &Value)| {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        let read = serde_json::from_value::<T>(Value::Object(alone));
        // Only a field that the protocol knows can be of the wrong type.
        let must = match key.as_str() {
            "message" | "taskId" | "traceId" => "a string",
            "finishedNames" => "a list of strings",
            _ => "a boolean",
        };
        let found = json_type_name(value);
        read.is_err()
            .then(|| format!("the answer can't be read: {key} must be {must}, and is {found}"))
    };
    let odd = object.iter().find_map(odd);
    serde_json::from_value(Value::Object(object))
        .map_err(|_| odd.unwrap_or_else(|| "the answer can't be read".to_owned()))
}

/// The object with each known field renamed to its spelling in `names`.
fn in_protocol_spelling(object: Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let mut read = Map::new();
    for (key, value) in object {
        let name = names.iter().find(|name| name.eq_ignore_ascii_case(&key));
        let name = name.map_or(key, |name| (*name).to_owned());
        if !value.is_null() {
            read.insert(name, value);
        }
    }
    read
}

/// The type of a value, for people.
fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "another list",
        Value::Object(_) => "an object",
    }
}

/// Answer to a poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Whether the task succeeds so far.
    #[serde(deserialize_with = "lenient::nullable")]
    pub success: bool,
    /// For people.
    #[serde(deserialize_with = "lenient::nullable")]
    pub message: String,
    /// With `success`: all Pods of the task pass.
    #[serde(deserialize_with = "lenient::nullable")]
    pub finished: bool,
    /// Names of Pods that pass. The names of all polls add up.
    #[serde(deserialize_with = "lenient::nullable")]
    pub finished_names: Vec<String>,
    /// Whether the task has ended.
    #[serde(deserialize_with = "lenient::nullable")]
    pub stop: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_object_is_an_answer() {
        assert_eq!(
            parse_response::<EndpointResponse>(b"{}").unwrap(),
            EndpointResponse::default()
        );
        for (body, why) in [
            ("", "is no JSON object"),
            ("[]", "is no JSON object"),
            ("null", "is no JSON object"),
            ("<html>", "is no JSON object"),
            (r#"{"success":true}}"#, "is no JSON object"),
            (
                r#"{"success":"yes"}"#,
                "can't be read: success must be a boolean, and is a string",
            ),
            (
                r#"{"ok":1,"finishedNames":[5]}"#,
                "can't be read: finishedNames must be a list of strings, and is another list",
            ),
        ] {
            let error = parse_response::<EndpointResponse>(body.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
    }

    #[test]
    fn casing_of_fields_does_not_matter() {
        let answer: EndpointResponse = parse_response(
            br#"{"Success":true,"finishednames":["a"],"ASYNC":true,"taskid":"t","TaskID":null,"MESSAGE":"m"}"#,
        )
        .unwrap();
        assert!(answer.success && answer.is_long());
        assert_eq!(
            (answer.task_id(), answer.message.as_str()),
            (Some("t"), "m")
        );
        assert_eq!(answer.finished_names, ["a"]);
        let progress: Progress = parse_response(
            br#"{"Success":true,"FINISHED":true,"Stop":true,"FinishedNames":["b"]}"#,
        )
        .unwrap();
        assert!(progress.success && progress.finished && progress.stop);
        assert_eq!(progress.finished_names, ["b"]);
        let last: EndpointResponse =
            parse_response(br#"{"success":true,"Success":false}"#).unwrap();
        assert!(!last.success);
        let wrong = parse_response::<EndpointResponse>(br#"{"SUCCESS":"yes"}"#).unwrap_err();
        assert!(wrong.contains("success must be a boolean"), "{wrong}");
    }

    #[test]
    fn errors_quote_nothing_of_the_answer() {
        for body in [
            r#""hunter2""#,
            r#"hunter2"#,
            r#"{"success":"hunter2"}"#,
            r#"{"message":{"hunter2":1}}"#,
            r#"{"hunter2":1,"finished":["hunter2"],"poll":"hunter2"}"#,
            r#"{"hunter2":hunter2}"#,
        ] {
            let answer = parse_response::<EndpointResponse>(body.as_bytes()).err();
            let progress = parse_response::<Progress>(body.as_bytes()).err();
            let text = format!("{answer:?} {progress:?}");
            assert!(text.contains("the answer"), "{body}: {text}");
            assert!(!text.contains("hunter2"), "{body}: {text}");
        }
    }

    #[test]
    fn request_has_format_of_kuperator() {
        let request = EndpointRequest {
            trace_id: "t".into(),
            rule_name: "ask".into(),
            stage: None,
            resources: vec![RequestedPod {
                api_version: POD_API_VERSION,
                kind: "Pod",
                name: "web-0".into(),
                parameters: [("ip".to_owned(), "10.0.0.1".to_owned())].into(),
            }],
        };
        let want = json!({ "traceId": "t", "ruleName": "ask", "resources": [
            { "apiVersion": "core/v1", "kind": "Pod", "name": "web-0", "parameters": { "ip": "10.0.0.1" } },
        ] });
        assert_eq!(serde_json::to_value(&request).unwrap(), want);
        let staged = EndpointRequest {
            stage: Some("PreCheck".into()),
            ..request
        };
        assert_eq!(serde_json::to_value(&staged).unwrap()["stage"], "PreCheck");
    }

    #[test]
    fn answers_are_read_leniently() {
        let read = |value| serde_json::from_value::<EndpointResponse>(value).unwrap();
        let all = read(
            json!({ "success": true, "message": "m", "finishedNames": ["a"], "async": true, "traceId": "t", "new": 1 }),
        );
        assert!(all.success && all.is_long());
        assert_eq!((all.task_id(), all.finished_names.len()), (Some("t"), 1));
        let nulls = read(
            json!({ "success": true, "message": null, "finishedNames": null, "poll": null, "taskId": " " }),
        );
        assert!(!nulls.is_long());
        assert_eq!(nulls.task_id(), None);
        assert_eq!(
            read(json!({ "poll": true, "taskId": "a", "traceId": "b" })).task_id(),
            Some("a")
        );
    }
}
