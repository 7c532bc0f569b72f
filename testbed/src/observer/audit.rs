//! The requests behind a violation, from the API server's audit log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::at;

/// Admitted requests that changed one of the Pods `pods` of a namespace, and every deletecollection, one line
/// each; at most the last `most` lines.
///
/// # Errors
/// When the audit log cannot be read.
pub fn requests_for(
    log: &Path,
    namespace: &str,
    pods: &BTreeSet<String>,
    most: usize,
) -> Result<Vec<String>> {
    let file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
    let mut found = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line?;
        // Parsing every line of a long log takes minutes.
        if !line.contains(namespace) || line.contains(r#""verb":"get""#) {
            continue;
        }
        // The API server may not have finished the last line.
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if let Some(line) = describe_event(&event, namespace, pods) {
            found.push(line);
        }
    }
    found.sort();
    Ok(found.split_off(found.len().saturating_sub(most)))
}

fn describe_event(event: &Value, namespace: &str, pods: &BTreeSet<String>) -> Option<String> {
    let text = |pointer: &str| at(event, pointer).as_str().unwrap_or_default();
    let name = text("/objectRef/name");
    let collection = text("/verb") == "deletecollection";
    let writes = ["update", "patch", "delete", "create"].contains(&text("/verb"));
    let is_about_pods =
        text("/objectRef/namespace") == namespace && text("/objectRef/resource") == "pods";
    let code = at(event, "/responseStatus/code").as_i64()?;
    // Reports of the kubelet and decisions of the scheduler make no Pod unavailable.
    let idle = ["binding", "status"].contains(&text("/objectRef/subresource"));
    let tells = writes && code < 400 && pods.contains(name);
    // A deletecollection that was denied may have deleted some Pods before.
    if !is_about_pods || idle || !(tells || collection) {
        return None;
    }
    let annotations = at(event, "/annotations").as_object();
    let ours: Vec<String> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains("kusionstack"))
        .map(|(key, value)| {
            let key = key.rsplit('/').next().unwrap_or_default();
            format!("{key}={}", value.as_str().unwrap_or_default())
        })
        .collect();
    Some(format!(
        "{} {} {}/{} by {} ({code}) {}",
        text("/requestReceivedTimestamp"),
        text("/verb"),
        name,
        text("/objectRef/subresource"),
        text("/user/username"),
        ours.join(" ")
    ))
}
