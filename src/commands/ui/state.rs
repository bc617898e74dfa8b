//! What is shown and selected, and what a key does to it.
//!
//! Pure: a key or an answer changes the [`State`] and yields [`Effect`]s, which the runner performs. `view.rs` draws it,
//! `worker.rs` gives the answers, `listing.rs` has the lists.

use std::collections::{BTreeSet, HashSet};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::detail::Detail;
use super::listing::{Listing, Row, Scroll};
use super::undoing::{UndoReport, UndoRequest};

/// The shortest text that is searched for in paths.
const SHORTEST_PATH_TEXT: usize = 2;
/// How many columns a step to the side is.
const SIDEWAYS: usize = 8;

/// What the runner is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// End.
    Quit,
    /// Stop this process, as Ctrl-Z does.
    Suspend,
    /// Draw all again, since others have written to the terminal.
    Redraw,
    /// Read the log again.
    Reload,
    /// Load what a recording did.
    Show(DetailKey),
    /// Search for a text in the paths that recordings changed.
    Search(Search),
    /// Find the recordings that changed a path.
    History(Vec<u8>),
    /// Plan, or do, an undo or redo.
    Undo(UndoRequest),
}

/// What the pane of the diff shows: what a recording did, or did to one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetailKey {
    /// The recording.
    pub id: String,
    /// The only path that is of interest.
    pub path: Option<Vec<u8>>,
}

/// A search for a text in the paths that these recordings changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The text, in lower case.
    pub text: String,
    /// The recordings, the newest first.
    pub ids: Vec<String>,
}

/// What the worker has found out.
pub enum Answer {
    /// The recordings, the newest first.
    Log(Result<Vec<Row>, String>),
    /// What a recording did.
    Detail(DetailKey, Result<Detail, String>),
    /// Of the recordings that were searched for `text`, those that changed a path with it.
    Found { text: String, searched: Vec<String>, found: Vec<String> },
    /// The recordings that changed a path, the newest first.
    History(Vec<u8>, Result<Vec<Row>, String>),
    /// What came of an undo or redo, or would.
    Undo(UndoRequest, Result<UndoReport, String>),
}

/// The pane that keys go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Focus {
    List,
    Detail,
}

/// The text that recordings are chosen by.
#[derive(Debug, Default)]
pub struct Filter {
    /// The text; all recordings are chosen if it is empty.
    pub text: String,
    /// Whether keys are added to it.
    pub is_edited: bool,
    /// The recordings whose paths were searched.
    searched: HashSet<String>,
    /// Those of them that changed a path with the text.
    found: HashSet<String>,
    /// How many recordings' paths are still to be searched.
    pub left: usize,
}

/// The recordings that changed a path.
pub struct FileHistory {
    /// The path.
    pub path: Vec<u8>,
    /// None as long as they are being looked for.
    pub listing: Option<Listing>,
    /// The recording that was selected when it was asked for.
    from: Option<String>,
}

/// What is shown in place of the panes.
pub enum Dialog {
    /// The keys.
    Help(Scroll),
    /// An undo or redo.
    Undo {
        request: UndoRequest,
        /// None as long as it is being worked out, or done.
        report: Option<Result<UndoReport, String>>,
        scroll: Scroll,
    },
}

/// What is shown and selected.
pub struct State {
    /// Where the recordings are from, for the title.
    pub title: String,
    /// The recordings.
    pub log: Listing,
    /// The recordings that changed a path, if that is shown.
    pub history: Option<FileHistory>,
    /// The identifiers of the marked recordings.
    pub marked: BTreeSet<String>,
    /// What the recordings are chosen by.
    pub filter: Filter,
    /// The pane that keys go to.
    pub focus: Focus,
    /// What the pane of the diff is to show.
    pub key: Option<DetailKey>,
    /// What it shows; none as long as it is being loaded.
    pub detail: Option<Result<Detail, String>>,
    /// Where in it.
    pub scroll: Scroll,
    /// The first column of it.
    pub column: usize,
    /// What is shown in place of the panes.
    pub dialog: Option<Dialog>,
    /// A message, until the next key.
    pub notice: Option<String>,
    /// Whether the log that comes next was asked for.
    is_reloading: bool,
}

impl State {
    /// The first state, and what it takes to show it.
    pub fn new(title: String, rows: Vec<Row>) -> (State, Vec<Effect>) {
        let mut state = State {
            title,
            log: Listing::new(rows),
            history: None,
            marked: BTreeSet::new(),
            filter: Filter::default(),
            focus: Focus::List,
            key: None,
            detail: None,
            scroll: Scroll::default(),
            column: 0,
            dialog: None,
            notice: None,
            is_reloading: false,
        };
        let effects = state.show_selected();
        (state, effects.into_iter().collect())
    }

    /// The list that is shown; none as long as it is being looked for.
    pub fn listing(&self) -> Option<&Listing> {
        match &self.history {
            Some(history) => history.listing.as_ref(),
            None => Some(&self.log),
        }
    }

    /// The same, to be changed.
    pub fn listing_mut(&mut self) -> Option<&mut Listing> {
        match &mut self.history {
            Some(history) => history.listing.as_mut(),
            None => Some(&mut self.log),
        }
    }

    /// The selected recording.
    pub fn selected(&self) -> Option<&Row> {
        self.listing()?.selected()
    }

    /// Whether an undo or redo is being done, which is not to be left.
    pub fn is_applying(&self) -> bool {
        matches!(&self.dialog, Some(Dialog::Undo { request, report: None, .. }) if !request.is_plan())
    }

    /// The path whose diff the cursor is in.
    pub fn path_at_cursor(&self) -> Option<&[u8]> {
        self.detail.as_ref()?.as_ref().ok()?.path_at(self.scroll.at)
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        self.notice = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') if !self.is_applying() => return vec![Effect::Quit],
                KeyCode::Char('z') => return vec![Effect::Suspend],
                KeyCode::Char('l') => return vec![Effect::Redraw],
                KeyCode::Char('u') if self.filter.is_edited => self.filter.text.clear(),
                _ => return Vec::new(),
            }
            return self.filter_changed();
        }
        if self.dialog.is_some() {
            return self.dialog_key(key.code);
        }
        if self.filter.is_edited {
            return self.filter_key(key.code);
        }
        let mut effects = self.pane_key(key.code);
        effects.extend(self.show_selected());
        effects
    }

    fn pane_key(&mut self, code: KeyCode) -> Vec<Effect> {
        match code {
            KeyCode::Char('q') => return vec![Effect::Quit],
            KeyCode::Char('?') => self.dialog = Some(Dialog::Help(Scroll::default())),
            KeyCode::Esc => return self.leave(),
            KeyCode::Tab | KeyCode::Enter => {
                self.focus = if self.focus == Focus::List { Focus::Detail } else { Focus::List };
            }
            KeyCode::Char('/') if self.history.is_none() => {
                self.filter.is_edited = true;
                self.focus = Focus::List;
            }
            KeyCode::Char(' ') => self.mark(),
            KeyCode::Char('u') => return self.undo(),
            KeyCode::Char('r') => return self.redo(),
            KeyCode::Char('h') => return self.enter_history(),
            KeyCode::Char('R') => {
                self.is_reloading = true;
                return vec![Effect::Reload];
            }
            KeyCode::Char(']') => self.go_to_file(true),
            KeyCode::Char('[') => self.go_to_file(false),
            KeyCode::Right => self.column += SIDEWAYS,
            KeyCode::Left => self.column = self.column.saturating_sub(SIDEWAYS),
            code => {
                let lines = self.detail_length();
                match self.focus {
                    Focus::Detail => drop(self.scroll.key(code, lines)),
                    Focus::List => {
                        if let Some(listing) = self.listing_mut() {
                            listing.key(code);
                        }
                    }
                }
            }
        }
        Vec::new()
    }

    /// How many lines the pane of the diff has.
    pub fn detail_length(&self) -> usize {
        self.detail.as_ref().and_then(|detail| detail.as_ref().ok()).map_or(0, |detail| detail.lines.len())
    }

    /// Takes back the innermost of what was entered, chosen or marked.
    fn leave(&mut self) -> Vec<Effect> {
        if self.focus == Focus::Detail {
            self.focus = Focus::List;
        } else if let Some(history) = self.history.take() {
            self.log.select(history.from.as_deref());
        } else if !self.filter.text.is_empty() {
            self.filter.text.clear();
            return self.filter_changed();
        } else {
            self.marked.clear();
        }
        Vec::new()
    }

    fn mark(&mut self) {
        let Some(id) = self.selected().map(|row| row.entry.id.clone()) else { return };
        if !self.marked.remove(&id) {
            self.marked.insert(id);
        }
        if self.focus == Focus::List
            && let Some(listing) = self.listing_mut()
        {
            listing.key(KeyCode::Down);
        }
    }

    fn undo(&mut self) -> Vec<Effect> {
        let ids = match self.selected() {
            _ if !self.marked.is_empty() => self.marked.iter().cloned().collect(),
            Some(row) => vec![row.entry.id.clone()],
            None => return Vec::new(),
        };
        self.plan(UndoRequest { ids, ..UndoRequest::default() })
    }

    fn redo(&mut self) -> Vec<Effect> {
        let selected = self.selected().filter(|row| row.undone.is_some());
        let ids = selected.map(|row| row.entry.id.clone()).into_iter().collect();
        self.plan(UndoRequest { ids, is_redo: true, ..UndoRequest::default() })
    }

    fn plan(&mut self, request: UndoRequest) -> Vec<Effect> {
        let scroll = Scroll::default();
        self.dialog = Some(Dialog::Undo { request: request.clone(), report: None, scroll });
        vec![Effect::Undo(request)]
    }

    fn enter_history(&mut self) -> Vec<Effect> {
        if self.history.is_some() {
            return Vec::new();
        }
        let Some(path) = self.path_at_cursor().map(<[u8]>::to_vec) else {
            self.notice = Some("no file is selected in the diff".to_owned());
            return Vec::new();
        };
        let from = self.selected().map(|row| row.entry.id.clone());
        self.history = Some(FileHistory { path: path.clone(), listing: None, from });
        self.focus = Focus::List;
        vec![Effect::History(path)]
    }

    fn go_to_file(&mut self, is_next: bool) {
        let Some(Ok(detail)) = &self.detail else { return };
        let mut starts = detail.files.iter().map(|(line, _)| *line);
        let found = match is_next {
            true => starts.find(|line| *line > self.scroll.at),
            false => starts.rfind(|line| *line < self.scroll.at),
        };
        if let Some(line) = found {
            // At the top, so that what follows is seen.
            self.scroll.at = line;
            self.scroll.top = line;
        }
    }

    fn filter_key(&mut self, code: KeyCode) -> Vec<Effect> {
        match code {
            KeyCode::Esc => {
                self.filter.text.clear();
                self.filter.is_edited = false;
            }
            KeyCode::Enter | KeyCode::Tab => {
                self.filter.is_edited = false;
                return Vec::new();
            }
            KeyCode::Backspace if self.filter.text.is_empty() => self.filter.is_edited = false,
            KeyCode::Backspace => drop(self.filter.text.pop()),
            KeyCode::Char(char) => self.filter.text.push(char),
            code => {
                self.log.key(code);
                return self.show_selected().into_iter().collect();
            }
        }
        self.filter_changed()
    }

    fn filter_changed(&mut self) -> Vec<Effect> {
        self.filter.searched.clear();
        self.filter.found.clear();
        self.choose();
        self.search().into_iter().chain(self.show_selected()).collect()
    }

    /// Chooses the recordings by the filter.
    fn choose(&mut self) {
        let (text, found) = (self.filter.text.to_lowercase(), &self.filter.found);
        self.log.choose(|row| text.is_empty() || row.contains(&text) || found.contains(&row.entry.id));
    }

    /// The search for what the commands do not tell, and was not searched yet; an empty one ends another.
    fn search(&mut self) -> Option<Effect> {
        let text = self.filter.text.to_lowercase();
        let is_due = |row: &&Row| {
            row.entry.changes().any() && !row.contains(&text) && !self.filter.searched.contains(&row.entry.id)
        };
        let ids: Vec<String> = match text.chars().count() < SHORTEST_PATH_TEXT {
            true => Vec::new(),
            false => self.log.rows.iter().filter(is_due).map(|row| row.entry.id.clone()).collect(),
        };
        let is_searching = self.filter.left > 0;
        self.filter.left = ids.len();
        (is_searching || !ids.is_empty()).then_some(Effect::Search(Search { text, ids }))
    }

    fn dialog_key(&mut self, code: KeyCode) -> Vec<Effect> {
        if self.is_applying() {
            return Vec::new();
        }
        let Some(dialog) = &mut self.dialog else { return Vec::new() };
        match dialog {
            Dialog::Help(scroll) => {
                if matches!(code, KeyCode::Esc | KeyCode::Char('q' | '?')) {
                    self.dialog = None;
                } else {
                    // The view knows how long it is.
                    scroll.key(code, usize::MAX);
                }
                Vec::new()
            }
            Dialog::Undo { request, report, scroll } => {
                let is_done = matches!(report, Some(Ok(report)) if report.is_done);
                let mut next = request.clone();
                match (code, report.as_ref()) {
                    (KeyCode::Esc | KeyCode::Char('q' | 'n'), _) => {
                        self.dialog = None;
                        return Vec::new();
                    }
                    (KeyCode::Enter, Some(_)) if is_done => {
                        self.dialog = None;
                        return Vec::new();
                    }
                    (KeyCode::Char('y'), Some(Ok(report))) if report.can_be_done => {
                        next.agreed = Some(report.digest.clone());
                    }
                    (KeyCode::Char('f'), Some(Ok(_))) if !is_done => {
                        next.force = !next.force;
                        next.skip_conflicts = false;
                    }
                    (KeyCode::Char('s'), Some(Ok(_))) if !is_done => {
                        next.skip_conflicts = !next.skip_conflicts;
                        next.force = false;
                    }
                    (KeyCode::Char('g'), Some(Ok(_))) if !is_done => next.no_git = !next.no_git,
                    (KeyCode::Char('w'), Some(Ok(_))) if !is_done && !next.is_redo => {
                        next.with_later = !next.with_later;
                    }
                    (code, _) => {
                        scroll.key(code, usize::MAX);
                        return Vec::new();
                    }
                }
                self.plan(next)
            }
        }
    }

    /// Asks for what the selected recording did, unless it is shown.
    fn show_selected(&mut self) -> Option<Effect> {
        let path = self.history.as_ref().map(|history| history.path.clone());
        let key = self.selected().map(|row| DetailKey { id: row.entry.id.clone(), path });
        if key == self.key {
            return None;
        }
        self.key.clone_from(&key);
        self.detail = None;
        self.scroll = Scroll { height: self.scroll.height, ..Scroll::default() };
        self.column = 0;
        key.map(Effect::Show)
    }

    /// Takes in what the worker has found out.
    pub fn answer(&mut self, answer: Answer) -> Vec<Effect> {
        match answer {
            Answer::Log(Ok(rows)) => self.take_log(rows),
            Answer::Log(Err(why)) => {
                self.notice = Some(why);
                Vec::new()
            }
            Answer::Detail(key, detail) => {
                if self.key.as_ref() == Some(&key) {
                    self.detail = Some(detail);
                }
                Vec::new()
            }
            Answer::Found { text, searched, found } => {
                if self.filter.text.to_lowercase() == text {
                    self.filter.left = self.filter.left.saturating_sub(searched.len());
                    self.filter.searched.extend(searched);
                    if !found.is_empty() {
                        self.filter.found.extend(found);
                        self.choose();
                    }
                }
                self.show_selected().into_iter().collect()
            }
            Answer::History(path, rows) => {
                match (&mut self.history, rows) {
                    (Some(FileHistory { path: shown, listing, from }), Ok(rows)) if *shown == path => {
                        match listing {
                            Some(listing) => listing.replace(rows),
                            None => listing.insert(Listing::new(rows)).select(from.as_deref()),
                        }
                    }
                    (Some(history), Err(why)) if history.path == path => {
                        self.history = None;
                        self.notice = Some(why);
                    }
                    _ => {}
                }
                self.show_selected().into_iter().collect()
            }
            Answer::Undo(request, report) => self.take_report(&request, report),
        }
    }

    fn take_log(&mut self, rows: Vec<Row>) -> Vec<Effect> {
        if std::mem::take(&mut self.is_reloading) {
            self.notice = Some(match rows.len().saturating_sub(self.log.rows.len()) {
                0 => "there is nothing new".to_owned(),
                1 => "1 new recording".to_owned(),
                new => format!("{new} new recordings"),
            });
        }
        let of_history = self.history.as_ref().and_then(|history| history.listing.as_ref());
        let all = rows.iter().chain(of_history.into_iter().flat_map(|listing| &listing.rows));
        let there: HashSet<&str> = all.map(|row| row.entry.id.as_str()).collect();
        self.marked.retain(|id| there.contains(id.as_str()));
        // A recording that ran has more to show when it has ended.
        let is_other = |old: &Row| {
            rows.iter().any(|row| row.entry.id == old.entry.id && row.entry.state != old.entry.state)
        };
        let selected = self.log.selected();
        if self.history.is_none() && selected.is_some_and(is_other) {
            self.key = None;
        }
        let history = self.history.as_ref().map(|history| Effect::History(history.path.clone()));
        self.log.replace(rows);
        self.choose();
        history.into_iter().chain(self.search()).chain(self.show_selected()).collect()
    }

    fn take_report(&mut self, asked: &UndoRequest, report: Result<UndoReport, String>) -> Vec<Effect> {
        let Some(Dialog::Undo { request, report: shown, .. }) = &mut self.dialog else { return Vec::new() };
        if request != asked {
            return Vec::new();
        }
        if asked.is_plan() {
            *shown = Some(report);
            return Vec::new();
        }
        match report {
            Ok(UndoReport { summary, is_plain: true, .. }) => {
                self.notice = Some(summary);
                self.dialog = None;
                self.marked.clear();
            }
            report => {
                // A plan that differs from the confirmed one is to be confirmed itself.
                if report.as_ref().is_ok_and(|report| !report.is_done) {
                    *request = asked.plan();
                }
                *shown = Some(report);
            }
        }
        vec![Effect::Reload]
    }
}
