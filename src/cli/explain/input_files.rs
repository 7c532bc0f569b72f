//! Reads files with a review, rules, Pods and workloads: YAML or JSON, with one or more documents, single objects or
//! Lists. Each error names the file, the position and the field.

use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::admission::review::Request;
use crate::api::keys;
use crate::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleSpec};
use crate::api::validation;
use crate::cluster::kind::WatchedKind;
use crate::domain::pod::Pod;
use crate::domain::rules::ignore_policy;

#[derive(Debug, Default)]
pub struct InputObjects {
    pub rules: Vec<PodTransitionRule>,
    /// Pods, as they are written in the file.
    pub pods: Vec<Value>,
    /// Owners of the kinds that the server watches, as they are written in the file.
    pub workloads: Vec<(WatchedKind, Value)>,
    /// Namespaces, as they are written in the file.
    pub namespaces: Vec<Value>,
    /// The namespace of objects that name none.
    pub namespace: String,
    /// Notes for the user.
    pub notes: Vec<String>,
}

fn read_input_text(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input: can't be read as text")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("{}: can't be read", path.display()))
}

/// Reads the request of an AdmissionReview.
pub fn read_review(path: &Path) -> anyhow::Result<Request> {
    let file = path.display();
    let text = read_input_text(path)?;
    let is_json = text.trim_start().starts_with('{');
    let body = match is_json {
        true => text.into_bytes(),
        false => {
            let value: Value = serde_norway::from_str(&text).with_context(|| {
                format!("{file}: is neither JSON nor YAML; pass the AdmissionReview that the API server sent")
            })?;
            if !value.is_object() {
                bail!("{file}: holds no object; pass the AdmissionReview that the API server sent");
            }
            serde_json::to_vec(&value)?
        }
    };
    Request::parse(&body).map_err(|malformed| {
        anyhow::anyhow!(
            "{file}: {}; pass an AdmissionReview of admission.k8s.io/v1 with its request",
            malformed.message
        )
    })
}

/// Reads rules from `rules`, and Pods and workloads from `pods`. Each file may also contain the other kinds.
pub fn read_input_objects<P: AsRef<Path>>(
    rules: &[P],
    pods: &[P],
    namespace: &str,
) -> anyhow::Result<InputObjects> {
    let mut objects = InputObjects {
        namespace: namespace.to_owned(),
        ..InputObjects::default()
    };
    for path in rules {
        let before = objects.rules.len();
        objects.read_input_file(path.as_ref())?;
        if objects.rules.len() == before {
            let file = path.as_ref().display();
            bail!(
                "{file}: holds no PodTransitionRule; write one, or the output of kubectl get podtransitionrules -o yaml"
            );
        }
    }
    for path in pods {
        objects.read_input_file(path.as_ref())?;
    }
    Ok(objects)
}

impl InputObjects {
    fn read_input_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = read_input_text(path)?;
        for (index, document) in serde_norway::Deserializer::from_str(&text).enumerate() {
            let location = FileLocation {
                file: path.display().to_string(),
                text: &text,
                document: index,
                item: None,
            };
            let value = Value::deserialize(document).with_context(|| {
                format!("{location}: is no YAML or JSON; see the line that is named")
            })?;
            if !value.is_null() {
                self.add_document(&location, value)?;
            }
        }
        Ok(())
    }

    fn add_document(&mut self, location: &FileLocation<'_>, value: Value) -> anyhow::Result<()> {
        let Some(kind) = value.get("kind").and_then(Value::as_str) else {
            bail!(
                "{location}: kind: is missing; write a Kubernetes object, with apiVersion, kind and metadata"
            );
        };
        if let Some(items) = value.get("items") {
            let of = kind.strip_suffix("List").unwrap_or_default().to_owned();
            let Some(items) = items.as_array().cloned() else {
                bail!("{location}: items: must be a list");
            };
            for (index, mut item) in items.into_iter().enumerate() {
                if let Some(fields) = item.as_object_mut().filter(|_| !of.is_empty()) {
                    fields.entry("kind").or_insert_with(|| json!(of)); // lists of the API leave the kind out
                }
                let location = FileLocation {
                    item: Some(index),
                    ..location.clone()
                };
                self.add_document(&location, item)?;
            }
            return Ok(());
        }
        let kind = kind.to_owned();
        self.add_object(location, &kind, value)
    }

    fn add_object(
        &mut self,
        location: &FileLocation<'_>,
        kind: &str,
        mut value: Value,
    ) -> anyhow::Result<()> {
        let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
            bail!("{location}: metadata: is missing; write at least metadata.name");
        };
        let name = metadata
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        if name.is_empty() {
            bail!("{location}: metadata.name: is missing");
        }
        if kind != "Namespace" {
            metadata
                .entry("namespace")
                .or_insert_with(|| json!(self.namespace));
        }
        let namespace = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let uid = format!("{kind}/{namespace}/{name}");
        metadata.entry("uid").or_insert_with(|| json!(uid));
        match kind {
            "PodTransitionRule" => {
                let mut rule: PodTransitionRule =
                    parse_typed_object(location, &name, value.clone())?;
                mark_ignored_failures(&mut rule);
                if rule.spec.unreadable.is_some() {
                    parse_typed_object::<StrictRule>(location, &name, value)?;
                }
                let errors = validation::podtransitionrule::validate(&rule.spec);
                self.notes.extend(errors.iter().map(|error| {
                    format!(
                        "{location}: PodTransitionRule {name}: the API server would refuse it: {error}"
                    )
                }));
                self.rules.push(rule);
            }
            "Pod" => {
                parse_typed_object::<Pod>(location, &name, value.clone())?;
                self.pods.push(value);
            }
            "Namespace" => self.namespaces.push(value),
            kind => match WatchedKind::OWNER_KINDS
                .into_iter()
                .find(|known| known.name() == kind)
            {
                Some(kind) => self.workloads.push((kind, value)),
                None => self.notes.push(format!(
                    "{location}: {kind} {name} is left out, because the decision does not depend on this kind"
                )),
            },
        }
        Ok(())
    }

    /// Adds the Pod of the review, in its state before the request, if the files do not contain it.
    pub fn add_reviewed_pod(&mut self, request: &Request) -> anyhow::Result<()> {
        if request.resource.resource != "pods" || !request.resource.group.is_empty() {
            return Ok(());
        }
        let is_subject = |pod: &&Value| {
            pod["metadata"]["name"] == request.name.as_str()
                && pod["metadata"]["namespace"] == request.namespace.as_str()
        };
        let known = self.pods.iter().any(|pod| is_subject(&pod));
        match &request.old_object {
            _ if known => Ok(()),
            Some(raw) => {
                let location = FileLocation {
                    file: "the review".to_owned(),
                    text: "",
                    document: 0,
                    item: None,
                };
                let mut value: Value = serde_json::from_str(raw.get())?;
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("kind".to_owned(), json!("Pod"));
                }
                self.add_object(&location, "Pod", value)
                    .context("request.oldObject")
            }
            None if request.sub_resource.as_deref() == Some("eviction") => bail!(
                "the review is of an eviction, which does not carry its Pod: give Pod {} of namespace {} in a file of --pods",
                request.name,
                request.namespace
            ),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
struct FileLocation<'a> {
    file: String,
    text: &'a str,
    document: usize,
    item: Option<usize>,
}

impl std::fmt::Display for FileLocation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        if self.document > 0 {
            write!(f, ": document {}", self.document + 1)?;
        }
        match self.item {
            Some(item) => write!(f, ": items[{item}]"),
            None => Ok(()),
        }
    }
}

/// A rule whose spec must have the right types. The server accepts any stored spec, and an unreadable one holds its
/// Pods.
#[derive(Deserialize)]
struct StrictRule {
    #[serde(
        rename = "spec",
        deserialize_with = "PodTransitionRuleSpec::deserialize"
    )]
    _spec: PodTransitionRuleSpec,
}

/// Parses an object. The error names the field, and also the line if the object is not in a List.
fn parse_typed_object<T: DeserializeOwned>(
    location: &FileLocation<'_>,
    name: &str,
    value: Value,
) -> anyhow::Result<T> {
    let wrong = match T::deserialize(&value) {
        Ok(object) => return Ok(object),
        Err(wrong) => wrong.to_string(),
    };
    // Parses the text again, because this gives the path and, outside of a List, the line of the error.
    let located = match location.item {
        None => serde_norway::Deserializer::from_str(location.text)
            .nth(location.document)
            .and_then(|document| T::deserialize(document).err())
            .map(|error| error.to_string()),
        Some(_) => serde_norway::to_string(&value)
            .ok()
            .and_then(|text| serde_norway::from_str::<T>(&text).err())
            .and_then(|error| {
                error
                    .to_string()
                    .split(" at line ")
                    .next()
                    .map(str::to_owned)
            }),
    };
    let wrong = located.unwrap_or(wrong);
    bail!("{location}: {name}: {wrong}; write the field as kubectl explain shows it")
}

/// Records in a new object which of its rules have an effective `failurePolicy: Ignore`, as admission does.
fn mark_ignored_failures(rule: &mut PodTransitionRule) {
    let is_manifest = rule.metadata.resource_version.is_none();
    if let Some(annotation) = ignore_policy::annotation_value(None, rule).filter(|_| is_manifest) {
        let annotations = rule.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::IGNORES_FAILURES.to_owned(), annotation);
    }
}
