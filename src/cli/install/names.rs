//! Names of our own objects in a cluster.

/// Namespace of the server, by default. Kuperator's own (contract 2.6).
pub const NAMESPACE: &str = "kusionstack-system";
/// Field manager of everything that is installed by server-side apply.
pub const FIELD_MANAGER: &str = "operating";
/// Field manager of what is corrected by a patch: `caBundle`, which an apply must not own.
pub const PATCH_FIELD_MANAGER: &str = "operating-certs";
/// Value of `app.kubernetes.io/name`.
pub const APP_NAME: &str = "operating";
/// Service in front of the webhooks.
pub const SERVICE: &str = "operating";
/// Port of [`SERVICE`].
pub const SERVICE_PORT: i32 = 443;
/// Service account, and name of its roles and bindings.
pub const SERVICE_ACCOUNT: &str = "operating";
/// Secret with CA and serving certificate. Kuperator's own, taken over (contract 4.5).
pub const SECRET: &str = "webhook-certs";
/// Lease of the controllers. Kuperator's own, so that the two never reconcile at once (contract 0).
pub const LEASE: &str = "kusionstack-controller-manager";
/// cert-manager Certificate whose CA is injected in `webhook-config/`.
pub const CERTIFICATE: &str = "webhook-serving";
/// Label on a namespace that was created by installing, hence goes with uninstalling.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
