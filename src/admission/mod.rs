//! Decisions on requests: review in, verdict out. One module per kind; patches work on the raw JSON.

mod answers;
mod bypass;
pub mod claims;
pub mod collasets;
mod context;
mod denial;
pub mod evictions;
mod gate;
mod grace;
pub mod guarded;
mod held;
mod mark;
mod overlap;
pub mod pods;
pub mod policies;
pub mod resourcecontexts;
pub mod review;
pub mod routes;
pub mod rules;
mod stored;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use context::{Context, MAX_RULES_PER_NAMESPACE, Settings};
use review::Handler;
use routes::Route;

/// The handler of every route that is served.
pub fn handlers(context: &Arc<Context>) -> Vec<(&'static str, Arc<dyn Handler>)> {
    let collasets = context.settings.collasets;
    Route::ALL
        .into_iter()
        .filter(|route| collasets || !route.is_for_collasets())
        .map(|route| {
            let context = Arc::clone(context);
            let handler: Arc<dyn Handler> = match route {
                Route::MutatePods => Arc::new(pods::Mutate(context)),
                Route::ValidatePods => Arc::new(pods::Validate(context)),
                Route::MutateEvictions => Arc::new(evictions::Evictions(context)),
                Route::MutatePodTransitionRules => Arc::new(rules::Mutate(context)),
                Route::ValidatePodTransitionRules => Arc::new(rules::Validate(context)),
                Route::MutateCollaSets => Arc::new(collasets::Mutate(context)),
                Route::NoteLeavingCollaSets => Arc::new(collasets::Note),
                Route::ValidateCollaSets => Arc::new(collasets::Validate(context)),
                Route::ValidateResourceContexts => Arc::new(resourcecontexts::Validate),
                Route::ValidateClaims => Arc::new(claims::Validate(context)),
                Route::ValidateCollectedClaims => Arc::new(claims::Collected(context)),
            };
            (route.path(), handler)
        })
        .collect()
}
