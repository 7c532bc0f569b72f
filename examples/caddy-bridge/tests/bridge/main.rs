//! The adapter, the bridge, a real Caddy, and HTTP servers on loopback in the place of Pods.
//!
//! The bridge has two modes: members are in Caddy's configuration, or in the module `operating_members`. What both must
//! do is told once, as a story with a site.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

/// Makes a test of each story in each mode.
macro_rules! in_both_modes {
    ($($story:ident),+ $(,)?) => {
        mod config {
            use crate::site::{Mode, Site};
            $(#[tokio::test]
            async fn $story() {
                super::$story(Site::start(Mode::Config).await).await;
            })+
        }
        mod module {
            use crate::site::{Mode, Site};
            $(#[tokio::test]
            async fn $story() {
                super::$story(Site::start(Mode::Module).await).await;
            })+
        }
    };
}

mod drain;
mod frontends;
mod input;
mod members;
mod module;
mod site;
