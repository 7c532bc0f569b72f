//! Puts any load balancer behind two HTTP calls.
//!
//! [`HttpAdapter`] computes the members of a Service from its ports and the addresses of its Pods. It asks an endpoint
//! which of them are registered (`observe`), and tells it what to change (`apply`). The endpoint is written by whoever
//! runs the load balancer; `docs/reference/traffic-http.openapi.yaml` describes the calls, and [`wire`] has their types.
//!
//! The endpoint and the credentials come from the configuration of the server only. Nothing that a tenant writes into an
//! object chooses where a call goes.
//!
//! | File | What it has |
//! |---|---|
//! | `config` | the settings and their bounds |
//! | `members` | the members of a Pod, from the ports of the Service |
//! | `wire` | the JSON of both calls |
//! | `translate` | between the JSON and the types of the framework |
//! | `credentials` | files with certificates, keys and tokens, which may change at any time |
//! | `sign` | the HMAC signature of a request |
//! | `call` | one bounded call |
//! | `answer` | how answers are decoded, and which of their texts are kept |
//! | `refusal` | what an answer that is not a success means |

mod adapter;
mod answer;
mod call;
mod config;
mod credentials;
mod members;
mod refusal;
mod sign;
mod translate;
pub mod wire;

pub use adapter::HttpAdapter;
pub use config::{Config, ConfigError, ControlSetting};
pub use sign::{SIGNATURE_HEADER, TIMESTAMP_HEADER, is_signed, signature};
