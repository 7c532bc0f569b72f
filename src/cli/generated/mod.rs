//! Generates files of the repository from the code. `tests/generated.rs` compares them.

mod chart;
mod components;

use super::install::rbac::{self, table, users};
use super::install::{client_config, names, server_namespace};
use super::{docs, metrics_docs, print};
use crate::admission::routes::{ConfigurationSettings, WebhookKind};

/// The file with the tables of rights.
const RBAC_TABLE: &str = "src/cli/install/rbac/table.rs";
/// The file with the table of webhooks.
const WEBHOOK_TABLE: &str = "src/admission/routes/table.rs";

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Path relative to the root of the repository.
    pub path: &'static str,
    /// Required content of the file.
    pub text: String,
}

/// All generated files except the CRDs.
pub fn generated_files() -> anyhow::Result<Vec<GeneratedFile>> {
    let settings = ConfigurationSettings {
        client: client_config(None, names::NAMESPACE),
        namespace: names::NAMESPACE.to_owned(),
        ca_bundle: None,
        grace_delete: false,
        collasets: true,
        cert_manager: Some(format!("{}/{}", names::NAMESPACE, names::CERTIFICATE)),
        segment: None,
    };
    let mut files = vec![
        GeneratedFile {
            path: "webhook-config/configurations.yaml",
            text: header(WEBHOOK_TABLE) + &print::webhook_documents(&settings)?,
        },
        GeneratedFile {
            path: "webhook-config/policies.yaml",
            text: header("src/admission/policies.rs") + &print::print_policies()?,
        },
        GeneratedFile {
            path: "manifests/namespace.yaml",
            text: header("src/cli/install/mod.rs")
                + &print::to_yaml_document(&server_namespace(names::NAMESPACE))?,
        },
        GeneratedFile {
            path: "manifests/rbac.yaml",
            text: header(RBAC_TABLE)
                + "# The rights that every server needs.\n"
                + &print::to_yaml_document(&rbac::service_account(names::NAMESPACE))?
                + &permission_documents(&table::SERVER, names::NAMESPACE)?,
        },
        GeneratedFile {
            path: "manifests/rbac-collasets.yaml",
            text: header(RBAC_TABLE)
                + "# The rights that CollaSets need; components/without-collasets leaves them out.\n"
                + &permission_documents(&table::COLLASETS, names::NAMESPACE)?,
        },
        GeneratedFile {
            path: "manifests/rbac-traffic.yaml",
            text: header(RBAC_TABLE)
                + "# The rights that ResourceConsist needs; components/without-traffic leaves them out.\n"
                + &permission_documents(&table::TRAFFIC, names::NAMESPACE)?,
        },
        GeneratedFile {
            path: "manifests/rbac-users.yaml",
            text: header("src/cli/install/rbac/users.rs")
                + "# What the API server adds to its own ClusterRoles view, edit and admin.\n"
                + &print::to_yaml_documents(&users::user_roles())?,
        },
        GeneratedFile {
            path: "manifests/components/grace-delete/rbac.yaml",
            text: header(RBAC_TABLE)
                + &permission_documents(&table::GRACE_DELETE, names::NAMESPACE)?,
        },
        GeneratedFile {
            path: "manifests/components/grace-delete/mutating.yaml",
            text: header(WEBHOOK_TABLE)
                + &components::feature_patch(&settings, WebhookKind::Mutating)?,
        },
        GeneratedFile {
            path: "manifests/components/grace-delete/validating.yaml",
            text: header(WEBHOOK_TABLE)
                + &components::feature_patch(&settings, WebhookKind::Validating)?,
        },
        GeneratedFile {
            path: "manifests/components/self-managed-certificates/rbac.yaml",
            text: header(RBAC_TABLE)
                + &permission_documents(&table::CERTIFICATES, names::NAMESPACE)?,
        },
        GeneratedFile {
            path: "manifests/components/without-collasets/webhooks.yaml",
            text: header(WEBHOOK_TABLE) + &components::collaset_removal_patch()?,
        },
        GeneratedFile {
            path: "docs/cli.md",
            text: docs::cli_markdown(),
        },
        GeneratedFile {
            path: "docs/metrics.md",
            text: metrics_docs::metrics_markdown()?,
        },
    ];
    files.extend(chart::chart_templates()?);
    Ok(files)
}

/// The first line of a generated file.
fn header(from: &str) -> String {
    format!("# Generated from {from}: UPDATE=1 cargo test --test generated rewrites it.\n")
}

/// Roles and bindings of a permission set, one document each.
fn permission_documents(grant: &table::PermissionSet, namespace: &str) -> anyhow::Result<String> {
    print::to_yaml_documents(&rbac::permission_objects(grant, namespace)?)
}
