//! The actions of a walk: edits, deaths, writes of others, and faults of the API server and of kubelets. The edits of
//! PodDecorations are in `decorations`.

use operating::api::keys;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::jobs::UNANSWERED;
use super::{Manner, decorations};

/// Fewest replicas of a set in a walk.
pub const REPLICAS: i32 = 3;

/// One action of a user. A number selects a Pod by its index among all Pods of the namespace.
#[derive(Clone, Debug)]
pub enum Act {
    /// Edits the spec.
    Edit(Value),
    /// Sets a list in the spec to one Pod, or empties it.
    List(&'static str, Option<usize>),
    /// Deletes a Pod, makes it fail for good, or sets or removes a label.
    Kill(usize),
    Fail(usize),
    Label(usize, &'static str, Option<String>),
    /// Removes the owner reference from a Pod.
    Orphan(usize),
    /// Stops or resumes the kubelet of a Pod.
    Kubelet(usize, bool),
    /// Another controller adds its finalizer to the Pod, or removes it.
    Keep(usize, bool),
    /// Limits the number of objects of a resource in the namespace.
    Quota(&'static str, Option<u32>),
    /// Makes the API server refuse an operation unless the expression holds.
    Refuse(&'static str, &'static str, &'static str),
    Allow,
    /// Starts or stops a policy that rewrites images.
    Rewrite(bool),
    /// Writes a command for the rollout.
    Command(&'static str),
    /// Deletes the set without its Pods and creates it again. In between one Pod may be deleted.
    Remake(Option<usize>),
    /// Creates a PodDecoration of this name, or merges into its spec.
    Decorate(&'static str, Value),
    /// Deletes a PodDecoration.
    Undecorate(&'static str),
    /// Creates an OperationJob of this action on so many Pods from this place on.
    Job(&'static str, usize, usize),
    /// Deletes all OperationJobs.
    EndJobs,
}

const WRITES: [(&str, &str, &str); 11] = [
    (
        "CREATE",
        "pods",
        "object.spec.containers.all(c, c.image != 'app:1')",
    ),
    (
        "CREATE",
        "pods",
        "object.spec.containers.all(c, c.image != 'app:2')",
    ),
    (
        "CREATE",
        "pods",
        "object.spec.containers.all(c, c.image != 'app:3')",
    ),
    (
        "UPDATE",
        "pods",
        "object.spec.containers.all(c, c.image != 'app:2') || oldObject.spec.containers.exists(c, c.image == 'app:2')",
    ),
    (
        "UPDATE",
        "pods",
        "object.spec.containers[0].image == oldObject.spec.containers[0].image",
    ),
    ("UPDATE", "pods/resize", "false"),
    ("CREATE", "persistentvolumeclaims", "false"),
    ("DELETE", "persistentvolumeclaims", "false"),
    ("CREATE", "apps:controllerrevisions", "false"),
    ("UPDATE", "apps.kusionstack.io:resourcecontexts", "false"),
    ("UPDATE", "apps.kusionstack.io:poddecorations", "false"),
];

/// Draws one action.
pub fn draw(rng: &mut StdRng, manner: &Manner) -> Act {
    if manner.decorated && rng.random_bool(0.35) {
        let name = decorations::draw_name(rng);
        return match rng.random_bool(0.15) {
            true => Act::Undecorate(name),
            false => Act::Decorate(name, decorations::draw_edit(rng, name)),
        };
    }
    if manner.jobs && rng.random_bool(0.2) {
        return job(rng, manner);
    }
    if manner.troubled && rng.random_bool(0.5) {
        return fault(rng, manner);
    }
    let pod = rng.random_range(0..6);
    match rng.random_range(0..100) {
        0..20 => Act::Edit(json!({ "replicas": rng.random_range(REPLICAS..=5) })),
        20..38 => container(rng.random_range(1..4), rng.random_range(1..3)),
        38..46 => rolling(json!({
            "byLabel": null, "byPartition": { "partition": rng.random_range(0..4) },
        })),
        46..49 => rolling(json!({ "byLabel": {}, "byPartition": null, "steps": null })),
        49..57 => {
            let policies = ["Recreate", "InPlaceIfPossible", "Replace"];
            update("podUpgradePolicy", json!(policies.choose(rng).unwrap()))
        }
        57..61 => Act::Edit(json!({ "paused": true })),
        61..67 => Act::Edit(json!({ "paused": false })),
        67..77 => Act::Kill(pod),
        77..82 => Act::Label(pod, keys::TO_DELETE, Some("1".into())),
        82..94 if manner.surge => Act::Kill(pod),
        82..90 => Act::Label(pod, keys::TO_REPLACE, Some("1".into())),
        90..94 => Act::Label(pod, keys::TO_REPLACE, None),
        94..96 => Act::Label(pod, keys::UPDATE_INCLUDED, Some("1".into())),
        _ if manner.fails => Act::Fail(pod),
        _ => Act::Kill(pod),
    }
}

fn job(rng: &mut StdRng, manner: &Manner) -> Act {
    let (place, count) = (rng.random_range(0..4), rng.random_range(1..4));
    match rng.random_range(0..10) {
        0..2 => Act::EndJobs,
        2..7 if !manner.surge => Act::Job("Replace", place, count),
        _ => Act::Job(UNANSWERED, place, count),
    }
}

fn fault(rng: &mut StdRng, manner: &Manner) -> Act {
    let pod = rng.random_range(0..6);
    let on = rng.random_bool(0.6);
    match rng.random_range(0..100) {
        0..8 => {
            let resource = *["pods", "persistentvolumeclaims"].choose(rng).unwrap();
            Act::Quota(resource, on.then(|| rng.random_range(2..6)))
        }
        8..18 if on => {
            let (operation, resource, passes) = *WRITES.choose(rng).unwrap();
            Act::Refuse(operation, resource, passes)
        }
        8..18 => Act::Allow,
        18..39 => label(rng, pod),
        39..42 => Act::Rewrite(on),
        42..46 => Act::Orphan(pod),
        46..56 => {
            let lists = ["podToExclude", "podToInclude", "podToDelete"];
            Act::List(lists.choose(rng).unwrap(), on.then_some(pod))
        }
        56..64 => Act::Kubelet(pod, on),
        64..70 => Act::Keep(pod, on),
        70..76 => update("maxUnavailable", bound(rng, manner.paced)),
        76..80 => update("maxSurge", bound(rng, manner.surge)),
        80..84 => {
            let seconds = [json!(null), json!(1), json!(2)];
            Act::Edit(json!({ "minReadySeconds": seconds.choose(rng).unwrap() }))
        }
        84..89 => {
            let canary = json!([
                { "partition": "67%" }, { "pause": {} }, { "partition": 1 }, { "pause": { "duration": "1s" } },
            ]);
            let steps = if on { canary } else { json!(null) };
            rolling(json!({ "byLabel": null, "steps": steps }))
        }
        89..96 => {
            let commands = ["promote", "promote-full", "abort", "retry"];
            Act::Command(commands.choose(rng).unwrap())
        }
        _ => Act::Remake(on.then_some(pod)),
    }
}

fn label(rng: &mut StdRng, pod: usize) -> Act {
    let id = rng.random_range(0..6).to_string();
    let all = [
        (keys::INSTANCE_ID, Some(id)),
        (keys::INSTANCE_ID, None),
        (keys::CONTROL, Some("false".into())),
        (keys::CONTROL, None),
        (keys::REVISION, Some("web-unknown".into())),
        (keys::ORPHANED, Some("true".into())),
        (keys::SERVICE_AVAILABLE, Some("1".into())),
        (keys::SERVICE_AVAILABLE, None),
        (keys::TO_EXCLUDE, Some("1".into())),
        ("app", Some("debug".into())),
        ("app", Some("web".into())),
    ];
    let (key, value) = all.choose(rng).unwrap().clone();
    Act::Label(pod, key, value)
}

/// A bound that amounts to one of three to five Pods if `is_one`, otherwise any bound.
fn bound(rng: &mut StdRng, is_one: bool) -> Value {
    let all = [json!(1), json!("20%"), json!(2), json!("60%"), json!(null)];
    let few = if is_one { &all[..2] } else { &all[..] };
    few.choose(rng).unwrap().clone()
}

fn update(field: &str, value: Value) -> Act {
    let mut strategy = json!({});
    strategy[field] = value;
    Act::Edit(json!({ "updateStrategy": strategy }))
}

fn rolling(rolling: Value) -> Act {
    update("rollingUpdate", rolling)
}

fn container(image: u8, memory: u8) -> Act {
    let app = json!({
        "name": "app", "image": format!("app:{image}"),
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "resources": { "requests": { "memory": format!("{memory}Mi") } },
        "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
    });
    Act::Edit(json!({ "template": { "spec": { "containers": [app] } } }))
}
