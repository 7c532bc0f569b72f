//! `rollout history`: lists the revisions of a CollaSet, or shows the template of one.

use anyhow::Context as _;
use serde_json::Value;

use super::Target;
use super::revisions::{StoredRevision, choose_revision, list_revisions};
use crate::api::collaset::CollaSetStatus;
use crate::cli::args::steer::HistoryArgs;
use crate::cli::output;

/// Shows the revisions, or one of them.
pub async fn show_history(args: HistoryArgs) -> anyhow::Result<()> {
    let target = Target::connect(&args.set).await?;
    let set = target.read().await?;
    let revisions = list_revisions(&target, &set).await?;
    let Some(number) = args.revision.filter(|number| *number != 0) else {
        let status = set.status.unwrap_or_default();
        return output::write_stdout(&format_history(&revisions, &status));
    };
    let revision = choose_revision(&revisions, Some(number)).map_err(anyhow::Error::msg)?;
    let template = revision.template.as_ref();
    let template = template
        .with_context(|| format!("ControllerRevision {} has no Pod template", revision.name))?;
    let text = serde_norway::to_string(template).context("cannot write YAML")?;
    output::write_stdout(&format!("# revision {number}: {}\n{text}", revision.name))
}

/// The revisions as a table. `current` and `updated` mark those of the status, and `template` that of the spec if the
/// status does not name it.
fn format_history(revisions: &[StoredRevision], status: &CollaSetStatus) -> String {
    let mut rows = vec![["REVISION", "NAME", "STATE", "IMAGES", "CHANGE-CAUSE"].map(str::to_owned)];
    rows.extend(revisions.iter().map(|revision| {
        let is_updated = revision.name == status.updated_revision;
        let marks = [
            (revision.name == status.current_revision, "current"),
            (is_updated, "updated"),
            (revision.is_template && !is_updated, "template"),
        ];
        let marks = marks.iter().filter(|(holds, _)| *holds);
        let marks: Vec<&str> = marks.map(|(_, mark)| *mark).collect();
        [
            revision.number.to_string(),
            revision.name.clone(),
            or_none(marks.join(",")),
            or_none(images(revision.template.as_ref())),
            or_none(revision.change_cause.clone().unwrap_or_default()),
        ]
    }));
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}   "))
            .collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn or_none(text: String) -> String {
    match text.is_empty() {
        true => "<none>".to_owned(),
        false => text,
    }
}

fn images(template: Option<&Value>) -> String {
    let containers = template.and_then(|t| t["spec"]["containers"].as_array());
    let containers = containers.into_iter().flatten();
    let images = containers
        .filter_map(|c| Some(format!("{}={}", c["name"].as_str()?, c["image"].as_str()?)));
    images.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn history_marks_revisions_of_status() {
        let revision = |number: i64, image: &str, is_template| StoredRevision {
            number,
            name: format!("web-{number}"),
            template: Some(
                json!({ "spec": { "containers": [{ "name": "main", "image": image }] } }),
            ),
            is_template,
            has_other_volumes: false,
            change_cause: (number == 1).then(|| "first".to_owned()),
        };
        let revisions = [revision(1, "web:1", false), revision(2, "web:2", true)];
        let status = CollaSetStatus {
            current_revision: "web-1".into(),
            updated_revision: "web-2".into(),
            ..CollaSetStatus::default()
        };
        assert_eq!(
            format_history(&revisions, &status),
            "REVISION   NAME    STATE     IMAGES       CHANGE-CAUSE\n\
             1          web-1   current   main=web:1   first\n\
             2          web-2   updated   main=web:2   <none>\n"
        );
    }
}
