//! Names of the objects that Operating installs in a cluster.

/// Default namespace of the server. Kuperator uses the same (contract 2.6).
pub const NAMESPACE: &str = "kusionstack-system";
/// Field manager of all objects that are installed by server-side apply.
pub const FIELD_MANAGER: &str = "operating";
/// Field manager of patches of `caBundle`, which an apply must not own.
pub const PATCH_FIELD_MANAGER: &str = "operating-certs";
/// Value of `app.kubernetes.io/name`.
pub const APP_NAME: &str = "operating";
/// Service in front of the webhooks.
pub const SERVICE: &str = "operating";
/// Port of [`SERVICE`].
pub const SERVICE_PORT: i32 = 443;
/// Service account, and name of its roles and bindings.
pub const SERVICE_ACCOUNT: &str = "operating";
/// Secret with the CA and the serving certificate. Kuperator uses the same, and Operating takes it over (contract 4.5).
pub const SECRET: &str = "webhook-certs";
/// Lease of the controllers. Kuperator uses the same, so that the two never reconcile at the same time (contract 0).
pub const LEASE: &str = "kusionstack-controller-manager";
/// cert-manager Certificate whose CA is injected in `webhook-config/`.
pub const CERTIFICATE: &str = "webhook-serving";
/// Label of a namespace that the installation has created. Uninstalling deletes such a namespace.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
