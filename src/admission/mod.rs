//! Decides requests: a handler receives a review and returns a verdict. There is one module per kind, and patches are
//! computed from the raw JSON.

mod bypass;
mod cache_freshness;
pub(crate) mod collasets;
mod context;
mod denial;
pub mod denial_counts;
pub(crate) mod dry_run;
pub(crate) mod evictions;
mod exempt;
mod graceful_deletion;
pub mod handler_guard;
mod namespace_label;
pub(crate) mod operationjobs;
mod overlap;
mod own_requests;
pub(crate) mod persistentvolumeclaims;
pub(crate) mod poddecorations;
pub(crate) mod pods;
pub mod policies;
pub(crate) mod resourcecontexts;
mod responses;
pub mod review;
pub mod routes;
mod rule_check;
pub(crate) mod rules;
mod size_limit;
mod spec_review;
mod stored_pod;
pub mod version_answer;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use context::{AdmissionContext, AdmissionSettings, MAX_RULES_PER_NAMESPACE};
use review::Handler;
use routes::Route;

/// The handler of every route that is served.
pub fn handlers(context: &Arc<AdmissionContext>) -> Vec<(&'static str, Arc<dyn Handler>)> {
    let collasets = context.settings.collasets;
    Route::ALL
        .into_iter()
        .filter(|route| collasets || !route.is_for_collasets())
        .map(|route| {
            let context = Arc::clone(context);
            let handler: Arc<dyn Handler> = match route {
                Route::MutatePods => Arc::new(pods::PodMutator(context)),
                Route::ValidatePods => Arc::new(pods::PodValidator(context)),
                Route::MutateEvictions => Arc::new(evictions::EvictionHandler(context)),
                Route::MutatePodTransitionRules => Arc::new(rules::RuleMutator(context)),
                Route::ValidatePodTransitionRules => Arc::new(rules::RuleValidator(context)),
                Route::MutateCollaSets => Arc::new(collasets::CollaSetMutator(context)),
                Route::MarkOrphaningCollaSets => Arc::new(collasets::OrphanAnnotator),
                Route::ValidateCollaSets => Arc::new(collasets::CollaSetValidator(context)),
                Route::MutatePodDecorations => {
                    Arc::new(poddecorations::PodDecorationMutator(context))
                }
                Route::ValidatePodDecorations => {
                    Arc::new(poddecorations::PodDecorationValidator(context))
                }
                Route::MutateOperationJobs => Arc::new(operationjobs::OperationJobMutator),
                Route::ValidateOperationJobs => Arc::new(operationjobs::OperationJobValidator),
                Route::ValidateResourceContexts => {
                    Arc::new(resourcecontexts::ResourceContextValidator)
                }
                Route::ValidatePvcDeletions => {
                    Arc::new(persistentvolumeclaims::PvcDeletionValidator(context))
                }
                Route::ValidatePvcCollections => {
                    Arc::new(persistentvolumeclaims::PvcCollectionValidator(context))
                }
            };
            (route.path(), handler)
        })
        .collect()
}
