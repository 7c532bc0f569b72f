//! Files of the repository that are generated from the code; `tests/generated.rs` compares them.

use super::install::{client_config, names, rbac};
use super::{docs, metrics, print};
use crate::admission::routes::Settings;

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
    let settings = Settings {
        client: client_config(None, names::NAMESPACE),
        namespace: names::NAMESPACE.to_owned(),
        ca_bundle: None,
        grace_delete: false,
        cert_manager: Some(format!("{}/{}", names::NAMESPACE, names::CERTIFICATE)),
    };
    let header = |from| {
        format!("# Generated from {from}: UPDATE=1 cargo test --test generated rewrites it.\n")
    };
    Ok(vec![
        File {
            path: "webhook-config/configurations.yaml",
            text: header("src/admission/routes/table.rs") + &print::webhooks(&settings)?,
        },
        File {
            path: "webhook-config/policies.yaml",
            text: header("src/admission/policies.rs") + &print::policies()?,
        },
        File {
            path: "manifests/rbac.yaml",
            text: header("src/cli/install/rbac.rs")
                + &print::documents(&rbac::objects(names::NAMESPACE)?)?,
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
