//! The answers to both calls: how they are decoded, and which of their texts may be kept.
//!
//! Messages are made safe to show after they are decoded, since a secret may be written with escapes. Names are
//! compared with those of the adapter, so a name that can't be shown as it is makes the answer unreadable.

use serde::de::DeserializeOwned;
use traffic::{AdapterError, one_line};

use crate::credentials::Credentials;
use crate::wire::{ApplyAnswer, ObserveAnswer};

/// Longest name, in bytes: that of the longest name in Kubernetes.
const MAX_NAME: usize = 253;

/// The place of a name: list, index and field.
type Place = (&'static str, usize, &'static str);

/// An answer.
pub(crate) trait Answer: DeserializeOwned {
    /// Its texts for the owner of the Service.
    fn messages(&mut self) -> impl Iterator<Item = &mut String>;

    /// Its names that are kept.
    fn names(&self) -> impl Iterator<Item = (Place, &str)>;
}

impl Answer for ObserveAnswer {
    fn messages(&mut self) -> impl Iterator<Item = &mut String> {
        let groups = self.unreadable_groups.iter_mut();
        groups.map(|group| &mut group.error.message)
    }

    fn names(&self) -> impl Iterator<Item = (Place, &str)> {
        let members = self.members.iter().enumerate().flat_map(|(at, member)| {
            [
                (("members", at, "group"), member.group.as_str()),
                (("members", at, "podUid"), &member.pod_uid),
                (("members", at, "podName"), &member.pod_name),
            ]
        });
        let groups = self.unreadable_groups.iter().enumerate();
        members.chain(
            groups.map(|(at, group)| (("unreadableGroups", at, "group"), group.group.as_str())),
        )
    }
}

impl Answer for ApplyAnswer {
    fn messages(&mut self) -> impl Iterator<Item = &mut String> {
        let results = self.results.iter_mut();
        results.filter_map(|result| Some(&mut result.error.as_mut()?.message))
    }

    /// Results of members that the adapter has not named are left out, so no new name is kept.
    fn names(&self) -> impl Iterator<Item = (Place, &str)> {
        std::iter::empty()
    }
}

/// Reads an answer.
///
/// # Errors
/// Says which part can't be read.
pub(crate) fn decode<A: Answer>(body: &[u8], credentials: &Credentials) -> Result<A, AdapterError> {
    let unreadable = |text: &str| {
        let text = credentials.shown(text);
        AdapterError::Transient(format!("the answer can't be read: {text}"))
    };
    let body = String::from_utf8_lossy(body);
    let json = &mut serde_json::Deserializer::from_str(&body);
    let answer: Result<A, _> = serde_path_to_error::deserialize(&mut *json);
    let mut answer = answer
        .map_err(|error| unreadable(&format!("{}: {}", error.path().clone(), error.inner())))?;
    json.end().map_err(|error| unreadable(&error.to_string()))?;
    let is_name = |text: &str| {
        text.len() <= MAX_NAME && one_line(text) == text && credentials.redact(text) == text
    };
    if let Some(((list, at, field), _)) = answer.names().find(|(_, name)| !is_name(name)) {
        return Err(unreadable(&format!(
            "{list}[{at}].{field} must be a name: at most {MAX_NAME} bytes, all of them visible"
        )));
    }
    for message in answer.messages() {
        *message = credentials.shown(message);
    }
    Ok(answer)
}
