//! Reads the configuration of ResourceConsist (`--traffic-config`).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use serde::Deserialize;
use serde_json::json;

use crate::api::labels::dns_label_problem;
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
    /// `None` as an empty list: YAML has nothing if all lines of a list are comments.
    adapters: Option<Vec<AdapterConfig>>,
}

/// One adapter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterConfig {
    #[serde(default)]
    name: String,
    #[serde(rename = "type", default)]
    type_: String,
    namespaces: Option<Vec<String>>,
    /// A value of YAML, because it refuses a field that occurs twice.
    #[serde(default)]
    settings: serde_norway::Value,
}

impl AdapterConfig {
    /// The adapter of the feature gate `AlibabaCloudSlb`, with the settings of Kuperator: it reads, and its key and
    /// endpoint are in the environment.
    fn of_gate() -> anyhow::Result<AdapterConfig> {
        let region = std::env::var("ALIBABA_CLOUD_REGION");
        let region = region.unwrap_or_else(|_| DEFAULT_REGION.to_owned());
        Ok(AdapterConfig {
            name: ALIBABA_SLB.to_owned(),
            type_: ALIBABA_SLB.to_owned(),
            namespaces: None,
            settings: serde_norway::to_value(json!({ "mode": "observe", "region": region }))?,
        })
    }

    /// Makes the adapter. The error names the field and the remedy.
    fn make(self, types: &AdapterTypes) -> anyhow::Result<NamedAdapter> {
        self.check_name()?;
        let Some(make) = types.get(&self.type_) else {
            let known = types.names().join(", ");
            match self.type_.as_str() {
                "" => bail!("type: is missing; write one of {known}"),
                other => bail!("type: there is no type {other:?}; write one of {known}"),
            }
        };
        let namespaces = self.namespaces.map(checked_namespaces).transpose()?;
        let settings = serde_json::to_value(self.settings);
        let settings =
            settings.context("settings: they can't be read; write each as `name: value`")?;
        let made = make(settings).map_err(anyhow::Error::msg);
        let made = made.context("settings")?;
        Ok(NamedAdapter::new(&self.name, made, namespaces))
    }

    /// The name becomes a part of annotations, conditions and metrics.
    fn check_name(&self) -> anyhow::Result<()> {
        let name = self.name.as_str();
        match name {
            "" => bail!("name: is missing; write lower-case letters, digits and -, such as edge"),
            NO_DEFAULT => {
                bail!("name: {name:?} means that there is no default; choose another name")
            }
            endpoints::NAME => {
                bail!("name: {name:?} is the built-in adapter; choose another name")
            }
            _ => {}
        }
        match dns_label_problem(name) {
            Some(problem) => bail!("name: {name:?} {problem}; write a name such as edge-1"),
            None => Ok(()),
        }
    }
}

fn checked_namespaces(names: Vec<String>) -> anyhow::Result<BTreeSet<String>> {
    if names.is_empty() {
        bail!(
            "namespaces: the list is empty; name a namespace, or leave the field out to allow all"
        );
    }
    if let Some((name, problem)) = names
        .iter()
        .find_map(|name| Some((name, dns_label_problem(name)?)))
    {
        bail!("namespaces: {name:?} {problem}; write names of namespaces");
    }
    let count = names.len();
    let names: BTreeSet<_> = names.into_iter().collect();
    if names.len() < count {
        bail!("namespaces: a namespace occurs twice; write each once");
    }
    Ok(names)
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
    let of_gate = args.features.alibaba_cloud_slb();
    let of_gate = of_gate.then(AdapterConfig::of_gate).transpose()?;
    let slices = Arc::<Slices>::default();
    let listed = config.adapters.iter().flatten().chain(&of_gate);
    let names: Vec<_> = listed.map(|adapter| adapter.name.clone()).collect();
    let adapters = adapters(config, of_gate, types, &slices).context("--traffic-config")?;
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
    parse(&text).with_context(|| format!("--traffic-config: {name} is not a valid configuration"))
}

/// Reads the text. A text that has only comments is the default.
fn parse(text: &str) -> anyhow::Result<TrafficConfig> {
    let config: Option<TrafficConfig> = serde_norway::from_str(text)?;
    Ok(config.unwrap_or_default())
}

fn adapters(
    config: TrafficConfig,
    of_gate: Option<AdapterConfig>,
    types: &AdapterTypes,
    slices: &Arc<Slices>,
) -> anyhow::Result<Adapters> {
    let endpoints = EndpointsAdapter(Arc::clone(slices));
    let mut all = vec![NamedAdapter::new(
        endpoints::NAME,
        Arc::new(endpoints),
        None,
    )];
    let mut names = BTreeSet::new();
    for (index, adapter) in config.adapters.into_iter().flatten().enumerate() {
        let field = format!("adapters[{index}]");
        let name = adapter.name.clone();
        if of_gate.as_ref().is_some_and(|gate| gate.name == name) {
            bail!(
                "{field}.name: the feature gate AlibabaCloudSlb has an adapter {name}; choose another name"
            );
        }
        if !names.insert(name.clone()) {
            bail!("{field}.name: two adapters are named {name:?}; give each its own name");
        }
        let made = adapter.make(types);
        // An adapter without a name is found by its place.
        all.push(made.map_err(|error| match name.as_str() {
            "" => anyhow!("{field}.{error:#}"),
            name => anyhow!("adapter {name:?}: {field}.{error:#}"),
        })?);
    }
    if let Some(adapter) = of_gate {
        let made = adapter.make(types);
        all.push(made.context("feature gate AlibabaCloudSlb")?);
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
        let config = parse(text);
        let made = config
            .and_then(|config| adapters(config, None, &AdapterTypes::built_in(), &Arc::default()));
        format!("{:#}", made.err().unwrap())
    }

    /// The error about this adapter, as the end of a map.
    fn error_of_adapter(rest: &str) -> String {
        error_of(&format!("adapters: [{{name: edge, {rest}}}]"))
    }

    #[test]
    fn errors_name_the_field_and_the_remedy() {
        for (text, expected) in [
            (
                "default: edge",
                "default: no adapter is named \"edge\"; write one of endpoints, or none",
            ),
            (
                "default: ''",
                "default: no adapter is named \"\"; write one of",
            ),
            (
                "adapter: []",
                "unknown field `adapter`, expected `default` or `adapters`",
            ),
            (
                "adapters: edge",
                "adapters: invalid type: string \"edge\", expected a sequence",
            ),
            (
                "adapters: [{type: http}]",
                "adapters[0].name: is missing; write lower-case letters",
            ),
            (
                "adapters: [{name: none, type: http}]",
                "adapters[0].name: \"none\" means that there is no default; choose",
            ),
            (
                "adapters: [{name: endpoints, type: http}]",
                "adapters[0].name: \"endpoints\" is the built-in adapter; choose",
            ),
            (
                "adapters: [{name: bad name!, type: http}]",
                "adapters[0].name: \"bad name!\" must",
            ),
            (
                "adapters: [{name: 'a,b', type: http}]",
                "adapters[0].name: \"a,b\" must",
            ),
            (
                "adapters: [{name: Edge, type: http}]",
                "adapters[0].name: \"Edge\" must",
            ),
            (
                "adapters: [{name: a, type: http, settings: {url: 'https://a'}}, {name: a, type: http}]",
                "adapters[1].name: two adapters are named \"a\"; give each its own name",
            ),
            (
                "adapters: [{name: edge, name: edge}]",
                "adapters[0]: duplicate field `name`",
            ),
        ] {
            let error = error_of(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn errors_of_an_adapter_name_it_and_the_field() {
        let http = |settings: &str| error_of_adapter(&format!("type: http, settings: {settings}"));
        let slb =
            |settings: &str| error_of_adapter(&format!("type: alibaba-slb, settings: {settings}"));
        for (error, expected) in [
            (
                error_of_adapter("settings: {}"),
                "].type: is missing; write one of alibaba-slb, http",
            ),
            (
                error_of_adapter("type: other"),
                "].type: there is no type \"other\"; write one of",
            ),
            (
                error_of_adapter("type: http, namespaces: []"),
                "].namespaces: the list is empty; name",
            ),
            (
                error_of_adapter("type: http, namespaces: [a b]"),
                "].namespaces: \"a b\" must",
            ),
            (
                error_of_adapter("type: http, namespaces: [a, a]"),
                "].namespaces: a namespace occurs twice; write",
            ),
            (
                error_of_adapter("type: http"),
                "].settings: `url` is missing; add it",
            ),
            (http("{}"), "].settings: `url` is missing; add it"),
            (http("[]"), "].settings: this is no map; write"),
            (
                http("{url: lb}"),
                "].settings: `url` can't be parsed; write an absolute https URL",
            ),
            (
                http("{url: 'http://lb'}"),
                "].settings: `url` is an http URL to another host; write",
            ),
            (
                http("{url: 5}"),
                "].settings: `url`: invalid type: integer `5`, expected a string",
            ),
            (
                http("{url: 'https://lb', tokn: a}"),
                "].settings: unknown field `tokn`, expected one of `url`",
            ),
            (
                http("{url: 'https://lb', batch: many}"),
                "].settings: `batch`: invalid type: string \"many\", expected a whole number",
            ),
            (
                http("{url: 'https://lb', batch: -1}"),
                "].settings: `batch`: invalid value: integer `-1`, expected a whole number",
            ),
            (
                http("{url: 'https://lb', control: all}"),
                "].settings: `control`: unknown variant `all`, expected one of `drains`",
            ),
            (
                http("{url: 'https://lb', protocols: []}"),
                "].settings: `protocols` is empty; list",
            ),
            (
                error_of_adapter("type: alibaba-slb"),
                "].settings: `region` is missing; add it",
            ),
            (
                slb("{region: a, loadBalancers: [{id: b}]}"),
                "].settings: `loadBalancers[0].namespaces` is missing; add it",
            ),
            (
                slb("{region: a, loadBalancers: [{id: b, namespaces: [c], x: 1}]}"),
                "].settings: `loadBalancers[0]`: unknown field `x`, expected one of `id`",
            ),
        ] {
            assert!(
                error.starts_with("adapter \"edge\": adapters[0]"),
                "{error}"
            );
            assert!(error.contains(expected), "expected {expected}: {error}");
        }
    }

    #[test]
    fn parse_errors_name_the_place() {
        for (rest, expected) in [
            (
                "type: http, namespaces: shop",
                "adapters[0].namespaces: invalid type",
            ),
            (
                "type: http, setings: {}",
                "unknown field `setings`, expected one of `name`, `type`",
            ),
            (
                "type: http, settings: {url: a, url: b}",
                "adapters[0].settings: duplicate entry with key \"url\"",
            ),
        ] {
            let error = error_of_adapter(rest);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn configuration_without_adapters_is_accepted() {
        for text in ["", "# a comment", "adapters:", "adapters: []", "{}"] {
            assert_eq!(accepted(text), 0, "{text}");
        }
    }

    #[test]
    fn name_of_the_gate_is_taken() {
        let config = parse("adapters: [{name: alibaba-slb, type: http}]").unwrap();
        let gate = AdapterConfig::of_gate().unwrap();
        let made = adapters(
            config,
            Some(gate),
            &AdapterTypes::built_in(),
            &Arc::default(),
        );
        let error = made.err().unwrap().to_string();
        assert!(
            error.starts_with("adapters[0].name: the feature gate AlibabaCloudSlb"),
            "{error}"
        );
    }

    /// How many adapters this configuration has.
    fn accepted(text: &str) -> usize {
        let config = parse(text).unwrap();
        let count = config.adapters.iter().flatten().count();
        adapters(config, None, &AdapterTypes::built_in(), &Arc::default()).unwrap();
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
        let types = AdapterTypes::default();
        let made = |text| adapters(parse(text).unwrap(), None, &types, &Arc::default());
        assert!(made("{}").unwrap().get("endpoints").is_some());
        assert!(made("default: none").is_ok());
    }
}
