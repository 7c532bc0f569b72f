//! Says in words which cluster a command works on.

use kube::config::Kubeconfig;

use super::args::ClusterArgs;

/// The context that a command uses, such as `context prod`. Without a kubeconfig it is the cluster of the service
/// account.
pub fn describe_target(args: &ClusterArgs) -> String {
    if let Some(context) = &args.context {
        return format!("context {context}");
    }
    let kubeconfig = match &args.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    match kubeconfig.map(|config| config.current_context) {
        Ok(Some(context)) => format!("context {context}"),
        Ok(None) => "the kubeconfig, without a context".to_owned(),
        Err(_) => "the service account of this Pod".to_owned(),
    }
}
