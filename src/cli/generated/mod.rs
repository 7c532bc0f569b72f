//! Files of the repository that are generated from the code; `tests/generated.rs` compares them.

mod components;

use super::install::rbac::{self, table, users};
use super::install::{client_config, names};
use super::{docs, metrics, print};
use crate::admission::routes::{ConfigurationSettings, WebhookKind};

/// Where the tables of rights are.
const RIGHTS: &str = "src/cli/install/rbac/table.rs";
/// Where the table of webhooks is.
const WEBHOOKS: &str = "src/admission/routes/table.rs";

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path from the top of the repository.
    pub path: &'static str,
    /// What must be in it.
    pub text: String,
}

/// All generated files but the CRDs.
pub fn files() -> anyhow::Result<Vec<File>> {
    let settings = ConfigurationSettings {
        client: client_config(None, names::NAMESPACE),
        namespace: names::NAMESPACE.to_owned(),
        ca_bundle: None,
        grace_delete: false,
        collasets: true,
        cert_manager: Some(format!("{}/{}", names::NAMESPACE, names::CERTIFICATE)),
        segment: None,
    };
    let header = |from| {
        format!("# Generated from {from}: UPDATE=1 cargo test --test generated rewrites it.\n")
    };
    Ok(vec![
        File {
            path: "webhook-config/configurations.yaml",
            text: header(WEBHOOKS) + &print::webhooks(&settings)?,
        },
        File {
            path: "webhook-config/policies.yaml",
            text: header("src/admission/policies.rs") + &print::policies()?,
        },
        File {
            path: "manifests/rbac.yaml",
            text: header(RIGHTS)
                + "# The rights that every server needs.\n"
                + &print::document(&rbac::account(names::NAMESPACE))?
                + &grant(&table::SERVER)?,
        },
        File {
            path: "manifests/rbac-collasets.yaml",
            text: header(RIGHTS)
                + "# The rights that CollaSets need; components/without-collasets leaves them out.\n"
                + &grant(&table::COLLASETS)?,
        },
        File {
            path: "manifests/rbac-users.yaml",
            text: header("src/cli/install/rbac/users.rs")
                + "# What the API server adds to its own ClusterRoles view, edit and admin.\n"
                + &print::documents(&users::roles())?,
        },
        File {
            path: "manifests/components/grace-delete/rbac.yaml",
            text: header(RIGHTS) + &grant(&table::GRACE_DELETE)?,
        },
        File {
            path: "manifests/components/grace-delete/mutating.yaml",
            text: header(WEBHOOKS) + &components::added(&settings, WebhookKind::Mutating)?,
        },
        File {
            path: "manifests/components/grace-delete/validating.yaml",
            text: header(WEBHOOKS) + &components::added(&settings, WebhookKind::Validating)?,
        },
        File {
            path: "manifests/components/self-managed-certificates/rbac.yaml",
            text: header(RIGHTS) + &grant(&table::CERTIFICATES)?,
        },
        File {
            path: "manifests/components/without-collasets/webhooks.yaml",
            text: header(WEBHOOKS) + &components::without_collasets()?,
        },
        File {
            path: "docs/cli.md",
            text: docs::markdown(),
        },
        File {
            path: "docs/metrics.md",
            text: metrics::markdown()?,
        },
    ])
}

/// Roles and bindings of a grant, one document each.
fn grant(grant: &table::Grant) -> anyhow::Result<String> {
    print::documents(&rbac::granted(grant, names::NAMESPACE)?)
}
