//! The types of adapters that the configuration of ResourceConsist can name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use traffic::Adapter;
use traffic_http::HttpAdapter;
use traffic_slb::SlbAdapter;

/// The type of adapters of Alibaba Cloud SLB.
pub const ALIBABA_SLB: &str = "alibaba-slb";

/// Makes an adapter from its settings in the configuration. The error names the wrong field and the remedy.
pub type MakeAdapter = Box<dyn Fn(Value) -> Result<Arc<dyn Adapter>, String> + Send + Sync>;

/// The types, by name. The adapter `endpoints` needs none: it always exists.
#[derive(Default)]
pub struct AdapterTypes(BTreeMap<String, MakeAdapter>);

impl AdapterTypes {
    /// The types that the program has by itself.
    pub fn built_in() -> AdapterTypes {
        AdapterTypes::default()
            .with("http", |settings| {
                let config = serde_json::from_value(settings).map_err(|error| error.to_string())?;
                let adapter = HttpAdapter::new(config).map_err(|error| error.to_string())?;
                Ok(Arc::new(adapter))
            })
            .with(ALIBABA_SLB, |settings| {
                let settings =
                    serde_json::from_value(settings).map_err(|error| error.to_string())?;
                let adapter = SlbAdapter::new(settings).map_err(|error| error.to_string())?;
                Ok(Arc::new(adapter))
            })
    }

    /// Adds a type, or replaces the type of this name.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        make: impl Fn(Value) -> Result<Arc<dyn Adapter>, String> + Send + Sync + 'static,
    ) -> AdapterTypes {
        self.0.insert(name.to_owned(), Box::new(make));
        self
    }

    /// The type with this name.
    pub fn get(&self, name: &str) -> Option<&MakeAdapter> {
        self.0.get(name)
    }

    /// The names of all types.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}
