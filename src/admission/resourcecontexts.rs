//! Validates ResourceContexts that users write by hand.

use async_trait::async_trait;
use tokio::time::Instant;

use super::responses;
use super::review::{Handler, Request, Verdict};
use crate::api::resourcecontext::ResourceContext;
use crate::api::validation::FieldErrors;
use crate::api::validation::resourcecontext::check_contexts;

const KIND: &str = "ResourceContext";

pub struct ResourceContextValidator;

#[async_trait]
impl Handler for ResourceContextValidator {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        let object: ResourceContext = match responses::parse_object(request.object.as_deref(), KIND)
        {
            Ok(object) => object,
            Err(denial) => return denial,
        };
        let old = request.old_object.as_deref();
        let old =
            old.and_then(|raw| responses::parse_object::<ResourceContext>(Some(raw), KIND).ok());
        let mut errors = FieldErrors::ignoring_existing(|errors| {
            old.iter().for_each(|old| check_contexts(&old.spec, errors));
        });
        check_contexts(&object.spec, &mut errors);
        if errors.is_empty() {
            return Verdict::allow();
        }
        responses::deny_invalid(KIND, &request.name, &errors)
    }

    fn fallback(&self, _request: &Request, _why: &str) -> Verdict {
        Verdict::allow() // controllers write pools, and handle invalid ones
    }
}
