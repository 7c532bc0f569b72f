//! `operating serve`.

use anyhow::bail;

use super::args::ServeArgs;
use super::{connect, install};

/// Installs what `--install` asks for, then serves.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    if args.install {
        let client = connect::client(&args.cluster).await?;
        install::prepare(&client, &args.cluster.namespace).await?;
    }
    bail!("serve: this build has no server")
}
