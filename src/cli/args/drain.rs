//! Flags of `drain`.

use clap::{ArgAction, Args};

use super::UserArgs;
use super::format::FormatArgs;
use crate::domain::drain::DrainFlags;

/// Flags of `drain`. They have the names and the meaning that kubectl gives them.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Names of the nodes. Each is looked at as if the others were not drained
    #[arg(
        required_unless_present = "selector",
        conflicts_with = "selector",
        value_name = "NODE"
    )]
    pub nodes: Vec<String>,
    /// All nodes with these labels, such as pool=old
    #[arg(short = 'l', long, env = "OPERATING_SELECTOR", value_name = "LABELS")]
    pub selector: Option<String>,
    /// Only the Pods with these labels
    #[arg(long, env = "OPERATING_POD_SELECTOR", value_name = "LABELS")]
    pub pod_selector: Option<String>,
    /// Leave Pods of DaemonSets on the node. Without it, kubectl refuses a node that has such Pods
    #[arg(long, env = "OPERATING_IGNORE_DAEMONSETS", value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub ignore_daemonsets: bool,
    /// Evict Pods whose emptyDir volumes are lost. Without it, kubectl refuses a node that has such Pods
    #[arg(long, env = "OPERATING_DELETE_EMPTYDIR_DATA", value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    pub delete_emptydir_data: bool,
    /// Evict Pods without a controller. Without it, kubectl refuses a node that has such Pods
    #[arg(long, env = "OPERATING_FORCE")]
    pub force: bool,
    /// The API server that is asked.
    #[command(flatten)]
    pub user: UserArgs,
    /// How the result is printed.
    #[command(flatten)]
    pub format: FormatArgs,
}

impl DrainArgs {
    /// The flags that choose Pods.
    pub fn flags(&self) -> DrainFlags {
        DrainFlags {
            ignore_daemonsets: self.ignore_daemonsets,
            delete_emptydir_data: self.delete_emptydir_data,
            force: self.force,
        }
    }
}
