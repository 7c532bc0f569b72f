//! Says in words which cluster a command works on.

use kube::Config;
use kube::config::Kubeconfig;

use crate::cli::args::ClusterArgs;

/// The context that a command uses and the address of its API server, such as `context prod (https://10.0.0.1:6443)`.
/// Names of contexts repeat themselves, addresses do not. `config` is the configuration that the command uses.
pub fn describe_target(args: &ClusterArgs, config: &Config) -> String {
    let address = config.cluster_url.to_string();
    let address = address.trim_end_matches('/');
    match context(args) {
        Some(context) => format!("context {context} ({address})"),
        None => format!("the cluster of the service account ({address})"),
    }
}

fn context(args: &ClusterArgs) -> Option<String> {
    if args.context.is_some() {
        return args.context.clone();
    }
    let kubeconfig = match &args.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    kubeconfig.ok()?.current_context
}
