//! Texts that load balancers and tenants have written, in a form that is safe to show.

/// A text from outside as an error shows it: [on one line](one_line), without secrets, and with at most `longest`
/// characters. `hide` replaces the secrets in a text.
#[must_use]
pub fn foreign_text(text: &str, longest: usize, hide: impl Fn(&str) -> String) -> String {
    // Twice, because invisible characters may divide a secret. Before the text is cut, because a part of a secret would
    // not be recognised.
    let line = hide(&one_line(&hide(text)));
    match line.char_indices().nth(longest) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// A text without the characters that control a terminal, that are invisible, or that change the direction of writing.
/// Characters that separate words or lines become single spaces.
#[must_use]
pub fn one_line(text: &str) -> String {
    let shown = text.chars().filter(|c| !is_invisible(*c));
    let shown = shown.map(|c| if c.is_control() { ' ' } else { c });
    let shown: String = shown.collect();
    let words: Vec<_> = shown.split_whitespace().collect();
    words.join(" ")
}

fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hide(text: &str) -> String {
        text.replace("the-secret", "***")
    }

    #[test]
    fn line_has_no_characters_that_control_the_reader() {
        let text = "\u{1b}[2J no\0such\r\n\u{2028}pool \u{202e}lennart\u{2066}\u{200f}\u{61c}\t!";
        assert_eq!(one_line(text), "[2J no such pool lennart !");
        for point in (0x202a..=0x202e)
            .chain(0x2066..=0x2069)
            .chain([0x200e, 0x200f, 0x61c])
        {
            let c = char::from_u32(point).unwrap_or(' ');
            assert_eq!(one_line(&format!("a{c}b")), "ab", "{point:x}");
        }
    }

    #[test]
    fn secrets_are_hidden_before_the_text_is_cut() {
        let shown = |text: &str| foreign_text(text, 12, hide);
        assert_eq!(shown("12345 the-secret"), "12345 ***");
        assert_eq!(shown("the-\u{200b}secret"), "***");
        assert_eq!(shown("123456 the-secret and more"), "123456 *** a…");
        assert_eq!(shown("grüße an alle"), "grüße an all…");
    }
}
