//! Names in the status of an OperationJob: keys of `extraInfo` and reasons of errors (contract 1.5).

/// Keys of `status.targetDetails[].extraInfo`.
pub mod extra_info {
    /// UID of the Pod that the job operates on.
    pub const POD_UID: &str = "PodUID";
    /// Why nothing happens at the moment, in one sentence.
    pub const WAITING: &str = "Waiting";
    /// Replace: name of the new Pod.
    pub const NEW_POD: &str = "NewPod";
    /// Replace: UID of the new Pod.
    pub const NEW_POD_UID: &str = "NewPodUID";
    /// Replace: name of the CollaSet of the new Pod.
    pub const COLLASET: &str = "CollaSet";
    /// Replace: UID of the CollaSet of the new Pod.
    pub const COLLASET_UID: &str = "CollaSetUID";
    /// Replace: instance ID of the Pod.
    pub const INSTANCE_ID: &str = "InstanceID";
    /// Replace: instance ID of the new Pod.
    pub const NEW_INSTANCE_ID: &str = "NewInstanceID";
    /// Replace: why a Pod that is itself the new Pod of a pair is not replaced yet.
    pub const NOT_ALLOWED_TO_REPLACE_NEW_POD: &str = "NotAllowedToReplaceNewPod";
    /// `true` once everything that the job asked of the Pod is withdrawn.
    pub const RELEASED: &str = "Released";
    /// Restart: `ContainerRecreateRequest` or `ImageReference`.
    pub const METHOD: &str = "Method";
    /// Restart: JSON of the containers before the restart, `{"<container>":{"id":"…","image":"…"}}`.
    pub const BEFORE: &str = "Before";
    /// Restart: name of the ContainerRecreateRequest, once it exists.
    pub const REQUEST: &str = "Request";
    /// Restart: `true` once the ContainerRecreateRequest has succeeded.
    pub const REQUEST_ENDED: &str = "RequestEnded";
    /// Action of another program: since when it may work on the Pod, RFC 3339.
    pub const ALLOWED: &str = "Allowed";
    /// When the action ended on the Pod, RFC 3339. The Pod returns to service after that.
    pub const ACTION_ENDED: &str = "ActionEnded";
}

/// Values of `status.targetDetails[].error.reason`.
pub mod reason {
    /// The Pod does not exist, is being deleted, or is another Pod of the same name.
    pub const POD_NOT_FOUND: &str = "PodNotFound";
    /// The Pod has no such container, or the container can't be restarted.
    pub const CONTAINER_NOT_FOUND: &str = "ContainerNotFound";
    /// The Pod does not have the label `kusionstack.io/control=true`.
    pub const NOT_MANAGED: &str = "NotManaged";
    /// No CollaSet controls the Pod.
    pub const NOT_REPLACEABLE: &str = "NotReplaceable";
    /// No way to restart the containers can be used.
    pub const RESTART_NOT_SUPPORTED: &str = "RestartNotSupported";
    /// The restart was begun and did not succeed.
    pub const RESTART_FAILED: &str = "RestartFailed";
    /// The target was not finished within `activeDeadlineSeconds`.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// The job was deleted.
    pub const CANCELED: &str = "Canceled";
    /// The action is not known, or the program that carries it out reported a failure.
    pub const ACTION_FAILED: &str = "ActionFailed";
}
