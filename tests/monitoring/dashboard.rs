//! The dashboard of Grafana: what people read in it, and where its panels are.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{read, text};

/// The schema of dashboards that the file is written in.
const SCHEMA: u64 = 42;

pub fn load() -> Value {
    serde_json::from_str(&read("manifests/monitoring/dashboard.json")).unwrap()
}

/// The panels that are no rows.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").collect()
}

/// The queries of the panels, each with the title of its panel.
pub fn targets(dashboard: &Value) -> Vec<(String, Value)> {
    let of_panel = |panel: &Value| {
        let title = text(panel, "title").to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets
            .into_iter()
            .map(move |target| (title.clone(), target))
    };
    panels(dashboard).into_iter().flat_map(of_panel).collect()
}

/// The query of a target, with values for its variables.
pub fn query(target: &Value) -> String {
    substitute(text(target, "expr"))
}

pub fn substitute(query: &str) -> String {
    let query = query.replace("$__rate_interval", "5m");
    let query = query.replace("$namespace", ".*").replace("$name", ".*");
    assert!(!query.contains('$'), "unknown variable: {query}");
    query
}

#[test]
fn every_panel_has_title_description_and_unit() {
    let dashboard = load();
    let mut titles = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = text(panel, "title");
        assert!(!title.is_empty() && titles.insert(title), "{title}");
        assert!(text(panel, "description").ends_with('.'), "{title}");
        assert!(
            !text(&panel["fieldConfig"]["defaults"], "unit").is_empty(),
            "{title}"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for part in targets.iter().chain([panel]) {
            assert_eq!(part["datasource"]["uid"], "${datasource}", "{title}");
            assert_eq!(part["datasource"]["type"], "prometheus", "{title}");
        }
        let ids: BTreeSet<_> = targets.iter().map(|target| text(target, "refId")).collect();
        assert_eq!(ids.len(), targets.len(), "{title}");
    }
    assert!(titles.len() > 25, "{}", titles.len());
}

#[test]
fn panels_have_places_and_numbers_of_their_own() {
    let dashboard = load();
    assert_eq!(dashboard["schemaVersion"], SCHEMA);
    assert_eq!(dashboard["id"], Value::Null);
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["id"]);
        let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        let [x, y, width, height] = place;
        assert!(x + width <= 24 && width > 0 && height > 0, "{place:?}");
        for column in x..x + width {
            for line in y..y + height {
                assert!(cells.insert((column, line)), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn variables_are_data_source_namespace_and_name() {
    let dashboard = load();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables
        .iter()
        .map(|variable| text(variable, "name"))
        .collect();
    assert_eq!(names, ["datasource", "namespace", "name"]);
    assert_eq!(variables[0]["type"], "datasource");
    assert_eq!(variables[0]["query"], "prometheus");
    for variable in &variables[1..] {
        assert_eq!(variable["datasource"]["uid"], "${datasource}");
        let choices = [&variable["multi"], &variable["includeAll"]];
        assert_eq!(choices, [&Value::Bool(true); 2]);
    }
}
