//! Publishes the values that the plans of CollaSets read, and wakes the keys that a changed value affects.

use super::PodDecorationController;
use crate::controllers::DecorationName;
use crate::domain::decoration::Decoration;

/// Publishes the value of a PodDecoration. If it differs from the published value, this function enqueues all CollaSets
/// of the namespace, and the other PodDecorations: their plans read the labels that this decoration sets.
pub fn publish(controller: &PodDecorationController, namespace: &str, value: &Decoration) {
    if controller.board.publish(namespace, value.clone()) {
        enqueue_sets(controller, namespace);
        enqueue_other_decorations(controller, namespace, &value.name);
    }
}

/// Removes the value of a PodDecoration that is gone. The CollaSets of the namespace are enqueued in any case, because
/// they may have waited for its first value.
pub fn withdraw(controller: &PodDecorationController, (namespace, name): &DecorationName) {
    if controller.board.withdraw(namespace, name) {
        enqueue_other_decorations(controller, namespace, name);
    }
    enqueue_sets(controller, namespace);
}

fn enqueue_sets(controller: &PodDecorationController, namespace: &str) {
    let sets = &controller.context.objects.sets;
    for set in sets.names_where(namespace, |_| true) {
        controller.queues.collasets.add((namespace.to_owned(), set));
    }
}

fn enqueue_other_decorations(controller: &PodDecorationController, namespace: &str, name: &str) {
    let decorations = &controller.context.objects.decorations;
    for other in decorations.names_where(namespace, |_| true) {
        if other != name {
            let key = (namespace.to_owned(), other);
            controller.queues.decorations.add(key);
        }
    }
}
