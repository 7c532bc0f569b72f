//! Templates of the Helm chart in `charts/operating`, from the same objects as `manifests/`.
//!
//! The namespace of the release and the conditions are actions of Helm's template language. Everything else is text.

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use super::{RBAC_TABLE, WEBHOOK_TABLE, header, permission_documents};
use crate::admission::routes::{
    ConfigurationSettings, GRACEFUL_DELETION_WEBHOOKS, WEBHOOKS, webhook_configurations,
};
use crate::api::{crd, keys};
use crate::cli::generated::GeneratedFile;
use crate::cli::install::rbac::{self, table, users};
use crate::cli::install::{client_config, names};
use crate::cli::print;

/// The action that renders the namespace of the release. YAML needs no quotes around other text that contains it.
const NAMESPACE: &str = "{{ .Release.Namespace }}";
const COLLASETS: &str = ".Values.featureGates.CollaSets";
const RESOURCE_CONSIST: &str = ".Values.featureGates.ResourceConsist";
const GRACE_DELETE: &str = ".Values.featureGates.GraceDeleteWebhook";
const CERT_MANAGER: &str = "eq .Values.certificates \"cert-manager\"";
const SELF_MANAGED: &str = "ne .Values.certificates \"cert-manager\"";
/// Helm leaves objects with this annotation in the cluster when it removes a release.
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

/// The generated templates.
pub fn chart_templates() -> anyhow::Result<Vec<GeneratedFile>> {
    Ok(vec![
        GeneratedFile {
            path: "charts/operating/templates/crds.yaml",
            text: header("src/api") + &crd_documents()?,
        },
        GeneratedFile {
            path: "charts/operating/templates/policies.yaml",
            text: header("src/admission/policies.rs") + &escaped(&print::print_policies()?),
        },
        GeneratedFile {
            path: "charts/operating/templates/rbac.yaml",
            text: header(RBAC_TABLE) + &rbac_documents()?,
        },
        GeneratedFile {
            path: "charts/operating/templates/webhooks.yaml",
            text: header(WEBHOOK_TABLE) + &webhook_documents()?,
        },
    ])
}

/// The CRDs. They stay when the release is removed, because the objects of users go with them.
fn crd_documents() -> anyhow::Result<String> {
    let kept = crd::all_crds().into_iter().map(|mut crd| {
        let annotations = crd.metadata.annotations.get_or_insert_default();
        annotations.insert(RESOURCE_POLICY.to_owned(), "keep".to_owned());
        crd
    });
    let documents = print::to_yaml_documents(&kept.collect::<Vec<_>>())?;
    Ok(escaped(&documents))
}

fn rbac_documents() -> anyhow::Result<String> {
    let permissions = |set| Ok::<_, anyhow::Error>(escaped(&permission_documents(set, NAMESPACE)?));
    let account = print::to_yaml_document(&rbac::service_account(NAMESPACE))?;
    Ok([
        escaped(&account),
        permissions(&table::SERVER)?,
        only_if(COLLASETS, &permissions(&table::COLLASETS)?),
        only_if(RESOURCE_CONSIST, &permissions(&table::TRAFFIC)?),
        only_if(GRACE_DELETE, &permissions(&table::GRACE_DELETE)?),
        only_if(SELF_MANAGED, &permissions(&table::CERTIFICATES)?),
        escaped(&print::to_yaml_documents(&users::user_roles())?),
    ]
    .concat())
}

fn webhook_documents() -> anyhow::Result<String> {
    let (mutating, validating) = webhook_configurations(&ConfigurationSettings {
        client: client_config(None, NAMESPACE),
        namespace: NAMESPACE.to_owned(),
        ca_bundle: None,
        grace_delete: true,
        collasets: true,
        cert_manager: Some(format!("{NAMESPACE}/{}", names::CERTIFICATE)),
        segment: None,
    });
    let documents = configuration_document(&mutating)? + &configuration_document(&validating)?;
    Ok(excluded_once(&documents))
}

/// A webhook configuration, with conditions around what depends on values.
fn configuration_document(configuration: &impl Serialize) -> anyhow::Result<String> {
    let object = serde_json::to_value(configuration)?;
    let metadata = &object["metadata"];
    let mut text = fragment(
        &json!({"apiVersion": object["apiVersion"], "kind": object["kind"]}),
        0,
    )?;
    text += &format!("metadata:\n  name: {}\n", text_of(&metadata["name"])?);
    text += &fragment(&json!({"labels": metadata["labels"]}), 2)?;
    let annotations = fragment(&json!({"annotations": metadata["annotations"]}), 2)?;
    text += &only_if(CERT_MANAGER, &annotations);
    text += "webhooks:\n";
    for entry in object["webhooks"].as_array().into_iter().flatten() {
        let name = text_of(&entry["name"])?;
        let entry = fragment(&json!([entry]), 0)?;
        text += &match condition(name) {
            Some(condition) => only_if(condition, &entry),
            None => entry,
        };
    }
    Ok(format!("---\n{text}"))
}

/// The namespace of the release is in lists of excluded namespaces, unless it is there anyway.
fn excluded_once(documents: &str) -> String {
    let line = format!("      - '{NAMESPACE}'\n");
    let others = keys::EXCLUDED_NAMESPACES.map(|name| format!("{name:?}"));
    let is_other = format!("not (has .Release.Namespace (list {}))", others.join(" "));
    documents.replace(&line, &only_if(&is_other, &line))
}

/// The value on which a webhook depends.
fn condition(webhook: &str) -> Option<&'static str> {
    if GRACEFUL_DELETION_WEBHOOKS.iter().any(|w| w.name == webhook) {
        return Some(GRACE_DELETE);
    }
    let mut all = WEBHOOKS.iter();
    let is_for_collasets = all.any(|w| w.name == webhook && w.route.is_for_collasets());
    is_for_collasets.then_some(COLLASETS)
}

/// YAML with so many spaces before each line.
fn fragment(value: &Value, indent: usize) -> anyhow::Result<String> {
    let yaml = serde_norway::to_string(value).context("cannot write YAML")?;
    let indent = " ".repeat(indent);
    let lines = yaml.lines().map(|line| format!("{indent}{line}\n"));
    Ok(escaped(&lines.collect::<String>()))
}

fn text_of(value: &Value) -> anyhow::Result<&str> {
    value.as_str().context("a webhook without a name")
}

fn only_if(condition: &str, text: &str) -> String {
    format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")
}

/// Text that Helm renders as it is, apart from the namespace.
fn escaped(text: &str) -> String {
    let parts = text.split(NAMESPACE);
    let parts = parts.map(|part| part.replace("{{", "{{ \"{{\" }}"));
    parts.collect::<Vec<_>>().join(NAMESPACE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn braces_of_texts_are_no_actions() {
        let text = format!("a {{{{ b }}}} {NAMESPACE} {{}}");
        assert_eq!(
            escaped(&text),
            "a {{ \"{{\" }} b }} {{ .Release.Namespace }} {}"
        );
    }
}
