//! A tree of lines, in the form in which `why` prints it.

use crate::api::size_limits::truncate_text;

/// A line and the lines below it.
#[derive(Debug, Default)]
pub struct TreeNode {
    text: String,
    below: Vec<TreeNode>,
}

impl TreeNode {
    /// A line with nothing below it.
    pub fn leaf(text: impl Into<String>) -> TreeNode {
        TreeNode::new(text, [])
    }

    /// A line with these lines below it. Characters that control a terminal are left out, because the text may quote
    /// objects that anybody has written.
    pub fn new(text: impl Into<String>, below: impl IntoIterator<Item = TreeNode>) -> TreeNode {
        TreeNode {
            text: truncate_text(&text.into(), usize::MAX),
            below: below.into_iter().collect(),
        }
    }

    /// The line, and below it the tree of the lines below it.
    pub fn render(&self) -> String {
        let mut out = format!("{}\n", self.text);
        self.write_tree(&mut out, "");
        out
    }

    fn write_tree(&self, out: &mut String, indent: &str) {
        for (index, node) in self.below.iter().enumerate() {
            let last = index + 1 == self.below.len();
            let (branch, deeper) = if last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            out.push_str(&format!("{indent}{branch}{}\n", node.text));
            node.write_tree(out, &format!("{indent}{deeper}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_control_the_terminal() {
        let node = TreeNode::new("a\u{1b}[2Jb", [TreeNode::leaf("c\u{202e}d\ne")]);
        assert_eq!(node.render(), "a[2Jb\n└─ cd e\n");
    }
}
