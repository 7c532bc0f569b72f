//! The objects that `why` explains, in the forms in which kubectl names objects.

use super::WhyArgs;
use crate::api::keys;

/// Kinds that `why` explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyKind {
    /// `v1` Pod.
    Pod,
    /// CollaSet.
    CollaSet,
    /// `apps/v1` Deployment.
    Deployment,
    /// `apps/v1` StatefulSet.
    StatefulSet,
    /// `apps/v1` DaemonSet.
    DaemonSet,
    /// `apps/v1` ReplicaSet.
    ReplicaSet,
    /// OperationJob.
    OperationJob,
    /// `v1` Service.
    Service,
}

/// The names of a kind: singular, plural and short name, in lower case, and the group.
struct KindNames {
    kind: WhyKind,
    singular: &'static str,
    plural: &'static str,
    short: &'static str,
    group: &'static str,
}

const fn names(
    kind: WhyKind,
    singular: &'static str,
    plural: &'static str,
    short: &'static str,
    group: &'static str,
) -> KindNames {
    KindNames {
        kind,
        singular,
        plural,
        short,
        group,
    }
}

const KINDS: [KindNames; 8] = [
    names(WhyKind::Pod, "pod", "pods", "po", ""),
    names(
        WhyKind::CollaSet,
        "collaset",
        "collasets",
        "cls",
        keys::GROUP,
    ),
    names(
        WhyKind::Deployment,
        "deployment",
        "deployments",
        "deploy",
        "apps",
    ),
    names(
        WhyKind::StatefulSet,
        "statefulset",
        "statefulsets",
        "sts",
        "apps",
    ),
    names(WhyKind::DaemonSet, "daemonset", "daemonsets", "ds", "apps"),
    names(
        WhyKind::ReplicaSet,
        "replicaset",
        "replicasets",
        "rs",
        "apps",
    ),
    names(
        WhyKind::OperationJob,
        "operationjob",
        "operationjobs",
        "opj",
        keys::GROUP,
    ),
    names(WhyKind::Service, "service", "services", "svc", ""),
];

/// An object that `why` explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhySubject<'a> {
    /// The kind.
    pub kind: WhyKind,
    /// The name.
    pub name: &'a str,
}

impl WhyArgs {
    /// The objects to explain, in the order of the arguments: `KIND/NAME ...`, `KIND NAME ...`, or the name of a Pod.
    ///
    /// # Errors
    /// The expected form, if the user names another kind or no name, or watches several objects.
    pub fn subjects(&self) -> Result<Vec<WhySubject<'_>>, String> {
        let objects: Vec<&str> = self.objects.iter().map(String::as_str).collect();
        let subjects = match objects.as_slice() {
            // A Pod with the name of a kind is written as pod/NAME.
            [word] if find_kind(word).is_some() => vec![checked_subject(word, "")?],
            [name] if !name.contains('/') => vec![checked_subject("pod", name)?],
            [kind, names @ ..] if objects.iter().all(|object| !object.contains('/')) => {
                let subjects = names.iter().map(|name| checked_subject(kind, name));
                let subjects: Result<_, _> = subjects.collect();
                subjects.map_err(|error| match find_kind(kind) {
                    Some(_) => error,
                    None => {
                        let pods = objects.iter().map(|name| format!("pod/{name}"));
                        let pods: Vec<_> = pods.collect();
                        format!("{error}; if these are Pods, write {}", pods.join(" "))
                    }
                })?
            }
            [kind, name] if !kind.contains('/') => vec![checked_subject(kind, name)?],
            objects => {
                let subjects = objects.iter().map(|object| {
                    let (kind, name) = object
                        .split_once('/')
                        .ok_or_else(|| describe_lone_word(object))?;
                    checked_subject(kind, name)
                });
                subjects.collect::<Result<_, _>>()?
            }
        };
        match subjects.len() {
            2.. if self.watch => {
                Err("--watch follows one object: name one, or leave --watch out".to_owned())
            }
            _ => Ok(subjects),
        }
    }
}

/// A kind, as the completion of the command line needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedKind {
    /// The kind.
    pub kind: WhyKind,
    /// The word that stands before a slash in messages and suggestions.
    pub form: &'static str,
    /// The singular, in lower case.
    pub singular: &'static str,
    /// The name of the resource.
    pub plural: &'static str,
    /// The group; empty for the core group.
    pub group: &'static str,
}

impl KindNames {
    fn named(&self) -> NamedKind {
        NamedKind {
            kind: self.kind,
            form: self.form(),
            singular: self.singular,
            plural: self.plural,
            group: self.group,
        }
    }
}

/// All kinds, in the order in which help texts name them.
pub fn named_kinds() -> impl Iterator<Item = NamedKind> {
    KINDS.iter().map(KindNames::named)
}

/// The kind that a word of the user names.
pub fn kind_of(word: &str) -> Option<NamedKind> {
    find_kind(word).map(KindNames::named)
}

fn find_kind(word: &str) -> Option<&'static KindNames> {
    KINDS.iter().find(|names| names.is_kind(word))
}

/// The error about a word without a slash among objects that have one.
fn describe_lone_word(word: &str) -> String {
    match find_kind(word) {
        Some(names) => format!(
            "{word} is a kind without a name: write {}/NAME for each object",
            names.form()
        ),
        None => {
            format!("{word} has no kind: write KIND/NAME for each object, or KIND NAME NAME")
        }
    }
}

/// A subject of a kind and a name.
///
/// # Errors
/// The kinds that are supported, or the expected form of the name.
pub fn checked_subject<'a>(kind: &str, name: &'a str) -> Result<WhySubject<'a>, String> {
    let Some(names) = find_kind(kind) else {
        return Err(format!(
            "{kind} is not supported: operating why accepts pod/NAME, cls/NAME (CollaSet), deploy/NAME, sts/NAME, ds/NAME, \
             rs/NAME, opj/NAME (OperationJob) and svc/NAME"
        ));
    };
    let form = names.form();
    match name {
        "" => Err(format!("the name is missing: write {form}/NAME")),
        name if name.contains('/') => Err(format!("{name} is not a name: write {form}/NAME")),
        name => Ok(WhySubject {
            kind: names.kind,
            name,
        }),
    }
}

impl KindNames {
    /// The kind as messages write it before a slash.
    fn form(&self) -> &'static str {
        match self.kind {
            WhyKind::Pod => self.singular,
            _ => self.short,
        }
    }

    /// Whether a word of the user names the kind: `KIND`, `KIND.GROUP` or `KIND.VERSION.GROUP`.
    fn is_kind(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        let (plain, rest) = word.split_once('.').unwrap_or((&word, self.group));
        let is_group = rest == self.group
            || rest.split_once('.').is_some_and(|(version, group)| {
                group == self.group && !group.is_empty() && version.starts_with('v')
            });
        [self.singular, self.plural, self.short].contains(&plain) && is_group
    }
}
