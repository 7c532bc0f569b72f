//! ResourceContexts: validation of what is written by hand.

use async_trait::async_trait;
use tokio::time::Instant;

use super::answers;
use super::review::{Handler, Request, Verdict};
use crate::api::resourcecontext::ResourceContext;
use crate::api::validation::resourcecontext::validate;

const KIND: &str = "ResourceContext";

/// Validation.
pub struct Validate;

#[async_trait]
impl Handler for Validate {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        let object: ResourceContext = match answers::read(request.object.as_deref(), KIND) {
            Ok(object) => object,
            Err(denial) => return denial,
        };
        let mut errors = validate(&object.spec);
        // What was stored with a fault can be changed in other ways.
        let old = request.old_object.as_deref();
        if let Some(Ok(old)) = old.map(|raw| answers::read::<ResourceContext>(Some(raw), KIND)) {
            errors.forgive(&validate(&old.spec));
        }
        if errors.is_empty() {
            return Verdict::allow();
        }
        answers::invalid(KIND, &request.name, &errors)
    }

    fn fallback(&self, _request: &Request, _why: &str) -> Verdict {
        Verdict::allow() // controllers write pools and cope with odd ones
    }
}
