//! The scenes, in the order of the play.

pub mod drain;
pub mod dry_run;
pub mod lifecycle;
pub mod storm;
pub mod traffic;
