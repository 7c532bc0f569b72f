//! The types of adapters that the configuration of ResourceConsist can name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use traffic::Adapter;
use traffic_http::HttpAdapter;
use traffic_slb::SlbAdapter;

/// The type of adapters of Alibaba Cloud SLB.
pub const ALIBABA_SLB: &str = "alibaba-slb";

/// Makes an adapter from its settings in the configuration. The error names the wrong field and the remedy.
pub type MakeAdapter = Box<dyn Fn(Value) -> Result<Arc<dyn Adapter>, String> + Send + Sync>;

/// Whole numbers, as the errors of serde name them.
const NUMBERS: [&str; 6] = ["u8", "u16", "u32", "u64", "usize", "i64"];

/// Reads the settings of an adapter. Settings that the configuration leaves out are no fields.
///
/// # Errors
/// If they are no map, or if a field is missing, unknown or of a wrong type: the error names the field and what to write.
pub fn read_settings<T: DeserializeOwned>(settings: Value) -> Result<T, String> {
    let settings = match settings {
        Value::Null => Value::Object(Map::new()),
        Value::Object(_) => settings,
        _ => {
            return Err(
                "this is no map; write the fields of the type, each as `name: value`".into(),
            );
        }
    };
    serde_path_to_error::deserialize(settings).map_err(|error| {
        let path = error.path().to_string();
        let text = error.inner().to_string();
        let parent = match path.as_str() {
            "." => String::new(),
            path => format!("{path}."),
        };
        if let Some(field) = text.strip_prefix("missing field `") {
            let field = field.trim_end_matches('`');
            return format!("`{parent}{field}` is missing; add it");
        }
        // This error has the fields that exist.
        if text.starts_with("unknown field") {
            return match path.rsplit_once('.') {
                Some((parent, _)) if !parent.is_empty() => format!("`{parent}`: {text}"),
                _ => text,
            };
        }
        let expected = text.rsplit_once("expected ");
        match expected.filter(|(_, expected)| NUMBERS.contains(expected)) {
            Some((problem, _)) => {
                format!("`{path}`: {problem}expected a whole number that is not negative")
            }
            None => format!("`{path}`: {text}"),
        }
    })
}

/// The types, by name. The adapter `endpoints` needs none: it always exists.
#[derive(Default)]
pub struct AdapterTypes(BTreeMap<String, MakeAdapter>);

impl AdapterTypes {
    /// The types that the program has by itself.
    pub fn built_in() -> AdapterTypes {
        AdapterTypes::default()
            .with("http", |settings| {
                let config = read_settings(settings)?;
                let adapter = HttpAdapter::new(config).map_err(|error| error.to_string())?;
                Ok(Arc::new(adapter))
            })
            .with(ALIBABA_SLB, |settings| {
                let settings = read_settings(settings)?;
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
