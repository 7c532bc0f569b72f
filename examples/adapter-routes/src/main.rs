//! The server with an adapter for Routes, a custom resource.

mod adapter;

use std::process::ExitCode;
use std::sync::Arc;

use operating::cli::adapter_types::{AdapterTypes, read_settings};
use traffic_http::HttpAdapter;

use adapter::Routes;

fn main() -> ExitCode {
    let types = AdapterTypes::built_in().with("routes", |settings| {
        let config = read_settings(settings)?;
        let calls = HttpAdapter::new(config).map_err(|error| error.to_string())?;
        Ok(Arc::new(Routes(calls)))
    });
    operating::cli::main_with(&types)
}
