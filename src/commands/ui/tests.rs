//! Keys and answers in, effects and screens out; no terminal, and no library but where a bundle is read.

use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::detail::{Detail, Line, LineKind};
use super::listing::Row;
use super::state::{Answer, DetailKey, Effect, Search, State};
use super::undoing::{UndoReport, UndoRequest};
use super::view::{Theme, draw};
use crate::commands::testing::BundleTrees;
use crate::library::Entry;
use crate::library::log::{ByteText, Changes};
use crate::snapshot::Snapshot;
use crate::snapshot::samples::header;

fn row(id: &str, minutes_ago: i64, command: &str, changes: (u64, u64, u64)) -> Row {
    let mut entry = Entry::new(&header(), Changes::default());
    entry.id = id.to_owned();
    entry.time = (now() - jiff::SignedDuration::from_mins(minutes_ago)).to_string();
    entry.cwd = ByteText(b"/home/me/demo".to_vec());
    entry.status = 0;
    (entry.created, entry.changed, entry.deleted) = changes;
    Row { entry, command: command.to_owned(), undone: None }
}

fn now() -> Timestamp {
    "2026-11-26T12:00:00Z".parse().unwrap()
}

/// Three recordings, of which the first one is selected and shown.
fn three() -> State {
    let mut failed = row("bbbbbbbb", 12, "make install", (0, 0, 0));
    failed.entry.status = 2;
    let undone = Row { undone: Some("undone"), ..row("cccccccc", 200, "rm -rf src", (0, 0, 3)) };
    let rows = vec![row("aaaaaaaa", 3, "./tidy.sh --all", (2, 1, 4)), failed, undone];
    let (mut state, effects) = State::new("Recordings in /home/me/demo".to_owned(), rows);
    assert_eq!(effects, [show("aaaaaaaa", None)]);
    answer_detail(&mut state, "aaaaaaaa", None);
    state
}

fn show(id: &str, path: Option<&[u8]>) -> Effect {
    Effect::Show(DetailKey { id: id.to_owned(), path: path.map(<[u8]>::to_vec) })
}

fn answer_detail(state: &mut State, id: &str, path: Option<&[u8]>) {
    let line = |kind, text: &str| Line::new(kind, text);
    let lines = vec![
        line(LineKind::Heading, "changed Makefile  +1 -1"),
        line(LineKind::Hunk, "@@ -1,2 +1,2 @@"),
        line(LineKind::Plain, " all: hello"),
        line(LineKind::Removed, "-clean:"),
        line(LineKind::Added, "+clean: ; rm -f hello"),
        line(LineKind::Plain, ""),
        line(LineKind::Heading, "created build/stamp"),
    ];
    let files = vec![(0, b"/home/me/demo/Makefile".to_vec()), (6, b"/home/me/demo/build/stamp".to_vec())];
    let key = DetailKey { id: id.to_owned(), path: path.map(<[u8]>::to_vec) };
    assert_eq!(state.answer(Answer::Detail(key, Ok(Detail { lines, files }))), []);
}

fn press(state: &mut State, keys: &str) -> Vec<Effect> {
    let code = |key| match key {
        '\t' => KeyCode::Tab,
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\x7f' => KeyCode::Backspace,
        key => KeyCode::Char(key),
    };
    let keys = keys.chars().map(|key| KeyEvent::new(code(key), KeyModifiers::NONE));
    keys.flat_map(|key| state.key(key)).collect()
}

fn drawn(state: &mut State, (width, height): (u16, u16), has_colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, Theme { has_colour }, now())).unwrap();
    terminal.backend().buffer().clone()
}

/// The screen as text, without the spaces at the ends of lines.
fn screen(state: &mut State, size: (u16, u16)) -> String {
    let buffer = drawn(state, size, false);
    let lines = buffer.content.chunks(size.0.into()).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn eighty_columns_show_the_list_and_the_diff() {
    let mut state = three();
    let expected = "\
Recordings in /home/me/demo      1/3│aaaaaaaa  exit 0                        1/7
>  3m   +2 ~1 -4 ./tidy.sh --all    │./tidy.sh --all
  12m 2          make install       │in /home/me/demo
   3h   -3       rm -rf s…  (undone)│2026-11-26 11:57:00 UTC
                                    │───────────────────────────────────────────
                                    │ changed Makefile  +1 -1
                                    │ @@ -1,2 +1,2 @@
                                    │  all: hello
                                    │ -clean:
                                    │ +clean: ; rm -f hello
                                    │
                                    │ created build/stamp
                                    │
                                    │
                                    │
? help  q quit  Tab diff  u undo  Space mark  / filter  h history  r redo";
    assert_eq!(screen(&mut state, (80, 16)), expected);
}

#[test]
fn forty_columns_show_one_pane() {
    let mut state = three();
    press(&mut state, " ");
    let expected = "\
Recordings in /home/me/demo          2/3
 * 3m   +2 ~1 -4 ./tidy.sh --all
> 12m 2          make install
   3h   -3       rm -rf src  (undone)





1 marked  ? help  q quit  Tab diff";
    assert_eq!(screen(&mut state, (40, 10)), expected);
    press(&mut state, "k\t");
    answer_detail(&mut state, "aaaaaaaa", None);
    press(&mut state, "j");
    let expected = "\
aaaaaaaa  exit 0                     2/7
./tidy.sh --all
 changed Makefile  +1 -1
>@@ -1,2 +1,2 @@
  all: hello
 -clean:
 +clean: ; rm -f hello

 created build/stamp
1 marked  ? help  q quit  Tab diff";
    assert_eq!(screen(&mut state, (40, 10)), expected);
}

#[test]
fn without_colour_the_selection_is_reversed_and_nothing_else_has_a_colour() {
    let mut state = three();
    let plain = drawn(&mut state, (80, 24), false);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(plain[(2, 1)].modifier.contains(Modifier::REVERSED));
    assert!(!plain[(2, 2)].modifier.contains(Modifier::REVERSED));
    let coloured = drawn(&mut state, (80, 24), true);
    let colours = |colour| coloured.content.iter().filter(|cell| cell.fg == colour).count();
    assert!(colours(Color::Green) > 0 && colours(Color::Red) > 0 && colours(Color::Cyan) > 0);
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    let mut state = three();
    for keys in ["", "\t", "\x1b/long", "\n?", "\x1bu"] {
        press(&mut state, keys);
        for size in (1..50).flat_map(|width| (1..12).map(move |height| (width * 2, height))) {
            drawn(&mut state, size, true);
        }
    }
}

#[test]
fn a_list_is_scrolled_no_further_than_its_ends() {
    let rows = (0..10_000).map(|number| row(&format!("{number:08}"), number, "true", (1, 0, 0))).collect();
    let (mut state, _) = State::new("All recordings".to_owned(), rows);
    screen(&mut state, (40, 10));
    let selected = |state: &mut State, keys: &str| {
        press(state, keys);
        let screen = screen(state, (40, 10));
        screen.lines().position(|line| line.starts_with('>')).map(|line| (line, state.log.scroll.at))
    };
    assert_eq!(selected(&mut state, "k"), Some((1, 0)));
    assert_eq!(selected(&mut state, "jjjjjjjjj"), Some((8, 9)));
    assert_eq!(selected(&mut state, "k"), Some((7, 8)));
    assert_eq!(selected(&mut state, "G"), Some((8, 9999)));
    assert_eq!(selected(&mut state, "jg"), Some((1, 0)));
    state.key(KeyEvent::new(KeyCode::PageDown, KeyModifiers::NONE));
    assert_eq!(selected(&mut state, ""), Some((8, 7)));
}

#[test]
fn a_filter_chooses_by_the_command_at_once_and_by_paths_when_they_were_searched() {
    let mut state = three();
    assert_eq!(press(&mut state, "/R"), [show("cccccccc", None)]);
    let ids = vec!["aaaaaaaa".to_owned()];
    let search = Effect::Search(Search { text: "rm".to_owned(), ids: ids.clone() });
    assert_eq!(press(&mut state, "m"), [search]);
    assert_eq!(state.log.chosen, [2]);
    let found = Answer::Found { text: "rm".to_owned(), searched: ids.clone(), found: ids };
    assert_eq!(state.answer(found), []);
    assert_eq!((state.log.chosen.clone(), state.filter.left), (vec![0, 2], 0));
    // An answer for another text comes too late.
    press(&mut state, "\x7f\x7fmake");
    let late =
        Answer::Found { text: "rm".to_owned(), searched: Vec::new(), found: vec!["aaaaaaaa".to_owned()] };
    state.answer(late);
    assert_eq!(state.log.chosen, [1]);
    // Enter keeps it, Esc drops it and ends the search.
    press(&mut state, "\n");
    assert!(screen(&mut state, (80, 24)).starts_with("/make  Recordings in"));
    press(&mut state, "\x1b");
    assert_eq!((state.log.chosen.len(), state.selected().unwrap().entry.id.as_str()), (3, "bbbbbbbb"));
}

fn plan(ids: &[&str]) -> UndoRequest {
    UndoRequest { ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..UndoRequest::default() }
}

#[test]
fn an_undo_is_planned_and_done_only_when_it_is_confirmed() {
    let mut state = three();
    press(&mut state, " j ");
    let request = plan(&["aaaaaaaa", "cccccccc"]);
    assert_eq!(press(&mut state, "u"), [Effect::Undo(request.clone())]);
    assert_eq!(press(&mut state, "y"), [], "before there is a plan");
    let report = UndoReport {
        lines: vec![Line::new(LineKind::Removed, "remove     /home/me/demo/build")],
        can_be_done: true,
        digest: "seen".to_owned(),
        ..UndoReport::default()
    };
    state.answer(Answer::Undo(request.clone(), Ok(report)));
    let expected = "\
Undo 2 recordings
remove     /home/me/demo/build


y undo  Esc cancel  w with later ones";
    assert_eq!(screen(&mut state, (40, 5)), expected);
    let agreed = |digest: &str| Some(digest.to_owned());
    let real = UndoRequest { agreed: agreed("seen"), ..request.clone() };
    assert_eq!(press(&mut state, "y"), [Effect::Undo(real.clone())]);
    // Another plan is to be confirmed anew.
    let other = UndoReport { can_be_done: true, digest: "other".to_owned(), ..UndoReport::default() };
    assert_eq!(state.answer(Answer::Undo(real, Ok(other))), [Effect::Reload]);
    assert!(!state.is_applying());
    let real = UndoRequest { agreed: agreed("other"), ..request };
    assert_eq!(press(&mut state, "y"), [Effect::Undo(real.clone())]);
    // It can't be left now.
    assert_eq!(press(&mut state, "q\x1by"), []);
    assert!(state.is_applying());
    let done = UndoReport {
        summary: "1 path put back".to_owned(),
        is_done: true,
        is_plain: true,
        ..UndoReport::default()
    };
    assert_eq!(state.answer(Answer::Undo(real, Ok(done))), [Effect::Reload]);
    assert!(!state.is_applying() && state.marked.is_empty());
    assert!(screen(&mut state, (80, 24)).contains("1 path put back  ? help"));
}

#[test]
fn a_refused_undo_can_be_done_only_with_another_choice() {
    let mut state = three();
    let request = plan(&["aaaaaaaa"]);
    assert_eq!(press(&mut state, "u"), [Effect::Undo(request.clone())]);
    let refused = || UndoReport {
        lines: vec![Line::new(LineKind::Note, "nothing would be changed: these paths have changed since")],
        has_conflicts: true,
        ..UndoReport::default()
    };
    state.answer(Answer::Undo(request.clone(), Ok(refused())));
    let expected = "\
Undo 1 recording
nothing would be changed: these paths have changed since


Esc cancel  f overwrite  s leave them  w with later ones";
    assert_eq!(screen(&mut state, (60, 5)), expected);
    assert_eq!(press(&mut state, "y\n"), []);
    let forced = UndoRequest { force: true, ..request.clone() };
    assert_eq!(press(&mut state, "f"), [Effect::Undo(forced.clone())]);
    // The answer to what is not asked any more.
    let stale = UndoReport { can_be_done: true, ..UndoReport::default() };
    state.answer(Answer::Undo(request.clone(), Ok(stale)));
    assert_eq!(press(&mut state, "y"), []);
    state.answer(Answer::Undo(forced, Ok(refused())));
    let skipping = UndoRequest { skip_conflicts: true, ..request };
    assert_eq!(press(&mut state, "s"), [Effect::Undo(skipping)]);
    assert_eq!(press(&mut state, "\x1b"), []);
    assert!(state.dialog.is_none());
}

#[test]
fn the_history_of_the_file_at_the_cursor_is_stepped_through() {
    let mut state = three();
    let path = b"/home/me/demo/build/stamp".as_slice();
    press(&mut state, "\t]");
    assert_eq!(state.path_at_cursor(), Some(path));
    assert_eq!(press(&mut state, "h"), [Effect::History(path.to_vec())]);
    let rows = vec![row("dddddddd", 1, "touch", (0, 1, 0)), row("aaaaaaaa", 3, "./tidy.sh --all", (2, 1, 4))];
    let effects = state.answer(Answer::History(path.to_vec(), Ok(rows)));
    assert_eq!(effects, [show("aaaaaaaa", Some(path))]);
    assert!(screen(&mut state, (80, 24)).starts_with("History of /home/me/demo/build/…"));
    assert_eq!(press(&mut state, "k"), [show("dddddddd", Some(path))]);
    assert_eq!(press(&mut state, "\x1b"), [show("aaaaaaaa", None)]);
    assert!(state.history.is_none());
}

#[test]
fn new_recordings_leave_the_selection_and_the_marks_alone() {
    let mut state = three();
    press(&mut state, "j ");
    let mut rows = state.log.rows.clone();
    rows.insert(0, row("eeeeeeee", 0, "new", (1, 0, 0)));
    rows.retain(|row| row.entry.id != "aaaaaaaa");
    assert_eq!(state.answer(Answer::Log(Ok(rows))), []);
    assert_eq!(state.selected().unwrap().entry.id, "cccccccc");
    assert_eq!(state.marked.iter().collect::<Vec<_>>(), ["bbbbbbbb"]);
    assert_eq!(state.answer(Answer::Log(Ok(Vec::new()))), []);
    assert!(state.marked.is_empty() && state.selected().is_none());
    assert!(screen(&mut state, (80, 24)).contains("nothing was recorded here"));
}

#[test]
fn the_diff_of_a_recording_tells_each_path_and_escapes_what_moves_the_cursor() {
    let trees = BundleTrees::new();
    trees.both("same", "x");
    BundleTrees::write(&trees.before(), "a", "one\ntwo\n");
    BundleTrees::write(&trees.after(), "a", "one\n\tthree\x1b[2J\n");
    BundleTrees::write(&trees.before(), "old", "same\n");
    BundleTrees::write(&trees.after(), "new", "same\n");
    BundleTrees::write(&trees.after(), "dir/\x1b[31m", "\0");
    trees.commit(|records| trees.rename(records, "old", "new"));
    let snapshot = Snapshot::open(&trees.snap()).unwrap();
    let text = |detail: Detail| detail.lines.into_iter().map(|line| line.text).collect::<Vec<_>>();
    let whole = Detail::of(&snapshot, None, &|| false).unwrap().unwrap();
    assert_eq!(whole.path_at(1), Some(b"/nowhere/work/a".as_slice()));
    assert_eq!(whole.path_at(usize::MAX), whole.files.last().map(|(_, path)| path.as_slice()));
    let expected = [
        "changed a  +1 -1, was 8 B",
        "@@ -1,2 +1,2 @@",
        " one",
        "-two",
        "+        three^[[2J",
        "",
        "renamed new  from old",
        "",
        "created dir/",
        "",
        "created \"dir/\\033[31m\"",
        "  binary, 1 B",
    ];
    assert_eq!(text(whole), expected);
    let of_path = Detail::of(&snapshot, Some(b"/nowhere/work/a"), &|| false).unwrap().unwrap();
    assert_eq!(text(of_path), expected[..5]);
    let of_other = Detail::of(&snapshot, Some(b"/nowhere/work/same"), &|| false).unwrap().unwrap();
    assert_eq!(text(of_other), ["it did not change this path"]);
    assert_eq!(Detail::of(&snapshot, None, &|| true).unwrap(), None);
}
