//! Which requests the API server sends here, and where to: one table from which both the paths of the server
//! ([`Route`]) and the webhook configurations ([`configurations()`]) come, so that they cannot drift apart.

mod cel;
mod configurations;
mod table;

pub use cel::Condition;
pub use configurations::{ClientConfig, ConfigurationSettings, webhook_configurations};
pub use table::{GRACEFUL_DELETION_WEBHOOKS, NamespaceScope, WEBHOOKS, Webhook, WebhookMatchRule};

/// Name of the MutatingWebhookConfiguration. Kuperator's own, so that ours takes its place and two sets of webhooks
/// never stand side by side (contract 4.1).
pub const MUTATING_CONFIGURATION: &str = "kusionstack-controller-manager-mutating";
/// Name of the ValidatingWebhookConfiguration; see [`MUTATING`].
pub const VALIDATING_CONFIGURATION: &str = "kusionstack-controller-manager-validating";

/// A path of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// Pods and their status, before they are stored.
    MutatePods,
    /// Evictions of Pods.
    MutateEvictions,
    /// PodTransitionRules, before they are stored.
    MutatePodTransitionRules,
    /// CollaSets, before they are stored.
    MutateCollaSets,
    /// CollaSets that are deleted and leave their Pods.
    NoteLeavingCollaSets,
    /// Changes and deletions of Pods.
    ValidatePods,
    /// PodTransitionRules.
    ValidatePodTransitionRules,
    /// CollaSets.
    ValidateCollaSets,
    /// ResourceContexts.
    ValidateResourceContexts,
    /// Deletions of PersistentVolumeClaims.
    ValidateClaims,
    /// Deletions of PersistentVolumeClaims by the garbage collector.
    ValidateCollectedClaims,
}

/// The two kinds of admission webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookKind {
    /// May answer with a patch.
    Mutating,
    /// May only allow or deny; sees what is going to be stored.
    Validating,
}

impl Route {
    /// Every route.
    pub const ALL: [Route; 11] = [
        Route::MutatePods,
        Route::MutateEvictions,
        Route::MutatePodTransitionRules,
        Route::MutateCollaSets,
        Route::NoteLeavingCollaSets,
        Route::ValidatePods,
        Route::ValidatePodTransitionRules,
        Route::ValidateCollaSets,
        Route::ValidateResourceContexts,
        Route::ValidateClaims,
        Route::ValidateCollectedClaims,
    ];

    /// Path of the URL, with the leading slash.
    pub const fn path(self) -> &'static str {
        match self {
            Route::MutatePods => "/mutate/pods",
            Route::MutateEvictions => "/mutate/evictions",
            Route::MutatePodTransitionRules => "/mutate/podtransitionrules",
            Route::MutateCollaSets => "/mutate/collasets",
            Route::NoteLeavingCollaSets => "/mutate/leaving-collasets",
            Route::ValidatePods => "/validate/pods",
            Route::ValidatePodTransitionRules => "/validate/podtransitionrules",
            Route::ValidateCollaSets => "/validate/collasets",
            Route::ValidateResourceContexts => "/validate/resourcecontexts",
            Route::ValidateClaims => "/validate/persistentvolumeclaims",
            Route::ValidateCollectedClaims => "/validate/collected-persistentvolumeclaims",
        }
    }

    /// Whether the route serves CollaSets and what belongs to them alone (feature gate `CollaSets`).
    pub const fn is_for_collasets(self) -> bool {
        match self {
            Route::MutateCollaSets
            | Route::NoteLeavingCollaSets
            | Route::ValidateCollaSets
            | Route::ValidateResourceContexts
            | Route::ValidateClaims
            | Route::ValidateCollectedClaims => true,
            Route::MutatePods
            | Route::MutateEvictions
            | Route::MutatePodTransitionRules
            | Route::ValidatePods
            | Route::ValidatePodTransitionRules => false,
        }
    }

    /// Which of the two configurations the route belongs to.
    pub const fn kind(self) -> WebhookKind {
        match self {
            Route::MutatePods
            | Route::MutateEvictions
            | Route::MutatePodTransitionRules
            | Route::MutateCollaSets
            | Route::NoteLeavingCollaSets => WebhookKind::Mutating,
            Route::ValidatePods
            | Route::ValidatePodTransitionRules
            | Route::ValidateCollaSets
            | Route::ValidateResourceContexts
            | Route::ValidateClaims
            | Route::ValidateCollectedClaims => WebhookKind::Validating,
        }
    }
}

#[cfg(test)]
mod tests;
