//! Draws the state: the list on the left, the diff on the right; one of them where the terminal is narrow.
//!
//! Nothing is told by colour alone. Neighbours: `state.rs`, `text.rs`, which cuts and wraps.

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::log::{age, counts, marks};
use super::super::paths::{counted, here, quoted, shown};
use super::super::show::moment;
use super::detail::{Line, LineKind};
use super::listing::{Row, Scroll};
use super::state::{Dialog, Focus, State};
use super::text::{cut, from_column, width, wrap};
use crate::library::log::EntryState;

/// Both panes are shown from this many columns on.
const TWO_PANES: u16 = 80;
/// A list of this many columns has identifiers.
const WITH_IDS: u16 = 52;
/// A pane of this many lines has room for more than one line about the recording.
const ROOMY: u16 = 14;

/// What the keys do, for the help.
const KEYS: &[(&str, &str)] = &[
    ("j k, Down Up", "next, previous"),
    ("PageDown PageUp", "a page down, up"),
    ("g G, Home End", "first, last"),
    ("Tab, Enter", "go to the other pane"),
    ("Right Left", "scroll the diff sideways"),
    ("] [", "next, previous file of the diff"),
    ("/", "choose recordings by a text of their command or of a changed path"),
    ("Space", "mark the recording"),
    ("u", "undo the marked recordings, or else the selected one: shows first what that changes"),
    ("r", "redo the selected recording if it is undone, or else what was undone last"),
    ("h", "history of the file at the cursor of the diff: all recordings that changed it"),
    ("R", "read the log again; new recordings appear by themselves"),
    ("Ctrl-L", "draw all again"),
    ("Esc", "back: to the list, from the history, without the filter, without marks"),
    ("q", "quit"),
];

/// How things look.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    /// Whether there are colours.
    pub has_colour: bool,
}

impl Theme {
    fn of(self, kind: LineKind) -> Style {
        let colour = |colour| if self.has_colour { Style::new().fg(colour) } else { Style::new() };
        match kind {
            LineKind::Heading => Style::new().add_modifier(Modifier::BOLD),
            LineKind::Hunk => colour(Color::Cyan),
            LineKind::Added => colour(Color::Green),
            LineKind::Removed => colour(Color::Red),
            LineKind::Note => colour(Color::Magenta),
            LineKind::Plain => Style::new(),
        }
    }
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, state: &mut State, theme: Theme, now: Timestamp) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let body = Rect { height: area.height.saturating_sub(1), ..area };
    let status = Rect { y: area.bottom().saturating_sub(1), height: 1.min(area.height), ..area };
    if state.dialog.is_some() {
        draw_dialog(buffer, body, state, theme);
    } else if area.width < TWO_PANES {
        match state.focus {
            Focus::List => draw_list(buffer, body, state, theme, now),
            Focus::Detail => draw_detail(buffer, body, state, theme),
        }
    } else {
        let left = (area.width / 20 * 9).clamp(36, 70);
        draw_list(buffer, Rect { width: left, ..body }, state, theme, now);
        for y in body.top()..body.bottom() {
            buffer.set_string(left, y, "│", Style::new());
        }
        let right = Rect { x: left + 1, width: area.width - left - 1, ..body };
        draw_detail(buffer, right, state, theme);
    }
    draw_status(buffer, status, state);
}

/// Writes a line of a pane, cut to its width.
fn put(buffer: &mut Buffer, area: Rect, line: usize, text: &str, style: Style) {
    let Some(y) = u16::try_from(line).ok().filter(|line| *line < area.height) else { return };
    let text = cut(text, area.width.into());
    let blank = usize::from(area.width).saturating_sub(width(&text));
    buffer.set_string(area.x, area.y + y, format!("{text}{:blank$}", ""), style);
}

/// Writes the title of a pane, with a note at its right end.
fn put_title(buffer: &mut Buffer, area: Rect, text: &str, note: &str, is_focused: bool) -> Rect {
    let room = usize::from(area.width).saturating_sub(width(note) + 1);
    let text = cut(text, room);
    let gap = " ".repeat((usize::from(area.width)).saturating_sub(width(&text) + width(note)));
    put(buffer, area, 0, &format!("{text}{gap}{note}"), if is_focused { BOLD.patch(REVERSED) } else { BOLD });
    Rect { y: area.y + 1.min(area.height), height: area.height.saturating_sub(1), ..area }
}

fn draw_list(buffer: &mut Buffer, area: Rect, state: &mut State, theme: Theme, now: Timestamp) {
    let is_focused = state.focus == Focus::List;
    let title = match &state.history {
        Some(history) => format!("History of {}", shown(&history.path, &here())),
        None if state.filter.text.is_empty() => state.title.clone(),
        None => format!("/{}  {}", quoted(state.filter.text.as_bytes()), state.title),
    };
    let (marked, is_of_log, is_searching) =
        (state.marked.clone(), state.history.is_none(), state.filter.left > 0);
    let Some(listing) = state.listing_mut() else {
        let area = put_title(buffer, area, &title, "", is_focused);
        put(buffer, area, 0, "searching", Style::new());
        return;
    };
    let place = if listing.chosen.is_empty() { 0 } else { listing.scroll.at + 1 };
    let note = format!("{place}/{}", listing.chosen.len());
    let area = put_title(buffer, area, &title, &note, is_focused);
    if listing.chosen.is_empty() {
        let nothing = match listing.rows.is_empty() {
            true if is_of_log => "nothing was recorded here (--all lists what was recorded elsewhere)",
            true => "no recording in the library has changed it",
            false if is_searching => "searching",
            false => "no recording has this text in its command or its paths",
        };
        for (line, text) in wrap(nothing, area.width.into()).iter().enumerate() {
            put(buffer, area, line, text, Style::new());
        }
        return;
    }
    listing.scroll.fit(area.height.into(), listing.chosen.len());
    let Scroll { at, top, .. } = listing.scroll;
    let rows: Vec<&Row> =
        listing.chosen.iter().skip(top).take(area.height.into()).map(|n| &listing.rows[*n]).collect();
    let columns = Columns::of(&rows, area.width);
    for (line, row) in rows.iter().enumerate() {
        let is_selected = top + line == at;
        let pointer = if is_selected { '>' } else { ' ' };
        let mark = if marked.contains(&row.entry.id) { '*' } else { ' ' };
        let text = format!("{pointer}{mark}{}", columns.row(row, now));
        let marks = marks(&row.entry, row.undone);
        let command_room = usize::from(area.width).saturating_sub(width(&text) + width(&marks));
        let style = if is_selected && is_focused { REVERSED } else { Style::new() };
        let text = format!("{text}{}", cut(&row.command, command_room));
        put(buffer, area, line, &format!("{text}{marks}"), style);
        let end = area.x + u16::try_from(width(&text)).unwrap_or(area.width).min(area.width);
        let rest = Rect {
            x: end,
            y: area.y + u16::try_from(line).unwrap_or(0),
            width: area.right() - end,
            height: 1,
        };
        if style == Style::new() {
            buffer.set_style(rest, theme.of(LineKind::Note));
        }
        if mark == '*' || is_selected {
            buffer.set_style(Rect { width: area.width, x: area.x, ..rest }, BOLD);
        }
    }
}

/// The columns of the list, as wide as what is shown needs.
struct Columns {
    has_ids: bool,
    status: usize,
    counts: usize,
}

impl Columns {
    fn of(rows: &[&Row], area: u16) -> Columns {
        let status = rows.iter().filter(|row| row.entry.status != 0);
        Columns {
            has_ids: area >= WITH_IDS,
            status: status.map(|row| row.entry.status.to_string().len() + 1).max().unwrap_or(0),
            counts: rows.iter().map(|row| counts(row.entry.changes()).len()).max().unwrap_or(0).min(14),
        }
    }

    fn row(&self, row: &Row, now: Timestamp) -> String {
        let entry = &row.entry;
        let id = if self.has_ids { format!("{} ", entry.id) } else { String::new() };
        // A status of 0 is not worth a place.
        let status = if entry.status == 0 { String::new() } else { entry.status.to_string() };
        let (status_width, counts_width) = (self.status, self.counts);
        let counts = cut(&counts(entry.changes()), counts_width);
        format!("{id}{:>3}{status:>status_width$} {counts:counts_width$} ", age(entry, now))
    }
}

fn draw_detail(buffer: &mut Buffer, area: Rect, state: &mut State, theme: Theme) {
    let is_focused = state.focus == Focus::Detail;
    let Some(row) = state.selected().cloned() else {
        put_title(buffer, area, "", "", is_focused);
        return;
    };
    let entry = &row.entry;
    let marks = marks(entry, row.undone);
    let status = match entry.state {
        EntryState::Running => String::new(),
        _ => format!("  exit {}", entry.status),
    };
    let title = format!("{}{status}{marks}", entry.id);
    let lines = state.detail_length();
    let note = if lines == 0 { String::new() } else { format!("{}/{lines}", state.scroll.at + 1) };
    let area = put_title(buffer, area, &title, &note, is_focused);
    let mut facts = wrap(&row.command, area.width.into());
    if area.height >= ROOMY {
        if facts.len() > 3 {
            facts.truncate(3);
            facts[2] = cut(&format!("{} …", facts[2]), area.width.into());
        }
        facts.push(format!("in {}", quoted(&entry.cwd.0)));
        facts.push(moment(&entry.time));
        let session = entry.session.as_ref().map(|session| format!("session {}", quoted(session.as_bytes())));
        facts.extend(entry.name.as_ref().map(|name| format!("name {}", quoted(name.as_bytes()))));
        facts.extend(session);
        facts.push("─".repeat(area.width.into()));
    } else {
        facts = vec![row.command.clone()];
    }
    for (line, text) in facts.iter().enumerate() {
        put(buffer, area, line, text, Style::new());
    }
    let above = u16::try_from(facts.len()).unwrap_or(area.height).min(area.height);
    let area = Rect { y: area.y + above, height: area.height - above, ..area };
    let detail = match &state.detail {
        Some(Ok(detail)) => detail,
        Some(Err(why)) => {
            for (line, text) in wrap(why, area.width.into()).iter().enumerate() {
                put(buffer, area, line, text, theme.of(LineKind::Note));
            }
            return;
        }
        None => return put(buffer, area, 0, "loading", Style::new()),
    };
    state.scroll.fit(area.height.into(), detail.lines.len());
    let Scroll { at, top, .. } = state.scroll;
    for (line, Line { kind, text }) in detail.lines.iter().skip(top).take(area.height.into()).enumerate() {
        let is_at_cursor = is_focused && top + line == at;
        let pointer = if is_at_cursor { '>' } else { ' ' };
        let style = if is_at_cursor { theme.of(*kind).patch(REVERSED) } else { theme.of(*kind) };
        put(buffer, area, line, &format!("{pointer}{}", from_column(text, state.column)), style);
    }
}

fn draw_dialog(buffer: &mut Buffer, area: Rect, state: &mut State, theme: Theme) {
    let (title, lines, scroll) = match &mut state.dialog {
        Some(Dialog::Help(scroll)) => ("Keys".to_owned(), help(area.width), scroll),
        Some(Dialog::Undo { request, report, scroll }) => {
            let verb = if request.is_redo { "Redo" } else { "Undo" };
            let options = [
                (request.force, "overwriting what has changed since"),
                (request.skip_conflicts, "leaving what has changed since"),
                (request.no_git, "leaving Git's state"),
                (request.with_later, "with what came later"),
            ];
            let options: Vec<&str> =
                options.iter().filter(|(is_on, _)| *is_on).map(|(_, text)| *text).collect();
            let what = match request.ids.len() {
                0 => "what was undone last".to_owned(),
                count => counted(count, "recording", "recordings"),
            };
            let comma = if options.is_empty() { "" } else { ", " };
            let title = format!("{verb} {what}{comma}{}", options.join(", "));
            let lines = match report {
                None if request.is_plan() => {
                    vec![Line::new(LineKind::Plain, "working out what that would change")]
                }
                None => vec![Line::new(LineKind::Plain, "in progress: wait until it is done")],
                Some(Err(why)) => vec![Line::new(LineKind::Note, why.clone())],
                Some(Ok(report)) => report.lines.clone(),
            };
            (title, lines, scroll)
        }
        None => return,
    };
    let area = put_title(buffer, area, &title, "", true);
    let lines: Vec<Line> = lines
        .iter()
        .flat_map(|line| {
            wrap(&line.text, area.width.into()).into_iter().map(|text| Line::new(line.kind, text))
        })
        .collect();
    scroll.height = area.height.into();
    scroll.at = scroll.at.min(lines.len().saturating_sub(scroll.height));
    scroll.top = scroll.at;
    for (line, Line { kind, text }) in lines.iter().skip(scroll.top).take(scroll.height).enumerate() {
        put(buffer, area, line, text, theme.of(*kind));
    }
    let below = lines.len().saturating_sub(scroll.top + scroll.height);
    if below > 0 {
        let last = scroll.height.saturating_sub(1);
        put(buffer, area, last, &format!("{} more lines below", below + 1), BOLD);
    }
}

fn help(columns: u16) -> Vec<Line> {
    let keys = KEYS.iter().map(|(keys, _)| width(keys)).max().unwrap_or(0);
    let room = usize::from(columns).saturating_sub(keys + 2).max(10);
    let mut lines = Vec::new();
    for (key, text) in KEYS {
        let mut key = *key;
        for text in wrap(text, room) {
            lines.push(Line::new(LineKind::Plain, format!("{key:keys$}  {text}")));
            key = "";
        }
    }
    lines
}

fn draw_status(buffer: &mut Buffer, area: Rect, state: &State) {
    let hints: &[&str] = match &state.dialog {
        _ if state.filter.is_edited => {
            let left = match state.filter.left {
                0 => String::new(),
                left => format!("  (searching the paths of {left} more)"),
            };
            let typed = format!("/{}", quoted(state.filter.text.as_bytes()));
            let typed = if state.filter.text.is_empty() { "/" } else { &typed };
            put(buffer, area, 0, &format!("{typed}_{left}"), BOLD);
            return;
        }
        Some(Dialog::Help(_)) => &["Esc back", "j k scroll"],
        Some(Dialog::Undo { request, report: Some(Ok(report)), .. }) => {
            match (report.is_done, report.can_be_done) {
                (true, _) => &["Enter close"],
                (false, true) if request.is_redo => &["y redo", "Esc cancel", "j k scroll"],
                (false, true) => &["y undo", "Esc cancel", "w with later ones", "j k scroll"],
                (false, false) if !report.has_conflicts => &["Esc cancel"],
                (false, false) if request.is_redo => {
                    &["Esc cancel", "f overwrite", "s leave them", "g leave Git's state"]
                }
                (false, false) => {
                    &["Esc cancel", "f overwrite", "s leave them", "w with later ones", "g leave Git's state"]
                }
            }
        }
        Some(Dialog::Undo { .. }) if state.is_applying() => &[],
        Some(Dialog::Undo { .. }) => &["Esc cancel"],
        None if state.history.is_some() => {
            &["? help", "Esc back", "j k other version", "Tab diff", "u undo", "Space mark"]
        }
        None => &["? help", "q quit", "Tab diff", "u undo", "Space mark", "/ filter", "h history", "r redo"],
    };
    let notice = state.notice.clone().or_else(|| {
        let marked = (!state.marked.is_empty() && state.dialog.is_none())
            .then(|| format!("{} marked", state.marked.len()));
        let searching = (state.filter.left > 0).then(|| format!("searching {} more", state.filter.left));
        marked.or(searching)
    });
    let mut text = notice.unwrap_or_default();
    for hint in hints {
        let gap = if text.is_empty() { "" } else { "  " };
        if width(&text) + gap.len() + width(hint) <= area.width.into() {
            text = format!("{text}{gap}{hint}");
        }
    }
    put(buffer, area, 0, &text, Style::new());
}
