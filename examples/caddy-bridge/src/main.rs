//! The bridge as a program.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use caddy_bridge::{Options, router};
use clap::Parser;
use tracing::info;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let options = Options::parse();
    let address = options.listen;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("listening on {address} (`--listen`)"))?;
    let (admin, frontends) = (options.admin.clone(), options.frontends.len());
    let (module, signed) = (options.members_module, options.hmac_key_file.is_some());
    let router = router(options)?;
    info!(%address, admin, frontends, module, signed, "the bridge listens");
    axum::serve(listener, router).await?;
    Ok(())
}
