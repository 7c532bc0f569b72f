//! The bridge as a program.

use anyhow::{Context, Result};
use caddy_bridge::{Options, router};
use clap::Parser;

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let address = options.listen;
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("listening on {address} (`--listen`)"))?;
    axum::serve(listener, router(options)?).await?;
    Ok(())
}
