//! Prints what Services say about traffic as trees for people.

use jiff::Timestamp;

use super::tree_node::TreeNode;
use crate::domain::diagnosis::traffic::facts::{
    PodNames, PodTrafficFacts, ProblemFacts, ServiceDiagnosis, ServiceFacts, ServicePods,
};
use crate::domain::messages;
use crate::domain::traffic::report::WaitingMember;

/// The node of an employer for which a Pod waits.
pub fn pod_traffic_node(facts: &PodTrafficFacts, now: Timestamp) -> TreeNode {
    let adapter = facts.adapter.as_ref();
    let adapter = adapter.map_or_else(String::new, |name| format!(" (adapter {name})"));
    let title = format!("{}{adapter}", facts.employer.replacen('/', " ", 1));
    let error = error_node(facts, now);
    match &facts.says[..] {
        [says] => TreeNode::new(format!("{title}: {says}"), error),
        several => TreeNode::new(title, several.iter().map(TreeNode::leaf).chain(error)),
    }
}

/// The diagnosis of a Service as text. Ages are relative to `now`.
pub fn render_service(all: &ServiceDiagnosis, now: Timestamp) -> String {
    let mut tree = vec![service_node(all, now)];
    tree.extend(all.waiting.iter().map(member_node));
    tree.extend(unlisted_node(all));
    let pods = all.pods.iter();
    tree.extend(
        pods.clone()
            .flat_map(|pods| {
                let awaiting = "not available before traffic is on";
                [protected_node(pods), names_node(&pods.awaiting, awaiting)]
            })
            .flatten(),
    );
    tree.extend(all.problems.iter().map(problem_node));
    if !all.next.is_empty() {
        tree.push(TreeNode::new("next", all.next.iter().map(TreeNode::leaf)));
    }
    let notes = all.notes.iter();
    tree.extend(notes.map(|note| TreeNode::leaf(format!("not known: {note}"))));
    TreeNode::new(&all.summary, tree).render()
}

/// The last failure, unless a line above names it, and when the call is repeated.
fn error_node(facts: &PodTrafficFacts, now: Timestamp) -> Option<TreeNode> {
    let error = facts.last_error.as_ref()?;
    let is_named = facts.says.iter().any(|says| says.contains(error.as_str()));
    let error = (!is_named).then(|| format!("last error: {error}"));
    let next_try = facts
        .next_try
        .map(|at| match at.duration_since(now).as_secs() {
            remaining @ 1.. => format!("next try in {}", messages::format_age(remaining)),
            // The report is not written again for each try, so it does not tell whether a server runs.
            _ => "a server that leads repeats the call again and again; check that one leads"
                .to_owned(),
        });
    let parts: Vec<_> = error.into_iter().chain(next_try).collect();
    (!parts.is_empty()).then(|| TreeNode::leaf(parts.join("; ")))
}

fn service_node(all: &ServiceDiagnosis, now: Timestamp) -> TreeNode {
    let ServiceFacts {
        namespace, name, ..
    } = &all.service;
    let mut states = vec![match (all.service.managed, &all.service.adapter) {
        (true, Some(adapter)) => format!("managed by adapter {adapter}"),
        (true, None) => "managed, without an adapter".to_owned(),
        (false, _) => "not managed".to_owned(),
    }];
    let wanted = all.service.wanted_adapter.as_ref();
    let wanted = wanted.filter(|wanted| Some(*wanted) != all.service.adapter.as_ref());
    states.extend(wanted.map(|wanted| format!("its annotation names adapter {wanted}")));
    let formers = &all.service.former_adapters;
    states.extend((!formers.is_empty()).then(|| {
        format!(
            "being moved from adapter {}: no Pod is released before both load balancers have let it go",
            formers.join(", ")
        )
    }));
    let drain_error = all.service.drain_error.as_ref();
    let drain = all.service.drain_seconds.as_ref();
    let drain = drain.filter(|_| drain_error.is_none());
    states.extend(drain.map(|seconds| format!("drain time {} s", seconds.trim())));
    let deleting = all.service.deleting_since;
    states.extend(
        deleting.map(|since| format!("being deleted for {}", messages::format_ago(since, now))),
    );
    let selected = all.pods.as_ref();
    let selected = selected.map(|pods| {
        let managed = match pods.selected {
            1 => "it selects 1 managed Pod".to_owned(),
            count => format!("it selects {count} managed Pods"),
        };
        let unmanaged = match pods.unmanaged.count {
            0 => String::new(),
            1 => " and 1 that is not managed".to_owned(),
            count => format!(" and {count} that are not managed"),
        };
        TreeNode::leaf(managed + &unmanaged)
    });
    TreeNode::new(
        format!("Service {namespace}/{name}: {}", states.join(", ")),
        selected.into_iter().chain(drain_error.map(TreeNode::leaf)),
    )
}

fn member_node(member: &WaitingMember) -> TreeNode {
    let pod = match member.pod.as_str() {
        "" => "a Pod that is not known",
        pod => pod,
    };
    TreeNode::new(
        format!("{pod} at {}: {}", member.at, member.state),
        [TreeNode::leaf(&member.message)],
    )
}

/// What the report counts and does not list. `None` if it lists everything.
fn unlisted_node(all: &ServiceDiagnosis) -> Option<TreeNode> {
    let text = match all.unlisted {
        0 => return None,
        1 => "1 more member or Pod waits, which the report does not list".to_owned(),
        count => format!("{count} more members or Pods wait, which the report does not list"),
    };
    let pods = &all.unlisted_pods;
    let named = format!("Pods that wait and are not listed: {}", names_text(pods));
    let named = (pods.count > 0).then(|| TreeNode::leaf(named));
    Some(TreeNode::new(text, named))
}

/// The Pods that the Service protects, and below those that should be off traffic. `None` if there are none.
fn protected_node(pods: &ServicePods) -> Option<TreeNode> {
    let count = messages::count_pods_with_verb(pods.protected.count, "is", "are");
    let names = names_text(&pods.protected);
    let verbs = match pods.leaving.count {
        1 => "should be off traffic, and keeps",
        _ => "should be off traffic, and keep",
    };
    let leaving = format!(
        "{} of them {verbs} the finalizer until the load balancer agrees: {}",
        pods.leaving.count,
        names_text(&pods.leaving)
    );
    let leaving = (pods.leaving.count > 0).then(|| TreeNode::leaf(leaving));
    let title = format!("{count} protected by its finalizer: {names}");
    (pods.protected.count > 0).then(|| TreeNode::new(title, leaving))
}

/// All names that are known.
fn names_text(pods: &PodNames) -> String {
    pods.list(usize::MAX)
}

/// Pods with something in common. `None` if there are none.
fn names_node(pods: &PodNames, state: &str) -> Option<TreeNode> {
    let names = names_text(pods);
    let count = messages::count_pods_with_verb(pods.count, "is", "are");
    (pods.count > 0).then(|| TreeNode::leaf(format!("{count} {state}: {names}")))
}

fn problem_node(problem: &ProblemFacts) -> TreeNode {
    TreeNode::leaf(format!("problem: {}", problem.reason))
}
