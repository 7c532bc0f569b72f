//! How containers are restarted, as flags and annotations say it.

/// A method to restart containers in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartMethod {
    /// By a ContainerRecreateRequest of OpenKruise.
    #[default]
    ContainerRecreateRequest,
    /// By another reference to the same image. The kubelet stops the container before it checks the reference.
    ImageReference,
    /// By a ContainerRecreateRequest if that is possible, else by another reference.
    Auto,
}

impl RestartMethod {
    /// Reads the value of the annotation `operationjob.kusionstack.io/restart-by` or of the flag `--restart-by`.
    pub fn parse(text: &str) -> Option<RestartMethod> {
        let all = [
            RestartMethod::ContainerRecreateRequest,
            RestartMethod::ImageReference,
            RestartMethod::Auto,
        ];
        all.into_iter().find(|method| method.as_str() == text)
    }

    /// The value of the annotation and the flag.
    pub const fn as_str(self) -> &'static str {
        match self {
            RestartMethod::ContainerRecreateRequest => "ContainerRecreateRequest",
            RestartMethod::ImageReference => "ImageReference",
            RestartMethod::Auto => "auto",
        }
    }
}

/// What is the same for all restarts of this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartSettings {
    /// The method if the job does not name one.
    pub method: RestartMethod,
    /// The version of ContainerRecreateRequests that the API server serves (`apps.kruise.io/…`). `Some(None)` if it
    /// serves none, `None` if this is not known yet.
    pub request_api: Option<Option<String>>,
}
