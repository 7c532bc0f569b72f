//! Parses an AdmissionReview field by field, so that an error names the field, and the uid is known even if another
//! field is invalid.
//!
//! Anybody who can reach the port can send a review. The server uses namespace and name in paths of requests that it
//! sends with its own rights. Therefore this module rejects names that an API server would not send.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{API_VERSION, KIND, RawFields, Request};
use crate::api::labels;

/// A body that is not a valid AdmissionReview.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Malformed {
    /// `request.uid`, if it could be read. With a uid, the server can answer with a verdict.
    pub uid: Option<String>,
    /// Names the field and the expected value. It quotes nothing of the body.
    pub message: String,
}

pub(super) fn parse_request(body: &[u8]) -> Result<Request, Malformed> {
    let mut review = PartialReview::default();
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = ReviewSeed(&mut review)
        .deserialize(&mut json)
        .and_then(|()| json.end());
    // The caller could not match a uid of another type.
    let uid = required_field::<String>(&review.request, "uid")
        .ok()
        .filter(|uid| !uid.is_empty());
    let malformed = |message: String| Malformed {
        uid: uid.clone(),
        message,
    };

    read.map_err(|error| malformed(describe_json_error(&error)))?;
    for (name, found, wanted) in [
        ("apiVersion", &review.api_version, API_VERSION),
        ("kind", &review.kind, KIND),
    ] {
        if found.as_deref() != Some(wanted) {
            return Err(malformed(format!("{name}: must be {wanted}")));
        }
    }
    if !review.has_request {
        return Err(malformed("request: missing".to_owned()));
    }
    assemble_request(&review.request).map_err(malformed)
}

fn assemble_request(fields: &RawFields<'_>) -> Result<Request, String> {
    let uid: String = required_field(fields, "uid")?;
    if uid.is_empty() {
        return Err("request.uid: must not be empty".to_owned());
    }
    let request = Request {
        uid,
        kind: required_field(fields, "kind")?,
        resource: required_field(fields, "resource")?,
        sub_resource: optional_field(fields, "subResource")?.filter(|s: &String| !s.is_empty()),
        name: optional_field(fields, "name")?.unwrap_or_default(),
        namespace: optional_field(fields, "namespace")?.unwrap_or_default(),
        operation: required_field(fields, "operation")?,
        user_info: optional_field(fields, "userInfo")?.unwrap_or_default(),
        is_verified: false,
        dry_run: optional_field(fields, "dryRun")?.unwrap_or_default(),
        object: optional_raw_field(fields, "object")?,
        old_object: optional_raw_field(fields, "oldObject")?,
        options: optional_raw_field(fields, "options")?,
    };
    check_names(&request)?;
    Ok(request)
}

/// The metadata that identifies an object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectNames<'a> {
    #[serde(borrow)]
    metadata: Option<ObjectIdentity<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectIdentity<'a> {
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
}

/// Checks namespace and name. All reviewed kinds are namespaced and have DNS subdomain names. Both objects must have
/// the namespace and the name of the request. A request or an object may leave out the name, as a CREATE with
/// `generateName` and a deletecollection do.
fn check_names(request: &Request) -> Result<(), String> {
    let named = [
        ("request.namespace", &*request.namespace),
        ("request.name", &*request.name),
    ];
    let problems = [labels::dns_label_problem, labels::dns_name_problem];
    for ((field, value), problem) in named.into_iter().zip(problems) {
        check_name(field, value, problem)?;
    }
    for (field, object) in [
        ("request.object", &request.object),
        ("request.oldObject", &request.old_object),
    ] {
        let Some(object) = object else { continue };
        let object: ObjectNames<'_> = serde_json::from_str(object.get()).map_err(|_| {
            format!("{field}.metadata: must be an object with the strings namespace and name")
        })?;
        let found = object.metadata.unwrap_or_default();
        let found = [
            ("namespace", found.namespace.unwrap_or_default()),
            ("name", found.name.unwrap_or_default()),
        ];
        let wanted = named.into_iter().zip(problems);
        for ((part, value), ((other, wanted), problem)) in found.iter().zip(wanted) {
            let field = format!("{field}.metadata.{part}");
            check_name(&field, value, problem)?;
            let may_differ = part == &"name" && wanted.is_empty();
            if !value.is_empty() && !may_differ && value != wanted {
                return Err(format!("{field}: must be the same as {other}"));
            }
        }
    }
    Ok(())
}

fn check_name(
    field: &str,
    value: &str,
    problem: fn(&str) -> Option<&'static str>,
) -> Result<(), String> {
    match problem(value).filter(|_| !value.is_empty()) {
        Some(problem) => Err(format!("{field}: {problem}")),
        None => Ok(()),
    }
}

/// The expected value of a field. The message of serde would quote the value.
fn expected_type(name: &str) -> &'static str {
    match name {
        "kind" => "an object with the strings group, version and kind",
        "resource" => "an object with the strings group, version and resource",
        "operation" => "CREATE, UPDATE, DELETE or CONNECT",
        "userInfo" => "an object with the string username and the list groups",
        "dryRun" => "true or false",
        "object" | "oldObject" | "options" => "an object or null",
        _ => "a string",
    }
}

fn required_field<T: DeserializeOwned>(fields: &RawFields<'_>, name: &str) -> Result<T, String> {
    optional_field(fields, name)?
        .ok_or_else(|| format!("request.{name}: missing; must be {}", expected_type(name)))
}

fn optional_field<T: DeserializeOwned>(
    fields: &RawFields<'_>,
    name: &str,
) -> Result<Option<T>, String> {
    let Some(raw) = fields.get(name) else {
        return Ok(None);
    };
    serde_json::from_str(raw.get())
        .map_err(|_| format!("request.{name}: must be {}", expected_type(name)))
}

fn optional_raw_field(fields: &RawFields<'_>, name: &str) -> Result<Option<Box<RawValue>>, String> {
    match fields
        .get(name)
        .map(|raw| (raw.get().as_bytes().first(), *raw))
    {
        None => Ok(None),
        Some((Some(b'{'), raw)) => Ok(Some(raw.to_owned())),
        Some(_) if fields[name].get() == "null" => Ok(None),
        Some(_) => Err(format!("request.{name}: must be {}", expected_type(name))),
    }
}

/// Position and class of a syntax error, without the surrounding text.
fn describe_json_error(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "the body ends too early",
        serde_json::error::Category::Syntax => "the body is not JSON",
        _ => "the body is not an AdmissionReview: a field has the wrong type",
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

/// The fields that were read so far. They are kept if a later byte is invalid.
#[derive(Default)]
struct PartialReview<'de> {
    api_version: Option<String>,
    kind: Option<String>,
    has_request: bool,
    request: RawFields<'de>,
}

struct ReviewSeed<'s, 'de>(&'s mut PartialReview<'de>);

impl<'de> DeserializeSeed<'de> for ReviewSeed<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReviewSeed<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionReview")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "apiVersion" => self.0.api_version = map.next_value()?,
                "kind" => self.0.kind = map.next_value()?,
                "request" => {
                    self.0.has_request = true;
                    map.next_value_seed(FieldsSeed(&mut self.0.request))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

struct FieldsSeed<'s, 'de>(&'s mut RawFields<'de>);

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request of an AdmissionReview")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.insert(key, map.next_value()?);
        }
        Ok(())
    }
}
