//! Explains an object, once or after each change until it is deleted.

use std::time::Duration;

use anyhow::Context as _;
use futures::stream::{BoxStream, SelectAll};
use jiff::Timestamp;
use serde::Serialize;

use super::follow_mode::{self, FollowFrame, WatchChange};
use super::{Explaining, format_gone, to_json_text};
use crate::cli::args::Output;

/// What distinguishes the kinds of objects.
pub struct ExplainedObject<'a, T, D> {
    /// Kind and name.
    pub title: String,
    /// The error if there is no such object.
    pub missing: String,
    /// The UID of an object.
    pub uid: fn(&T) -> Option<&str>,
    /// Makes the diagnosis.
    pub diagnose: fn(&T, Timestamp) -> D,
    /// With `--watch`, how long changes are collected before the object is read again.
    pub burst_window: Duration,
    /// The diagnosis as text.
    pub render: fn(&D, Timestamp) -> String,
    /// After which changes the object is read again, with `--watch`.
    pub changes: BoxStream<'a, WatchChange>,
}

impl<T, D: Serialize> ExplainedObject<'static, T, D> {
    /// Reads the object and prints its diagnosis.
    pub async fn explain(
        self,
        explaining: &Explaining<'_>,
        read: impl AsyncFn() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<()> {
        let form = explaining.args.format.output;
        let first = read().await?;
        let first = first.with_context(|| self.missing.clone())?;
        let began = Timestamp::now();
        let format = |object: &T, now, line| {
            let diagnosis = (self.diagnose)(object, now);
            match form {
                Output::Text => Ok((self.render)(&diagnosis, now)),
                Output::Json => to_json_text(&diagnosis, line),
            }
        };
        if !explaining.args.watch {
            return explaining.print(&format(&first, began, explaining.has_several)?);
        }
        let observe = async || {
            let object = read().await?;
            let Some(object) = object.filter(|object| (self.uid)(object) == (self.uid)(&first))
            else {
                return Ok(FollowFrame::final_frame(format_gone(&self.title, form)?));
            };
            // A change of ages alone is not printed.
            let key = format(&object, began, true)?;
            let text = format(&object, Timestamp::now(), true)?;
            Ok(FollowFrame::open_frame(text, key))
        };
        let changes = SelectAll::from_iter([self.changes]);
        follow_mode::follow_changes(self.burst_window, changes, observe).await
    }
}
