//! Drives Caddy for the HTTP adapter: an example of the endpoint that `docs/reference/traffic-http.openapi.yaml`
//! describes.
//!
//! Each *frontend* is a group of a Service, and becomes a server in Caddy's configuration. Its members are the upstreams
//! of that server. The bridge keeps no state: the Pod and the weight of each upstream are in its `@id`, so another
//! instance of the bridge continues where this one ended.
//!
//! A member that drains moves to a route that matches no request. Caddy then sends it no new request, requests that have
//! begun go on, and Caddy still counts them.
//!
//! Caddy restarts its HTTP servers with each new configuration. It then cuts idle connections, and requests that it is
//! just reading. A Caddy with the module `operating_members` changes members without a new configuration.
//!
//! | File | What it has |
//! |---|---|
//! | `options` | the command line |
//! | `endpoint` | the two calls, and who may make them |
//! | `members` | the members of a frontend, and their changes |
//! | `config` | the members in Caddy's configuration |
//! | `module` | the members in the module `operating_members` |
//! | `service` | the groups of a Service, with and without a frontend |
//! | `refused` | calls that are refused |
//! | `store` | reads and replaces either of them |
//! | `label` | the `@id` of an upstream |
//! | `caddy` | Caddy's admin API |

mod caddy;
mod config;
mod endpoint;
mod label;
mod members;
mod module;
mod options;
mod refused;
mod service;
mod store;

pub use endpoint::router;
pub use options::{Frontend, Mapping, Options};
