//! The table.

/// A figure, its measured value, and its limit.
#[derive(Debug)]
struct Row {
    figure: String,
    value: String,
    bar: String,
}

/// Rows in the order in which they were measured.
#[derive(Debug, Default)]
pub struct Report(Vec<Row>);

impl Report {
    /// Adds a figure without a bar.
    pub fn add(&mut self, figure: impl Into<String>, value: impl Into<String>) {
        self.add_with_bar(figure, value, "");
    }

    /// Adds a figure; it is shown at once on standard error, too.
    pub fn add_with_bar(
        &mut self,
        figure: impl Into<String>,
        value: impl Into<String>,
        bar: impl Into<String>,
    ) {
        let row = Row {
            figure: figure.into(),
            value: value.into(),
            bar: bar.into(),
        };
        eprintln!("  {}: {}  {}", row.figure, row.value, row.bar);
        self.0.push(row);
    }

    /// Adds a figure with its bar, and says whether the bar holds.
    pub fn judge(
        &mut self,
        figure: impl Into<String>,
        value: impl Into<String>,
        bar: String,
        holds: bool,
    ) {
        let verdict = if holds { "holds" } else { "MISSED" };
        self.add_with_bar(figure, value, format!("{bar}: {verdict}"));
    }

    /// Prints the table to standard output.
    pub fn print(&self) {
        print!("{}", self.table());
    }

    fn table(&self) -> String {
        let header = Row {
            figure: "Figure".to_owned(),
            value: "Measured".to_owned(),
            bar: "Bar".to_owned(),
        };
        let all = || std::iter::once(&header).chain(&self.0);
        let width = |of: fn(&Row) -> &str| all().map(|r| of(r).chars().count()).max().unwrap_or(0);
        let (first, second) = (width(|r| &r.figure), width(|r| &r.value));
        let line = |r: &Row| {
            let text = format!("{:first$}  {:second$}  {}", r.figure, r.value, r.bar);
            format!("{}\n", text.trim_end())
        };
        all().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_an_empty_bar_leaves_no_blanks() {
        let mut report = Report::default();
        report.add_with_bar("calls of an idle minute", "0", "0");
        report.add("memory", "20 MiB");
        let expected = "Figure                   Measured  Bar\n\
                        calls of an idle minute  0         0\n\
                        memory                   20 MiB\n";
        assert_eq!(report.table(), expected);
    }
}
