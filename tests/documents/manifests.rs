//! The API server, with the server's admission, accepts every manifest of the documents.
//!
//! A block ` ```yaml ` contains whole objects, unless the HTML comment on the line before it says otherwise:
//! `<!-- fragment of KIND.path -->` for a part of an object, `<!-- not applied: REASON -->` for anything else.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::markdown::{self, Block, parse, read, root};
use crate::plane::Ground;

/// The kind of a block of YAML.
#[derive(Debug, PartialEq)]
enum Manifest {
    Objects(Vec<Value>),
    NotApplied,
}

/// Documents that describe the present state. Decision records also show proposals.
fn documents() -> Vec<PathBuf> {
    let mut pages = markdown::documents();
    pages.retain(|page| !page.starts_with("docs/adr"));
    pages
}

#[test]
fn every_block_is_whole_or_marked() {
    let mut bad = Vec::new();
    for page in documents() {
        for block in yaml_blocks(&read(&page)) {
            let manifest = manifest(&block);
            bad.extend(
                manifest
                    .err()
                    .map(|why| format!("{}:{}: {why}", page.display(), block.line)),
            );
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn planted_bad_blocks_are_found() {
    for (comment, text) in [
        (None, "spec: { replicas: 1 }\n"),
        (None, "kind: Pod\n"),
        (None, "a: [\n"),
        (Some("fragment of Unknown.spec"), "a: 1\n"),
        (Some("not applied:"), "a: 1\n"),
    ] {
        let block = block(comment, text);
        assert!(manifest(&block).is_err(), "{block:?}");
    }
}

#[test]
fn fragments_are_put_into_their_object() {
    let fragment = block(Some("fragment of PodTransitionRule.spec"), "rules: []\n");
    let Ok(Manifest::Objects(objects)) = manifest(&fragment) else {
        panic!("no objects")
    };
    assert_eq!(objects[0]["spec"]["rules"], json!([]));
    assert_eq!(objects[0]["spec"]["selector"]["matchLabels"]["app"], "web");
    let skipped = block(
        Some("not applied: a file of kube-apiserver"),
        "kind: Config\n",
    );
    assert_eq!(manifest(&skipped), Ok(Manifest::NotApplied));
}

#[tokio::test]
async fn api_server_accepts_every_manifest_of_documents() {
    let mut refused = Vec::new();
    let mut applied = 0;
    for page in documents() {
        for block in yaml_blocks(&read(&page)) {
            let Ok(Manifest::Objects(objects)) = manifest(&block) else {
                continue;
            };
            // Two blocks may name the same object.
            let ground = Ground::new("documents").await;
            for object in objects {
                applied += 1;
                if let Err(why) = ground.apply(&without_namespace(object).to_string()).await {
                    refused.push(format!("{}:{}: {why}", page.display(), block.line));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(applied > 5, "{applied} objects");
}

#[tokio::test]
async fn planted_bad_rule_is_refused() {
    let ground = Ground::new("documents").await;
    let rule = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "planted" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": "thirty" } }] },
    });
    ground.apply(&rule.to_string()).await.unwrap_err();
}

#[tokio::test]
async fn api_server_accepts_every_example() {
    let mut files: Vec<_> = std::fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    let index = read(Path::new("examples/README.md"));
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(
            index.contains(&format!("({name})")),
            "examples/README.md does not link {name}"
        );
        let ground = Ground::new("examples").await;
        let text = std::fs::read_to_string(&file).unwrap();
        for object in parse_documents(&text).unwrap() {
            ground.apply(&object.to_string()).await.unwrap();
        }
    }
}

fn block(comment: Option<&str>, text: &str) -> Block {
    Block {
        language: "yaml".into(),
        comment: comment.map(str::to_owned),
        text: text.into(),
        line: 1,
    }
}

fn yaml_blocks(text: &str) -> Vec<Block> {
    let mut blocks = parse(text).blocks;
    blocks.retain(|block| ["yaml", "yml"].contains(&block.language.as_str()));
    blocks
}

/// The kind of a block, or an error that says what is missing.
fn manifest(block: &Block) -> Result<Manifest, String> {
    let comment = block.comment.as_deref().unwrap_or_default();
    if let Some(reason) = comment.strip_prefix("not applied:") {
        let has_reason = !reason.trim().is_empty();
        return has_reason
            .then_some(Manifest::NotApplied)
            .ok_or("`not applied:` needs a reason".into());
    }
    let documents = parse_documents(&block.text)?;
    if let Some(place) = comment.strip_prefix("fragment of ") {
        let whole = documents.into_iter().map(|part| wrap(place, part));
        return whole.collect::<Result<_, _>>().map(Manifest::Objects);
    }
    let is_whole = |object: &Value| object["apiVersion"].is_string() && object["kind"].is_string();
    if documents.iter().all(is_whole) {
        return Ok(Manifest::Objects(documents));
    }
    Err("is no whole object: put `<!-- fragment of KIND.path -->` or `<!-- not applied: REASON -->` before it".into())
}

/// The documents of a YAML text.
fn parse_documents(text: &str) -> Result<Vec<Value>, String> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).map_err(|error| error.to_string()))
        .collect()
}

/// An object of kind `KIND` with the fragment at the path `KIND.path`.
fn wrap(place: &str, part: Value) -> Result<Value, String> {
    let mut names = place.split('.');
    let kind = names.next().unwrap_or_default();
    let mut object = sample(kind).ok_or(format!("no sample of a {kind} in tests/documents"))?;
    let names: Vec<&str> = names.collect();
    let whole = names
        .iter()
        .rfold(part, |part, name| json!({ (*name): part }));
    json_patch::merge(&mut object, &whole);
    Ok(object)
}

/// A small object of a kind, into which fragments are put.
fn sample(kind: &str) -> Option<Value> {
    let spec = match kind {
        "PodTransitionRule" => json!({
            "selector": { "matchLabels": { "app": "web" } },
            "rules": [{ "name": "availability", "availablePolicy": { "maxUnavailableValue": 1 } }],
        }),
        "CollaSet" => json!({
            "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "app", "image": "example.com/web:1" }] },
            },
        }),
        "PodDecoration" => json!({ "selector": { "matchLabels": { "app": "web" } } }),
        "OperationJob" => json!({ "action": "Restart", "targets": [{ "name": "web-a" }] }),
        "Role" => {
            return Some(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": { "name": "fragment" }, "rules": [],
            }));
        }
        _ => return None,
    };
    Some(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind,
        "metadata": { "name": "fragment" }, "spec": spec,
    }))
}

/// The object in a form that kubectl can apply in any namespace.
fn without_namespace(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    object
}
