//! Text in columns of a terminal, in which a character takes none, one or two.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// As much of a text as fits, with an ellipsis if that is not all.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (start, _) = split(text, columns.saturating_sub(1));
    if columns == 0 { String::new() } else { format!("{start}…") }
}

/// What of a text is at or behind a column.
pub fn from_column(text: &str, column: usize) -> &str {
    split(text, column).1
}

/// How far the second line of a text and those after it are moved in.
const INDENT: usize = 2;

/// A text in lines, broken at spaces where that is possible.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2 * INDENT + 2);
    let indent = (text.len() - text.trim_start().len() + INDENT).min(columns / 2);
    let (mut lines, mut rest, mut before) = (Vec::new(), text, 0);
    while width(rest) > columns - before {
        let (start, _) = split(rest, columns - before);
        let end = start.rfind(' ').filter(|end| !start[..*end].trim().is_empty()).unwrap_or(start.len());
        lines.push(format!("{:before$}{}", "", &rest[..end]));
        rest = rest[end..].trim_start();
        before = indent;
    }
    lines.push(format!("{:before$}{rest}", ""));
    lines
}

/// A text in two, of which the first takes at most so many columns.
fn split(text: &str, columns: usize) -> (&str, &str) {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, char)| {
        taken += char.width().unwrap_or(0);
        taken > columns
    });
    text.split_at(end.map_or(text.len(), |(end, _)| end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(
            (cut("日本語", 6), cut("日本語", 5), cut("日本語", 4)),
            ("日本語".into(), "日本…".into(), "日…".into())
        );
        assert_eq!((cut("abc", 0), cut("abc", 2)), (String::new(), "a…".to_owned()));
        assert_eq!((from_column("日本語", 2), from_column("ab", 3)), ("本語", ""));
    }

    #[test]
    fn lines_break_at_spaces_or_where_they_must() {
        assert_eq!(wrap("one two three", 8), ["one two", "  three"]);
        assert_eq!(wrap("  /a/longer/path: why", 12), ["  /a/longer/", "    path:", "    why"]);
        assert_eq!(wrap("", 8), [""]);
    }
}
