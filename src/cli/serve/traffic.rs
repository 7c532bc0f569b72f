//! Reads the configuration of ResourceConsist (`--traffic-config`).

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::adapter_types::{ALIBABA_SLB, AdapterTypes};
use crate::cli::args::ServeArgs;
use crate::cluster::traffic::Traffic;
use crate::cluster::traffic::adapters::{Adapters, NamedAdapter};
use crate::cluster::traffic::endpoints::{self, EndpointsAdapter};
use crate::cluster::traffic::slices::Slices;

/// The value of `default` for which employers that name no adapter are not managed.
const NO_DEFAULT: &str = "none";

/// A region whose load balancers are reached at the central host, as in Kuperator.
const DEFAULT_REGION: &str = "cn-hangzhou";

/// The configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TrafficConfig {
    /// The adapter of employers that name none, or `none`.
    default: Option<String>,
    adapters: Vec<AdapterConfig>,
}

/// One adapter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterConfig {
    name: String,
    #[serde(rename = "type")]
    type_: String,
    namespaces: Option<Vec<String>>,
    #[serde(default)]
    settings: Value,
}

impl AdapterConfig {
    /// The adapter of the feature gate `AlibabaCloudSlb`, with the settings of Kuperator: it reads, and its key and
    /// endpoint are in the environment.
    fn of_gate() -> AdapterConfig {
        let region = std::env::var("ALIBABA_CLOUD_REGION");
        let region = region.unwrap_or_else(|_| DEFAULT_REGION.to_owned());
        AdapterConfig {
            name: ALIBABA_SLB.to_owned(),
            type_: ALIBABA_SLB.to_owned(),
            namespaces: None,
            settings: json!({ "mode": "observe", "region": region }),
        }
    }
}

/// The adapters of this server: those of the configuration, and the built-in one.
pub fn configured(args: &ServeArgs, types: &AdapterTypes) -> anyhow::Result<Arc<Traffic>> {
    if !args.features.resource_consist() {
        return Ok(Arc::default());
    }
    let config = match &args.controllers.traffic_config {
        Some(path) => read_config(path)?,
        None => TrafficConfig::default(),
    };
    let mut config = config;
    if args.features.alibaba_cloud_slb() {
        config.adapters.push(AdapterConfig::of_gate());
    }
    let slices = Arc::<Slices>::default();
    let names: Vec<_> = config.adapters.iter().map(|a| a.name.clone()).collect();
    let adapters = adapters(config, types, &slices).context("--traffic-config")?;
    let traffic = Traffic::new(adapters, slices);
    for name in &names {
        traffic.counters.show(name);
    }
    Ok(traffic)
}

fn read_config(path: &Path) -> anyhow::Result<TrafficConfig> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("--traffic-config: {name} can't be read"))?;
    let parsed = serde_norway::from_str(&text);
    parsed.with_context(|| format!("--traffic-config: {name} is not a valid configuration"))
}

fn adapters(
    config: TrafficConfig,
    types: &AdapterTypes,
    slices: &Arc<Slices>,
) -> anyhow::Result<Adapters> {
    let endpoints = EndpointsAdapter(Arc::clone(slices));
    let mut all = vec![NamedAdapter::new(
        endpoints::NAME,
        Arc::new(endpoints),
        None,
    )];
    for (index, adapter) in config.adapters.into_iter().enumerate() {
        let field = format!("adapters[{index}]");
        if adapter.name.is_empty() || adapter.name == NO_DEFAULT || adapter.name.contains(',') {
            bail!(
                "{field}.name: {:?} is not a name; write letters, digits and -",
                adapter.name
            );
        }
        let Some(make) = types.get(&adapter.type_) else {
            let known = types.names().join(", ");
            bail!(
                "{field}.type: there is no type {:?}; write one of {known}",
                adapter.type_
            );
        };
        let made = make(adapter.settings).map_err(anyhow::Error::msg);
        let made = made.with_context(|| format!("{field}.settings"))?;
        let namespaces = adapter.namespaces.map(|names| names.into_iter().collect());
        all.push(NamedAdapter::new(&adapter.name, made, namespaces));
    }
    let default = config.default.unwrap_or_else(|| endpoints::NAME.to_owned());
    let default = Some(default).filter(|name| name != NO_DEFAULT);
    Adapters::new(all, default).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn error_of(text: &str) -> String {
        let types = AdapterTypes::default().with("refuses", |settings| {
            Err(format!("url: {} is not a URL", settings["url"]))
        });
        let config = serde_norway::from_str(text).unwrap();
        let made = adapters(config, &types, &Arc::default());
        format!("{:#}", made.err().unwrap())
    }

    #[test]
    fn errors_name_the_field_and_the_remedy() {
        for (text, expected) in [
            (
                "adapters: [{name: edge, type: other}]",
                "adapters[0].type: there is no type \"other\"; write one of refuses",
            ),
            (
                "adapters: [{name: edge, type: refuses, settings: {url: x}}]",
                "adapters[0].settings: url: \"x\" is not a URL",
            ),
            (
                "adapters: [{name: none, type: refuses}]",
                "adapters[0].name: \"none\" is not a name",
            ),
            (
                "default: edge",
                "default: no adapter is named edge; write one of endpoints",
            ),
        ] {
            assert!(error_of(text).contains(expected), "{}", error_of(text));
        }
        assert!(serde_norway::from_str::<TrafficConfig>("adapter: []").is_err());
    }

    /// How many adapters this configuration has.
    fn accepted(text: &str) -> usize {
        let config: TrafficConfig = serde_norway::from_str(text).unwrap();
        let count = config.adapters.len();
        adapters(config, &AdapterTypes::built_in(), &Arc::default()).unwrap();
        count
    }

    #[test]
    fn configurations_of_documents_and_manifests_are_accepted() {
        const COMPONENT: &str =
            include_str!("../../../manifests/components/traffic-adapters/traffic.yaml");
        assert_eq!(accepted(COMPONENT), 0);
        // Its comment shows an adapter.
        let (_, example) = COMPONENT.split_once("adapters: []\n").unwrap();
        let example = example.replace('#', "");
        assert_eq!(accepted(&format!("adapters:\n{example}")), 1);
        for page in [
            include_str!("../../../docs/traffic.md"),
            include_str!("../../../docs/install.md"),
        ] {
            let blocks = page.split("```yaml\n").skip(1);
            let blocks = blocks.filter_map(|rest| rest.split_once("```"));
            let configs = blocks.filter(|(block, _)| block.contains("adapters:\n"));
            let counts: Vec<_> = configs.map(|(config, _)| accepted(config)).collect();
            assert_eq!(counts, [1]);
        }
    }

    #[test]
    fn endpoints_is_the_default_unless_it_is_switched_off() {
        let config = |text| serde_norway::from_str(text).unwrap();
        let types = AdapterTypes::default();
        let made = adapters(config("{}"), &types, &Arc::default()).unwrap();
        assert!(made.get("endpoints").is_some());
        assert!(adapters(config("default: none"), &types, &Arc::default()).is_ok());
    }
}
