//! A list of recordings of which some are chosen and one is selected, and where it is scrolled to.

use ratatui::crossterm::event::KeyCode;

use crate::library::Entry;

/// A recording that is listed.
#[derive(Debug, Clone)]
pub struct Row {
    /// What the log says of it.
    pub entry: Entry,
    /// Its command in one line, escaped.
    pub command: String,
    /// Whether it is undone, or partly, in words.
    pub undone: Option<&'static str>,
}

impl Row {
    /// Whether the command, or the identifier, has a text, which is in lower case.
    pub fn contains(&self, text: &str) -> bool {
        self.command.to_lowercase().contains(text) || self.entry.id.starts_with(text)
    }
}

/// A cursor in lines of which some are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scroll {
    /// The line of the cursor.
    pub at: usize,
    /// The first line that is shown.
    pub top: usize,
    /// How many lines are shown: the view sets it.
    pub height: usize,
}

impl Scroll {
    /// Moves the cursor in `length` lines; whether the key does that.
    pub fn key(&mut self, code: KeyCode, length: usize) -> bool {
        let (last, page) = (length.saturating_sub(1), self.height.saturating_sub(1).max(1));
        let at = match code {
            KeyCode::Down | KeyCode::Char('j') => self.at.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.at.saturating_sub(1),
            KeyCode::PageDown => self.at.saturating_add(page),
            KeyCode::PageUp => self.at.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            _ => return false,
        };
        self.at = at.min(last);
        true
    }

    /// Shows `height` of `length` lines, among them that of the cursor.
    pub fn fit(&mut self, height: usize, length: usize) {
        self.height = height;
        self.at = self.at.min(length.saturating_sub(1));
        let lowest = (self.at + 1).saturating_sub(height);
        // No empty lines at the end as long as there are lines above.
        self.top = self.top.min(length.saturating_sub(height)).clamp(lowest, self.at.max(lowest));
    }
}

/// Recordings, the newest first.
#[derive(Debug, Default)]
pub struct Listing {
    /// All of them.
    pub rows: Vec<Row>,
    /// The numbers of those that are chosen.
    pub chosen: Vec<usize>,
    /// The selected one among these.
    pub scroll: Scroll,
}

impl Listing {
    /// All are chosen, and the first one is selected.
    pub fn new(rows: Vec<Row>) -> Listing {
        Listing { chosen: (0..rows.len()).collect(), rows, scroll: Scroll::default() }
    }

    /// The selected recording.
    pub fn selected(&self) -> Option<&Row> {
        self.rows.get(*self.chosen.get(self.scroll.at)?)
    }

    /// Selects a recording, if it is chosen.
    pub fn select(&mut self, id: Option<&str>) {
        let is_it =
            |number: &usize| self.rows.get(*number).is_some_and(|row| Some(row.entry.id.as_str()) == id);
        if let Some(at) = self.chosen.iter().position(is_it) {
            self.scroll.at = at;
        }
    }

    /// Chooses anew; the selected recording stays selected if it is chosen.
    pub fn choose(&mut self, is_chosen: impl Fn(&Row) -> bool) {
        self.keep_selected(|list| {
            list.chosen = (0..list.rows.len()).filter(|number| is_chosen(&list.rows[*number])).collect();
        });
    }

    /// Takes other recordings in place of these, of which all are chosen; the selected one stays selected.
    pub fn replace(&mut self, rows: Vec<Row>) {
        self.keep_selected(|list| {
            list.chosen = (0..rows.len()).collect();
            list.rows = rows;
        });
    }

    /// Makes a change that leaves the selected recording selected, if it is chosen still, and in its line of the screen.
    fn keep_selected(&mut self, change: impl FnOnce(&mut Listing)) {
        let selected = self.selected().map(|row| row.entry.id.clone());
        let from_top = self.scroll.at.saturating_sub(self.scroll.top);
        change(self);
        self.scroll.at = self.scroll.at.min(self.chosen.len().saturating_sub(1));
        self.select(selected.as_deref());
        self.scroll.top = self.scroll.at.saturating_sub(from_top);
    }

    /// Moves the selection; whether the key does that.
    pub fn key(&mut self, code: KeyCode) -> bool {
        self.scroll.key(code, self.chosen.len())
    }
}
