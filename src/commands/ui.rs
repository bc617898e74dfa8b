//! `ui`: the log and its diffs on a terminal, to look through, undo and redo.
//!
//! `state.rs` decides what a key does, `view.rs` draws, `worker.rs` reads the library in a thread of its own, `terminal.rs`
//! has the terminal and the signals; this passes events between them.

mod detail;
mod keys;
mod listing;
mod state;
mod terminal;
mod text;
mod undoing;
mod view;
mod worker;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};

use super::exit::{Exit, UsageError, VerbResult};
use super::open::scope;
use super::out::Console;
use super::paths::quoted;
use super::record::wait_readable;
use crate::cli::Ui;
use crate::library::scope::Scope;
use crate::library::{Library, Place};
use keys::Keys;
use state::{Effect, State};
use terminal::{Request, Screen};
use view::Theme;
use worker::{Reader, Worker};

/// The log is read at most this often.
const BETWEEN_RELOADS: Duration = Duration::from_secs(1);
/// Ages are drawn again after this time.
const BETWEEN_DRAWS: Duration = Duration::from_secs(10);

/// Runs `ui`.
pub fn run(args: &Ui, console: &mut Console) -> VerbResult {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let message = "ui: standard input and standard output have to be a terminal (log lists the recordings anywhere)";
        return Err(UsageError(message.to_owned()).into());
    }
    let scope = scope(&args.access, args.all);
    let library = Library::create(&Place::of_this_user())?;
    // Before the log is read, so that nothing is missed.
    let watch = watch(&library);
    let title = title(&scope);
    let reader = Reader { library, scope, args: args.clone() };
    let (state, effects) = State::new(title, reader.rows()?);
    let screen = Screen::open().context("use the terminal")?;
    let worker = Worker::start(reader).context("start a thread")?;
    let theme = Theme { has_colour: console.format.colour };
    let mut runner = Runner {
        state,
        screen,
        worker,
        keys: Keys::default(),
        watch,
        theme,
        ending: None,
        reload: None,
        reloaded: Instant::now(),
    };
    runner.perform(effects)?;
    while runner.ending.is_none() || runner.state.is_applying() {
        runner.step()?;
    }
    if let Some(Ending::Signal(signal)) = runner.ending {
        runner.screen.end_by(signal);
    }
    Ok(Exit::Success)
}

fn title(scope: &Scope) -> String {
    match (&scope.session, &scope.place) {
        (Some(session), _) => format!("Recordings of session {}", quoted(session.as_bytes())),
        (None, Some(place)) => format!("Recordings in {}", quoted(place)),
        (None, None) => "All recordings".to_owned(),
    }
}

/// A descriptor that is readable when the library has changed; without one, only a key reads it again.
fn watch(library: &Library) -> Option<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok()?;
    let new = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CREATE;
    // A line is appended to the log; a recording begins, is deleted, or is undone.
    inotify::add_watch(&watch, library.root(), inotify::WatchFlags::MODIFY | new).ok()?;
    let gone = inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, library.snapshots(), new | gone).ok()?;
    Some(watch)
}

/// Why the view ends.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Quit,
    Signal(i32),
}

/// The terminal is gone, which SIGHUP tells those who get it.
const GONE: Ending = Ending::Signal(libc::SIGHUP);

/// Passes events to the state, and does what it asks for.
struct Runner {
    state: State,
    screen: Screen,
    worker: Worker,
    keys: Keys,
    watch: Option<OwnedFd>,
    theme: Theme,
    ending: Option<Ending>,
    /// When the log is to be read again.
    reload: Option<Instant>,
    reloaded: Instant,
}

impl Runner {
    /// Draws, waits for what comes, and takes it in.
    fn step(&mut self) -> anyhow::Result<()> {
        // Once it is to end, an undo is waited for, perhaps without a terminal.
        let listens = self.ending.is_none();
        if listens {
            self.draw().context("draw")?;
        }
        let until_reload = self.reload.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = until_reload.map_or(BETWEEN_DRAWS, |until| until.min(BETWEEN_DRAWS));
        let input = io::stdin();
        let watched = self.watch.as_ref().map_or(self.worker.wake(), |watch| watch.as_fd());
        let input = if listens { input.as_fd() } else { self.worker.wake() };
        let descriptors = [input, self.screen.signals(), self.worker.wake(), watched];
        let [is_input, is_signal, is_answer, is_changed] = wait_readable(descriptors, Some(timeout));
        if is_signal {
            self.take_signals()?;
        }
        if is_answer {
            for answer in self.worker.answers().context("the thread that reads the library has ended")? {
                let effects = self.state.answer(answer);
                self.perform(effects)?;
            }
        }
        if let Some(watch) = self.watch.as_ref().filter(|_| is_changed) {
            // What has changed, the log tells.
            while rustix::io::read(watch, &mut [0; 4096]).is_ok_and(|count| count > 0) {}
            self.reload.get_or_insert(self.reloaded + BETWEEN_RELOADS);
        }
        if self.reload.is_some_and(|due| due <= Instant::now()) {
            self.perform(vec![Effect::Reload])?;
        }
        if is_input && listens {
            self.take_input()?;
        }
        Ok(())
    }

    fn draw(&mut self) -> io::Result<()> {
        let (state, theme) = (&mut self.state, self.theme);
        self.screen.draw(|frame| view::draw(frame, state, theme, Timestamp::now()))
    }

    fn take_input(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; 1024];
        let count = match rustix::io::read(io::stdin(), &mut bytes) {
            Err(Errno::INTR | Errno::AGAIN) => return Ok(()),
            Ok(count) => count,
            Err(_) => 0,
        };
        if count == 0 {
            self.ending = Some(GONE);
        }
        for key in self.keys.take(&bytes[..count]) {
            let effects = self.state.key(key);
            self.perform(effects)?;
        }
        Ok(())
    }

    fn take_signals(&mut self) -> anyhow::Result<()> {
        while let Some(request) = self.screen.take_signal() {
            match request {
                // The kernel sends SIGCONT after SIGHUP.
                _ if self.ending.is_some() => {}
                Some(Request::Stop) => self.screen.stop().context("use the terminal")?,
                Some(Request::Redraw) => self.screen.resume().context("use the terminal")?,
                Some(Request::End(signal)) => self.ending = Some(Ending::Signal(signal)),
                None => {}
            }
        }
        Ok(())
    }

    fn perform(&mut self, effects: Vec<Effect>) -> anyhow::Result<()> {
        for effect in effects {
            match effect {
                Effect::Quit => self.ending = self.ending.or(Some(Ending::Quit)),
                Effect::Redraw => self.screen.resume().context("use the terminal")?,
                // Comes back as a signal.
                Effect::Suspend => kill_current_process_group(Signal::TSTP).context("stop")?,
                Effect::Reload => {
                    (self.reload, self.reloaded) = (None, Instant::now());
                    self.worker.push(Effect::Reload);
                }
                task => self.worker.push(task),
            }
        }
        Ok(())
    }
}
