//! Runs the cases of `integrations/argo-cd` by the Lua interpreter that Argo CD embeds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::binaries;

const SCRIPTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/integrations/argo-cd/resource_customizations/apps.kusionstack.io"
);

/// A value as an expression of Lua.
fn to_lua(value: &Value) -> String {
    let list = |items: Vec<String>| format!("{{{}}}", items.join(","));
    match value {
        Value::Null => "nil".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("[==[{text}]==]"),
        Value::Array(items) => list(items.iter().map(to_lua).collect()),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("[\"{key}\"]={}", to_lua(value));
            list(fields.iter().map(field).collect())
        }
    }
}

fn read(path: &Path) -> Value {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_norway::from_str(&text).unwrap()
}

/// Status and message that a script computes for an object. The script has no files and no system, as in Argo CD.
fn health(lua: &Path, folder: &Path, object: &Value) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let runner = dir.path().join("run.lua");
    let script = folder.join("health.lua");
    let text = format!(
        "obj = {}\nlocal load, show = dofile, print\nos, io, dofile, require = nil, nil, nil, nil\n\
         local hs = load([==[{}]==])\nshow(hs.status)\nshow(hs.message)\n",
        to_lua(object),
        script.display()
    );
    fs::write(&runner, text).unwrap();
    let output = Command::new(lua).arg(&runner).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{script:?}: {text}{:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (status, message) = text.split_once('\n').unwrap();
    (status.to_owned(), message.trim_end_matches('\n').to_owned())
}

fn folders() -> Vec<PathBuf> {
    let entries = fs::read_dir(SCRIPTS).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn every_case_has_the_health_that_it_names() {
    let lua = binaries::lua().unwrap();
    for folder in folders() {
        let tests = read(&folder.join("health_test.yaml"));
        let mut used = BTreeSet::new();
        for case in tests["tests"].as_array().unwrap() {
            let path = case["inputPath"].as_str().unwrap();
            used.insert(folder.join(path));
            let found = health(&lua, &folder, &read(&folder.join(path)));
            let text = |field: &str| case["healthStatus"][field].as_str().unwrap().to_owned();
            assert_eq!(
                found,
                (text("status"), text("message")),
                "{folder:?} {path}"
            );
        }
        let data = fs::read_dir(folder.join("testdata")).unwrap();
        let data: BTreeSet<_> = data.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(data, used, "a file that no case names");
    }
}

/// ResourceContexts belong to the server; nobody keeps them in Git.
#[test]
fn every_kind_that_users_write_has_a_health_script() {
    let names = folders().into_iter();
    let names: BTreeSet<_> = names
        .map(|f| f.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let crds = operating::api::crd::all_crds().into_iter();
    let kinds: BTreeSet<_> = crds
        .map(|crd| crd.spec.names.kind)
        .filter(|kind| kind != "ResourceContext")
        .collect();
    assert_eq!(names, kinds);
}
