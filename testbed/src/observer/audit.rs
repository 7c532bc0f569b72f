//! The requests behind a violation, from the API server's audit log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::at;

/// Admitted requests that changed one of the Pods `pods` of a namespace, and every deletecollection, a line each, at most
/// `most` (the last).
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
        // The last line may still be being written.
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if let Some(told) = tell(&event, namespace, pods) {
            found.push(told);
        }
    }
    found.sort();
    Ok(found.split_off(found.len().saturating_sub(most)))
}

fn tell(event: &Value, namespace: &str, pods: &BTreeSet<String>) -> Option<String> {
    let text = |pointer: &str| at(event, pointer).as_str().unwrap_or_default();
    let name = text("/objectRef/name");
    let collection = text("/verb") == "deletecollection";
    let writes = ["update", "patch", "delete", "create"].contains(&text("/verb"));
    let here = text("/objectRef/namespace") == namespace && text("/objectRef/resource") == "pods";
    let code = at(event, "/responseStatus/code").as_i64()?;
    // The kubelet's reports and the scheduler's decisions take nothing.
    let idle = ["binding", "status"].contains(&text("/objectRef/subresource"));
    let tells = writes && code < 400 && pods.contains(name);
    // A deletecollection that was denied in the end may have taken some Pods.
    if !here || idle || !(tells || collection) {
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
