//! Keeps a panic of an adapter to the employer that caused it. Adapters are also the code of third parties, and are
//! called in watches and in admission, where a panic would concern everybody.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use tracing::error;
use traffic::{
    Adapter, AdapterError, Applied, Changes, Employer, EmployerKind, Member, Observation, Pod,
    Settings,
};

/// An adapter whose panics are errors. `observe` and `apply` pass panics on; the look that calls them counts them as
/// failed calls.
pub struct Guarded(Arc<dyn Adapter>);

impl Guarded {
    /// Guards an adapter.
    pub fn new(adapter: Arc<dyn Adapter>) -> Guarded {
        Guarded(adapter)
    }

    /// As [`Adapter::selector`].
    ///
    /// # Errors
    /// If the adapter panicked. Then it is not known whom the employer selects.
    pub fn selected_labels(
        &self,
        employer: &Employer,
    ) -> Result<Option<BTreeMap<String, String>>, AdapterError> {
        guard("selector", employer, || self.0.selector(employer))
    }

    /// As [`Adapter::claims`].
    ///
    /// # Errors
    /// If the adapter panicked.
    pub fn claims_employer(&self, employer: &Employer) -> Result<bool, AdapterError> {
        guard("claims", employer, || self.0.claims(employer))
    }
}

fn guard<T>(
    function: &'static str,
    employer: &Employer,
    call: impl FnOnce() -> T,
) -> Result<T, AdapterError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| {
        let (namespace, name) = (&employer.namespace, &employer.name);
        error!(function, %namespace, %name, "an adapter has panicked");
        let text = format!("the adapter has panicked in {function}; see the log of the server");
        AdapterError::Permanent(text)
    })
}

#[async_trait]
impl Adapter for Guarded {
    fn settings(&self) -> Settings {
        self.0.settings()
    }
    fn employer_kind(&self) -> EmployerKind {
        self.0.employer_kind()
    }
    fn backend(&self) -> String {
        self.0.backend()
    }
    fn selector(&self, employer: &Employer) -> Option<BTreeMap<String, String>> {
        self.selected_labels(employer).ok().flatten()
    }
    fn claims(&self, employer: &Employer) -> bool {
        self.claims_employer(employer).unwrap_or(false)
    }
    fn check(&self, employer: &Employer) -> Result<(), AdapterError> {
        guard("check", employer, || self.0.check(employer)).flatten()
    }
    fn members(&self, employer: &Employer, pod: &Pod) -> Result<Vec<Member>, AdapterError> {
        guard("members", employer, || self.0.members(employer, pod)).flatten()
    }
    async fn observe(
        &self,
        employer: &Employer,
        pods: &[Pod],
    ) -> Result<Observation, AdapterError> {
        self.0.observe(employer, pods).await
    }
    async fn apply(&self, employer: &Employer, changes: &Changes) -> Applied {
        self.0.apply(employer, changes).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]
    use super::*;

    struct Panics;

    #[async_trait]
    impl Adapter for Panics {
        fn settings(&self) -> Settings {
            Settings::default()
        }
        fn selector(&self, _: &Employer) -> Option<BTreeMap<String, String>> {
            panic!("selector")
        }
        fn claims(&self, _: &Employer) -> bool {
            panic!("claims")
        }
        fn check(&self, _: &Employer) -> Result<(), AdapterError> {
            panic!("check")
        }
        fn members(&self, _: &Employer, _: &Pod) -> Result<Vec<Member>, AdapterError> {
            panic!("members")
        }
        async fn observe(&self, _: &Employer, _: &[Pod]) -> Result<Observation, AdapterError> {
            Ok(Observation::default())
        }
        async fn apply(&self, _: &Employer, _: &Changes) -> Applied {
            Applied::new()
        }
    }

    #[test]
    fn panics_are_errors() {
        let adapter = Guarded::new(Arc::new(Panics));
        let employer = Employer::default();
        assert!(adapter.selected_labels(&employer).is_err());
        assert!(adapter.claims_employer(&employer).is_err());
        let error = adapter.check(&employer).unwrap_err().to_string();
        assert!(error.contains("panicked in check"), "{error}");
        assert!(adapter.members(&employer, &Pod::default()).is_err());
    }
}
