//! Defines which requests the API server sends to the server, and to which paths. The paths of the server ([`Route`])
//! and the webhook configurations ([`webhook_configurations`]) come from one table, so they always agree.

mod cel;
mod configurations;
mod table;

pub use cel::Condition;
pub use configurations::{
    ClientConfig, ConfigurationSettings, INJECT_CA_FROM, WEBHOOK_REVISION, webhook_configurations,
    webhook_revision,
};
pub use table::{GRACEFUL_DELETION_WEBHOOKS, NamespaceScope, WEBHOOKS, Webhook, WebhookMatchRule};

/// Name of the MutatingWebhookConfiguration. It is the name that Kuperator uses: this configuration replaces that of
/// Kuperator, and a cluster never has both (contract 4.1).
pub const MUTATING_CONFIGURATION: &str = "kusionstack-controller-manager-mutating";
/// Name of the ValidatingWebhookConfiguration; see [`MUTATING_CONFIGURATION`].
pub const VALIDATING_CONFIGURATION: &str = "kusionstack-controller-manager-validating";

/// Declares the routes, so that [`Route::ALL`] has each of them.
macro_rules! routes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A path of the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Route {
            $($(#[$doc])* $name,)*
        }

        impl Route {
            /// Every route.
            pub const ALL: [Route; [$(Route::$name),*].len()] = [$(Route::$name),*];
        }
    };
}

// The seeds of the fuzz target for reviews name a route by its index, so new routes are added at the end.
routes! {
    /// Pods and their status, before they are stored.
    MutatePods,
    /// Evictions of Pods.
    MutateEvictions,
    /// PodTransitionRules, before they are stored.
    MutatePodTransitionRules,
    /// CollaSets, before they are stored.
    MutateCollaSets,
    /// CollaSets that are being deleted and leave their Pods.
    MarkOrphaningCollaSets,
    /// Updates and deletions of Pods.
    ValidatePods,
    /// PodTransitionRules, after all mutating webhooks.
    ValidatePodTransitionRules,
    /// CollaSets, after all mutating webhooks.
    ValidateCollaSets,
    /// ResourceContexts.
    ValidateResourceContexts,
    /// Deletions of PVCs.
    ValidatePvcDeletions,
    /// Deletions of PVCs by the Kubernetes garbage collector.
    ValidatePvcCollections,
    /// PodDecorations, before they are stored.
    MutatePodDecorations,
    /// PodDecorations, after all mutating webhooks.
    ValidatePodDecorations,
    /// OperationJobs, before they are stored.
    MutateOperationJobs,
    /// OperationJobs, after all mutating webhooks.
    ValidateOperationJobs,
}

/// The two kinds of admission webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookKind {
    /// May answer with a patch.
    Mutating,
    /// May only allow or deny. It sees the object that is going to be stored.
    Validating,
}

impl Route {
    /// Path of the URL, with the leading slash.
    pub const fn path(self) -> &'static str {
        match self {
            Route::MutatePods => "/mutate/pods",
            Route::MutateEvictions => "/mutate/evictions",
            Route::MutatePodTransitionRules => "/mutate/podtransitionrules",
            Route::MutateCollaSets => "/mutate/collasets",
            Route::MutatePodDecorations => "/mutate/poddecorations",
            Route::MutateOperationJobs => "/mutate/operationjobs",
            Route::MarkOrphaningCollaSets => "/mutate/leaving-collasets",
            Route::ValidatePods => "/validate/pods",
            Route::ValidatePodTransitionRules => "/validate/podtransitionrules",
            Route::ValidateCollaSets => "/validate/collasets",
            Route::ValidatePodDecorations => "/validate/poddecorations",
            Route::ValidateOperationJobs => "/validate/operationjobs",
            Route::ValidateResourceContexts => "/validate/resourcecontexts",
            Route::ValidatePvcDeletions => "/validate/persistentvolumeclaims",
            Route::ValidatePvcCollections => "/validate/collected-persistentvolumeclaims",
        }
    }

    /// Whether the route is only for CollaSets, and for the objects that belong to them, decorate their Pods or operate
    /// on them (feature gate `CollaSets`).
    pub const fn is_for_collasets(self) -> bool {
        match self {
            Route::MutateCollaSets
            | Route::MutatePodDecorations
            | Route::MutateOperationJobs
            | Route::MarkOrphaningCollaSets
            | Route::ValidateCollaSets
            | Route::ValidatePodDecorations
            | Route::ValidateOperationJobs
            | Route::ValidateResourceContexts
            | Route::ValidatePvcDeletions
            | Route::ValidatePvcCollections => true,
            Route::MutatePods
            | Route::MutateEvictions
            | Route::MutatePodTransitionRules
            | Route::ValidatePods
            | Route::ValidatePodTransitionRules => false,
        }
    }

    /// The kind of webhook configuration to which the route belongs.
    pub const fn kind(self) -> WebhookKind {
        match self {
            Route::MutatePods
            | Route::MutateEvictions
            | Route::MutatePodTransitionRules
            | Route::MutateCollaSets
            | Route::MutatePodDecorations
            | Route::MutateOperationJobs
            | Route::MarkOrphaningCollaSets => WebhookKind::Mutating,
            Route::ValidatePods
            | Route::ValidatePodTransitionRules
            | Route::ValidateCollaSets
            | Route::ValidatePodDecorations
            | Route::ValidateOperationJobs
            | Route::ValidateResourceContexts
            | Route::ValidatePvcDeletions
            | Route::ValidatePvcCollections => WebhookKind::Validating,
        }
    }
}

#[cfg(test)]
mod tests;
